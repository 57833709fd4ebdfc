"""Producers that append to an inbox, die, and are started again; their input is the same for ever.

There may be several processes of one name at once, as where one that stood still was taken for dead.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.errors import BatchConflict, StorageError
from headrace.pipeline.source import Source
from headrace.sources.inbox import Producer
from tests.faults.simulation.recorder import WrongEffect
from tests.faults.simulation.storage import Disk, ProcessStore
from tests.faults.simulation.world import Hit
from tests.support.faults import SimulatedCrash

if TYPE_CHECKING:
    from tests.faults.simulation.oracle import Sent
    from tests.faults.simulation.run import World

#: A producer waits while so many of its batches are not recorded.
_AHEAD = 4


class Appending:
    """An inbox, and for each partition what its producer appends, batch by batch.

    Args:
        disk: the pipeline's; the inbox is another one, on which the same things fail.
        sent: the records of each partition. Those that were never appended are taken out in the end.
        rng: decides how records are divided into batches.

    Attributes:
        cleans: whether batches are deleted once they were read.
        processes: how many each name has.
    """

    def __init__(self, disk: Disk, sent: dict[str, list[Sent]], rng: random.Random) -> None:
        self._disk = Disk(disk.kernel, disk.options, disk)
        self._sent = sent
        self.cleans = rng.random() < 0.5
        self.processes = rng.choice([1, 1, 2, 3])
        self._batches = {name: _divided(records, rng) for name, records in sent.items()}
        self._begun = dict.fromkeys(sent, 0)
        self._acknowledged = dict.fromkeys(sent, -1)
        self._living = dict.fromkeys(sent, 0)

    def source(self) -> Source:
        """Return the inbox as a driver reads it."""
        place = ProcessStore(self._disk)
        producers = sorted(self._batches)
        return hr.sources.Inbox(
            place, Hit, event_time="time", producers=producers, clean=self.cleans
        )

    def read(self, position: Any) -> dict[str, int]:
        """Return how many records of each partition were read up to a position.

        (A producer's last batch, which says that it has ended, has none.)
        """
        ended = position.get("ended", ())
        return {
            name: sum(map(len, self._batches[name][: count - (name in ended)]))
            for name, count in position.get("next", {}).items()
        }

    def produce(self, world: World, name: str) -> None:
        """Append a partition's batches, in one life after another; say at last that it has ended."""
        while True:
            with contextlib.suppress(StorageError, SimulatedCrash):
                if self._live(world, name):
                    return
            world.kernel.sleep(world.rng.choice([5_000, 100_000]))

    def _live(self, world: World, name: str) -> bool:
        """Append until this process dies, or the world comes to its end: then say so, and return True."""
        self._living[name] += 1
        try:
            producer = Producer(ProcessStore(self._disk), name, type=Hit, event_time="time")
            self._append_all(world, producer)
        finally:
            self._living[name] -= 1
        if (
            not world.disk.calm or self._living[name]
        ):  # (till then, others may know of more than this one)
            world.kernel.sleep(100_000)
            return False
        producer.finish()
        if producer.next - 1 <= self._acknowledged[name]:
            raise WrongEffect(
                f"{name}: batch {self._acknowledged[name]} was acknowledged, and is lost"
            )
        del self._sent[name][sum(map(len, self._batches[name][: producer.next - 1])) :]
        return True

    def _append_all(self, world: World, producer: Producer) -> None:
        batches, recorded = self._batches[producer.name], 0
        while not world.disk.calm and producer.next < len(batches):
            recorded = self._check_recorded(world, producer, recorded)
            if producer.next - recorded >= _AHEAD:
                world.kernel.sleep(200_000)
                continue
            self._append(world, producer, batches[producer.next])
            world.kernel.sleep(world.rng.choice([1_000, 20_000, 100_000]))

    def _append(self, world: World, producer: Producer, records: list[Sent]) -> None:
        hits = [Hit(one.key, one.amount, one.time, one.id) for one in records]
        name, number = producer.name, producer.next
        self._begun[name] = max(self._begun[name], number + 1)
        try:
            producer.append(hits, sequence=number)
        except BatchConflict as error:
            if self.processes > 1 and "is not the one that" in error.what:
                world.kernel.saw("a producer's batch followed the ghost of one")
                raise StorageError("this process is behind, and ends") from error
            raise WrongEffect(f"{name}: its batch is another one: {error}") from error
        if number <= self._acknowledged[name]:
            world.kernel.saw("a batch was appended by two processes of one name")
        self._acknowledged[name] = max(self._acknowledged[name], number)

    def _check_recorded(self, world: World, producer: Producer, before: int) -> int:
        name = producer.name
        recorded = producer.recorded(ProcessStore(world.disk))
        if not before <= recorded <= self._begun[name]:
            raise WrongEffect(f"{name}: {recorded} recorded, of {self._begun[name]}")
        world.kernel.saw("a producer looked what is recorded")
        return recorded


def _divided(records: list[Sent], rng: random.Random) -> list[list[Sent]]:
    found, at = [], 0
    while at < len(records):
        count = rng.choice([1, 2, 6])
        found.append(records[at : at + count])
        at += count
    return found
