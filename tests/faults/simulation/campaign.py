"""Runs many seeds on all cores; fails if one finds something wrong, or a situation never came up.

python -m tests.faults.simulation.campaign --seeds 1000 --json benchmarks/results/simulation.json

Where the file has results of the same source tree, it goes on after their last seed, and adds to them. The
first seed is a number that the trees decide: so they are none that the code was made with.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import msgspec
from benchmarks.harness import source_tree

from tests.faults.simulation.run import FEWEST_EVENTS, FEWEST_FAULTS, Outcome, simulate

#: Every how many-th seed is run twice, and must do the same.
_TWICE = 100
#: The file is written each time after so many seeds.
_EVERY = 500
#: What must come up at least once in a campaign, or it has shown nothing of it.
WANTED = [
    "fault: error",
    "fault: lost reply",
    "fault: crash before",
    "fault: crash after",
    "fault: torn write",
    "fault: slow",
    "fault: stale list",
    "fault: full",
    "fault: task given up",
    "fault: task run twice",
    "fault: executor dies",
    "fault: host dies",
    "fault: a message is lost",
    "fault: crash at a message",
    "fault: a rival takes over",
    "fault: clock jumps",
    "fault: crash in delivery",
    "fault: clock is years off",
    "fault: a sink is slow",
    "fault: a sink hangs",
    "fault: a task hangs",
    "stopped: CodeChanged",
    "stopped: TaskTimeout",
    "stopped: SinkTimeout",
    "fenced: another driver has claimed the pipeline",
    "fenced",
    "fenced: its step was committed by another driver",
    "fenced: its predecessor was cleaned away by another driver",
    "a driver died",
    "stopped: StorageError",
    "stopped: StorageFull",
    "a driver ended: handed over",
    "took over: gone",
    "took over: handed over",
    "a step is delivered again",
    "the boundary was raised",
    "a packed file is needed below the boundary",
    "some files are packed and some are not",
    "migration done",
    "migration aborted",
    "bins of different depth",
    "a step while a migration is preparing",
    "a step while a migration is moving",
    "a record was sent again",
    "a producer looked what is recorded",
    "a batch was appended by two processes of one name",
    "a create met itself",
    "state was read",
    "pinned state was read",
    "what was read has expired",
    "a checkpoint was copied",
    "a copy went on to the end",
    "asked: pause",
    "asked: resume",
    "asked: stop",
    "asked: migrate",
    "asked: abort_migration",
    "asked: pause_migration",
    "asked: resume_migration",
    "a step while it is paused",
    "a migration is taken back",
    "a step while a migration is aborting",
    "a step while a migration is gap",
    "a step while a migration is queued",
    "a step while a migration is paused",
    "executor dies, in the middle of a task",
    "host dies, in the middle of a task",
    "task given up, in the middle of a task",
    "task run twice, in the middle of a task",
    "while faults happen: windows that are over are told",
    "what was to be copied has expired",
    "while faults happen: groups that are over are told",
    "while faults happen: later that are over are told",
    "while faults happen: alarms that are over are told",
    "cleaned from outside",
    "stopped: ListLags",
    "a long run",
]


class Tally(msgspec.Struct):
    """What came of many seeds.

    Attributes:
        command: what was run.
        source_tree, tests_tree: of which ``src/`` and ``tests/faults/simulation/``.
        first: the first seed.
        seeds: how many, from there on.
        twice: how many of them were run twice.
        fewest_events, fewest_faults: of any seed.
        wrong: seeds that found something.
        seeds_with: in how many seeds each situation came up.
    """

    command: str
    source_tree: str
    tests_tree: str
    first: int = 0
    seeds: int = 0
    twice: int = 0
    seconds: int = 0
    events: int = 0
    faults: int = 0
    steps: int = 0
    effects: int = 0
    fewest_events: int = 1 << 60
    fewest_faults: int = 1 << 60
    wrong: list[int] = msgspec.field(default_factory=list)
    seeds_with: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, found: Outcome) -> None:
        """Add what came of the next seed."""
        self.seeds += 1
        self.twice += found.seed % _TWICE == 0
        self.events += found.events
        self.faults += found.faults
        self.steps += found.steps
        self.effects += found.effects
        self.fewest_events = min(self.fewest_events, found.events)
        self.fewest_faults = min(self.fewest_faults, found.faults)
        self.seeds_with = dict(
            sorted((Counter(self.seeds_with) + Counter(set(found.seen))).items())
        )
        if found.problem:
            self.wrong.append(found.seed)

    @property
    def never(self) -> list[str]:
        """Which situations have not come up."""
        return [name for name in WANTED if name not in self.seeds_with]

    @property
    def good(self) -> bool:
        """Whether nothing was wrong, and enough was tried."""
        enough = self.fewest_events >= FEWEST_EVENTS and self.fewest_faults >= FEWEST_FAULTS
        return enough and not self.wrong and not self.never


def main() -> int:
    """Run a campaign; return 0 when all was as it must be."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--seeds", type=int, default=1_000, help="how many there are to be at last"
    )
    options.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    options.add_argument("--processes", type=int, default=os.cpu_count())
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    tally = _begun(chosen.json)
    tally.command = f"python -m tests.faults.simulation.campaign --seeds {chosen.seeds}"
    begun, before = time.monotonic(), tally.seconds
    seeds = range(tally.first + tally.seeds, tally.first + chosen.seeds)
    for found in outcomes(seeds, chosen.processes, chosen.minutes * 60):
        tally.add(found)
        tally.seconds = before + round(time.monotonic() - begun)
        if found.problem:
            print(f"seed {found.seed}: {found.problem}", flush=True)
        if tally.seeds % _EVERY == 0:
            _keep(tally, chosen.json)
    _keep(tally, chosen.json)
    print(msgspec.json.format(msgspec.json.encode(tally), indent=1).decode())
    print(f"never came up: {tally.never}")
    return int(not tally.good)


