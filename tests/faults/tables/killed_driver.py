"""Drivers that deliver to tables, and are killed inside of deliveries; see test_kills.py.

Those of SQL databases read a table, too, and are killed inside of that as well.

usage: killed_driver.py KIND FOLDER SEED KILLS

A process imports what it needs, and then lives many times: each life is a fork, which runs the
pipeline until SIGKILL ends it before, after or during a call of the table's library. The last life
ends by itself. It prints how many calls a whole life makes, and where the others ended.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from tests.faults.tables.worlds import World, world_of

RECORDS = 40
KEYS = 5
LONGEST_CALL_S = 0.03


class Hit(msgspec.Struct):
    key: int
    at: int


class Numbered(msgspec.Struct):
    number: int
    text: str
    gone: bool


class Numbering(hr.Computation):
    number = hr.ValueState(int, default=0)
    out = hr.Output(Numbered)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        number, key = self.number.value, record.value.key
        ctx.produce("out", Numbered(number, f"{key}'s", gone=(number + key) % 3 == 0))


class Calls:
    """Counts the calls of the library, each before and after, and ends the process at one.

    Args:
        last: where to end it; None for nowhere.
        after_s: how long after that, so that it ends inside of the call.
    """

    def __init__(self, last: int | None, after_s: float) -> None:
        self.made: list[str] = []
        self._last, self._after_s = last, after_s

    def point(self, name: str) -> None:
        self.made.append(name)
        if len(self.made) - 1 == self._last:
            if self._after_s:
                threading.Timer(self._after_s, self._end).start()
            else:
                self._end()

    def _end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **more: Any) -> Any:
            self.point(f"before {name}")
            found = call(*given, **more)
            self.point(f"after {name}")
            return found

        return called


def live(world: World, storage: Path, calls: Calls, **options: Any) -> None:
    """Run the pipeline to its end, with further options of ``hr.run``."""
    pipeline = hr.Pipeline("killed")
    hits = [Hit(n % KEYS, n) for n in range(RECORDS)]
    source = world.source(hits, Hit)
    stream = pipeline.inject("hits", source, watermark=hr.ascending())
    counts = pipeline.compute("counts", Numbering(), keys={stream: "key"})
    for mode in world.modes:
        sink = world.sink(mode)
        receive: Any = calls.around(f"delivery to {mode}", sink.receive)
        sink.receive = receive  # type: ignore[method-assign]
        pipeline.sink(mode, counts, sink)
    settings = hr.Settings(limit=hr.Limit(8, 1 << 20))
    patience = hr.HeartbeatSettings(period_s=0.05, patience_s=0.2)
    with hr.run(
        pipeline,
        storage=storage,
        runner="inline",
        settings=settings,
        heartbeat=patience,
        **options,
    ) as job:
        if source.bounded:
            job.drain()
        else:
            job.catch_up()


def fork(work: Callable[[], None]) -> int:
    """Work in a fork of this process, which has used no library yet. Return how that ended."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def life(world: World, storage: Path, report: Path, calls: Calls) -> int:
    """Let a driver live until a call, or to its end. Return how it ended."""

    def work() -> None:
        world.patch(calls.around, calls.point)
        live(world, storage, calls)
        report.write_text(json.dumps(calls.made))

    return fork(work)


def main() -> None:
    kind, folder, seed, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    rng = random.Random(seed)
    report = folder / "calls.json"
    whole, killed = world_of(kind, folder / "whole"), world_of(kind, folder / "killed")
    assert life(whole, folder / "whole-storage", report, Calls(None, 0)) == 0
    points = json.loads(report.read_text())
    ends: list[str] = []
    storage = folder / "killed-storage"
    # A life is about as long as what is left, so kills are early in a life: at every call in time.
    per_step = max(2, len(points) // (RECORDS // 8))
    while len(ends) < kills:
        last = rng.randrange(per_step)
        after_s = rng.choice([0.0, rng.uniform(0, LONGEST_CALL_S)])
        code = life(killed, storage, report, Calls(last, after_s))
        if code == 0:  # it had less left to do: begin with another place
            assert fork(lambda: killed.check_against(whole)) == 0
            shutil.rmtree(storage)
            assert fork(killed.clear) == 0
            continue
        assert code == -signal.SIGKILL, code
        ends.append(f"{last} + {1e3 * after_s:.1f} ms")
    assert life(killed, storage, report, Calls(None, 0)) == 0
    assert fork(lambda: killed.check_against(whole)) == 0
    print(json.dumps({"calls": len(points), "points": sorted(set(points)), "ends": ends}))


if __name__ == "__main__":
    main()
