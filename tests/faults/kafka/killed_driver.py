"""Drivers that deliver to Kafka, and are killed or stopped inside of deliveries; see test_kills.py.

usage: killed_driver.py kills FOLDER SEED COUNT       as long as it takes, at calls by chance
       killed_driver.py points FOLDER POINT...        at the first call of each of these names in turn
       killed_driver.py live FOLDER [POINT]           one life, which stops itself at a call; or takes over

The brokers are those of the environment variable KAFKA. A process imports what it needs, and then
lives many times: each life is a fork, which runs the pipeline until SIGKILL ends it before, after or
during a step of the protocol. The last life ends by itself, and its topics must have the messages
of a pipeline that nothing disturbed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import headrace as hr
from tests.faults.tables.killed_driver import LONGEST_CALL_S, RECORDS, Calls, fork, life, live
from tests.faults.tables.worlds import Around, Point, World

BROKERS = "KAFKA"
#: The steps of the protocol.
PROTOCOL = ("fence", "begin", "send", "mark", "commit")


class KafkaWorld(World):
    """Topics, one for each mode of the sink."""

    modes = ("append", "upsert")

    def __init__(self, folder: Path, round_number: int = 0) -> None:
        super().__init__(folder)
        self._name = f"{folder.parent.name}-{folder.name}-{round_number}"
        self.servers = os.environ[BROKERS]

    def topic(self, mode: str) -> str:
        return f"{self._name}-{mode}"

    def sink(self, mode: str) -> hr.sinks.Sink:
        found: hr.sinks.Sink = hr.sinks.Kafka(
            self.topic(mode),
            self.servers,
            mode=mode,  # type: ignore[arg-type]
            timestamp=None,
            create={"partitions": 2},
            steps_topic=f"{self._name}-steps",
        )
        return found

    def rows(self, mode: str) -> list[dict[str, Any]]:
        """Return what a reader of committed messages sees, partition by partition and in order."""
        from scripts.kafka_broker import Kafka

        from tests.support.kafka_commits import committed

        rows, ids = [], set()
        for message in committed(_at(Kafka, self.servers), self.topic(mode)):
            headers = dict(message.headers())
            ids.add((headers["hr-step"], headers["hr-row"]))
            row = {"partition": message.partition(), "key": message.key()}
            rows.append({**row, "value": message.value()})
        assert len(ids) == len(rows), "each row is there once"
        return rows

    def check_against(self, other: World) -> None:
        """Check that all topics have the same messages as those of another world, in order."""
        for mode in self.modes:
            found, wanted = self.rows(mode), other.rows(mode)
            assert wanted, "the undisturbed run has delivered something"
            assert found == wanted, (mode, found, wanted)

    def patch(self, around: Around, point: Point) -> None:
        from headrace.sinks.kafka_sender import Sender

        kind: Any = Sender
        for name in PROTOCOL:
            setattr(kind, name, around(name, getattr(kind, name)))


def _at(kind: Any, servers: str) -> Any:
    """Return a Kafka that another process has started."""

    class Elsewhere(kind):  # type: ignore[misc]
        bootstrap = servers

    return Elsewhere([])


class Stops(Calls):
    """Stops the process at a call, as a virtual machine that is paused."""

    def __init__(self, name: str) -> None:
        super().__init__(None, 0)
        self._name = name

    def point(self, name: str) -> None:
        super().point(name)
        if name == self._name and self.made.count(name) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)


class At(Calls):
    """Ends the process at the first call of a name, or some time later.

    Args:
        name: ``before commit``, or ``before commit+2`` for two milliseconds later.
    """

    def __init__(self, name: str) -> None:
        name, _, after_ms = name.partition("+")
        super().__init__(None, float(after_ms or 0) / 1e3)
        self._name = name

    def point(self, name: str) -> None:
        if name == self._name and name not in self.made:
            self._last = len(self.made)
        super().point(name)


def _same(killed: KafkaWorld, whole: KafkaWorld) -> bool:
    """Return whether the topics of two worlds have the same rows."""
    return fork(lambda: killed.check_against(whole)) == 0


def by_chance(folder: Path, seed: int, kills: int) -> dict[str, Any]:
    """Let drivers be killed at any call."""
    rng = random.Random(seed)
    report = folder / "calls.json"
    whole = KafkaWorld(folder / "whole")
    assert life(whole, folder / "whole-storage", report, Calls(None, 0)) == 0
    points = json.loads(report.read_text())
    per_step = max(2, len(points) // (RECORDS // 8))
    ends: list[str] = []
    rounds = 0
    killed, storage = KafkaWorld(folder / "killed", rounds), folder / "killed-storage"
    while len(ends) < kills:
        last, after_s = rng.randrange(per_step), rng.choice([0.0, rng.uniform(0, LONGEST_CALL_S)])
        code = life(killed, storage, report, Calls(last, after_s))
        if code == 0:  # it had less left to do: begin with other topics
            assert _same(killed, whole)
            shutil.rmtree(storage)
            rounds += 1
            killed = KafkaWorld(folder / "killed", rounds)
            continue
        assert code == -signal.SIGKILL, code
        ends.append(f"{last} + {1e3 * after_s:.1f} ms")
    assert life(killed, storage, report, Calls(None, 0)) == 0
    assert _same(killed, whole)
    return {"calls": len(points), "points": sorted(set(points)), "ends": ends}


def at_points(folder: Path, names: list[str]) -> dict[str, Any]:
    """Let a driver be killed at calls of these names, one after the other."""
    report = folder / "calls.json"
    whole, killed = KafkaWorld(folder / "whole"), KafkaWorld(folder / "killed")
    storage = folder / "killed-storage"
    assert life(whole, folder / "whole-storage", report, Calls(None, 0)) == 0
    for name in names:
        code = life(killed, storage, report, At(name))
        assert code == -signal.SIGKILL, (name, code)
    assert life(killed, storage, report, Calls(None, 0)) == 0
    assert _same(killed, whole)
    return {"ends": names}


def one_life(folder: Path, point: str) -> None:
    """Live once, in this process."""
    world = KafkaWorld(folder / "stopped")
    calls = Stops(point) if point else Calls(None, 0)
    world.patch(calls.around, calls.point)
    live(world, folder / "stopped-storage", calls, take_over=not point)


def main() -> None:
    what, folder, *more = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    if what == "live":
        one_life(folder, *more or [""])
    elif what == "kills":
        print(json.dumps(by_chance(folder, *map(int, more))))
    else:
        print(json.dumps(at_points(folder, more)))


if __name__ == "__main__":
    main()