def outcomes(seeds: range, processes: int, seconds: float) -> Iterator[Outcome]:
    """Run seeds side by side, for so long at most; yield what comes of them, in their order."""
    deadline = time.monotonic() + seconds
    running: deque[Future[Outcome]] = deque()
    spawn = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(
        processes, spawn, initializer=_seldom_collect, max_tasks_per_child=500
    ) as pool:
        for seed in seeds:
            if time.monotonic() > deadline:
                break
            running.append(pool.submit(once_or_twice, seed))
            if len(running) > 4 * processes:
                yield running.popleft().result()
        for one in running:
            yield one.result()


def _seldom_collect() -> None:
    """Let a process collect its garbage seldom: what is there at first stays, and a run is small."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def once_or_twice(seed: int) -> Outcome:
    """Run a seed; some are run twice, to see whether they do the same."""
    found = simulate(seed)
    if seed % _TWICE == 0 and fingerprint_elsewhere(seed) != found.fingerprint:
        found.problem = found.problem or "it did something else the second time"
    return found


def fingerprint_elsewhere(seed: int) -> str:
    """Run a seed in a process of its own, which has seen no other, and in which sets have other orders."""
    code = f"from tests.faults.simulation.run import simulate; print(simulate({seed}).fingerprint)"
    hashes = {"PYTHONHASHSEED": str(seed + 1)}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **hashes},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout.strip() or ran.stderr


def _begun(file: Path | None) -> Tally:
    """Return what a file says of the same source tree, or an empty tally."""
    trees = source_tree(), source_tree("tests/faults/simulation")
    first = int.from_bytes(hashlib.blake2b("".join(trees).encode(), digest_size=4).digest())
    empty = Tally("", *trees, first=first)
    if file is None or not file.exists():
        return empty
    known = msgspec.json.decode(file.read_bytes(), type=Tally)
    same = (known.source_tree, known.tests_tree) == (empty.source_tree, empty.tests_tree)
    return known if same else empty


def _keep(tally: Tally, file: Path | None) -> None:
    if file is not None:
        text = msgspec.json.format(msgspec.json.encode(tally), indent=1)
        file.write_bytes(text + b"\n")


if __name__ == "__main__":
    sys.exit(main())
