"""Producers that append to an inbox, die, and are started again; their input is the same for ever."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.errors import BatchConflict, StorageError
from headrace.sources.base import Source
from headrace.sources.inbox import Producer
from tests.simulation.recorder import WrongEffect
from tests.simulation.storage import Disk, ProcessStore
from tests.simulation.world import Hit
from tests.support.faults import SimulatedCrash

if TYPE_CHECKING:
    from tests.simulation.oracle import Sent
    from tests.simulation.run import World

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
    """

    def __init__(self, disk: Disk, sent: dict[str, list[Sent]], rng: random.Random) -> None:
        self._disk = Disk(disk.kernel, disk.options, disk)
        self._sent = sent
        self.cleans = rng.random() < 0.5
        self._batches = {name: _divided(records, rng) for name, records in sent.items()}
        self._begun = dict.fromkeys(sent, 0)
        self._recorded = dict.fromkeys(sent, 0)
        self._acknowledged = dict.fromkeys(sent, -1)

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
        """Append until this producer dies, or the world comes to its end: then say so, and return True."""
        producer = Producer(ProcessStore(self._disk), name, type=Hit, event_time="time")
        self._recorded[name] = (
            0  # (a list that lags may show the next process less than this one saw)
        )
        batches = self._batches[name]
        while not world.disk.calm and producer.next < len(batches):
            self._check_recorded(world, name, producer)
            if producer.next - self._recorded[name] >= _AHEAD:
                world.kernel.sleep(200_000)
                continue
            self._append(producer, batches[producer.next])
            world.kernel.sleep(world.rng.choice([1_000, 20_000, 100_000]))
        if not world.disk.calm:
            world.kernel.sleep(100_000)
            return False
        producer.finish()  # (till then, this process may have known of fewer than there are)
        if producer.next - 1 <= self._acknowledged[name]:
            raise WrongEffect(
                f"{name}: batch {self._acknowledged[name]} was acknowledged, and is lost"
            )
        del self._sent[name][sum(map(len, batches[: producer.next - 1])) :]
        return True

    def _append(self, producer: Producer, records: list[Sent]) -> None:
        hits = [Hit(one.key, one.amount, one.time, one.id) for one in records]
        self._begun[producer.name] = max(self._begun[producer.name], producer.next + 1)
        number = producer.next
        try:
            producer.append(hits, sequence=number)
            self._acknowledged[producer.name] = number
        except BatchConflict as error:
            raise WrongEffect(f"{producer.name}: its batch is another one: {error}") from error

    def _check_recorded(self, world: World, name: str, producer: Producer) -> None:
        recorded = producer.recorded(ProcessStore(world.disk))
        if not self._recorded[name] <= recorded <= self._begun[name]:
            raise WrongEffect(f"{name}: {recorded} recorded, of {self._begun[name]}")
        self._recorded[name] = recorded
        world.kernel.saw("a producer looked what is recorded")


def _divided(records: list[Sent], rng: random.Random) -> list[list[Sent]]:
    found, at = [], 0
    while at < len(records):
        count = rng.choice([1, 2, 6])
        found.append(records[at : at + count])
        at += count
    return found
