"""Resident memory against ``cached_bytes``, with ten times as much state, and right after a restart.

Each kind of state runs in a process of its own: per-record values of 1 kB to 10 MB, maps with many
entries, and tables of texts, one of them of a computation that sees all of a step at once. A run
fills ten times the bound, touches keys at random, and is started again. Resident memory counts from
what the process has before its first step, with the modules that PyArrow imports later (pandas:
45 MB). The last column is the cost: the time of a step over that of one with room for everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd  # noqa: F401  (PyArrow would import it when it first reads a list)

import headrace as hr
from benchmarks.harness import ROOT, figure, parser, report
from headrace.driver.driver import Driver
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore

MIB = 1 << 20
GOAL = 1.3
#: What a step works with, the interpreter's own, and a slice that is being written.
CONSTANT_MIB = 64
#: A step changes about this many bytes.
_STEP_BYTES = 4 * MIB


class Touch(msgspec.Struct):
    """A record: its key gets content of this size."""

    key: int
    at: int
    size: int


class Values(hr.Computation):
    held = hr.ValueState(bytes)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.held.value = os.urandom(record.value.size)


class Maps(hr.Computation):
    held = hr.MapState(int, str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        for number in range(record.value.size // 160):
            self.held[number] = f"{record.value.at} {number} " + "x" * 20


class Texts(hr.ColumnarComputation):
    held = hr.TableState({"text": str})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        last = batch.starts + batch.counts - 1
        texts = [os.urandom(size // 2).hex() for size in batch["size"][last].tolist()]
        self.held.at(batch.keys).upsert(text=np.array(texts, dtype=object))


class Steps(hr.StepComputation):
    held = hr.TableState({"text": str})

    def process_step(self, ctx: hr.BatchContext, batches: hr.StepBatches) -> None:
        (batch,) = batches.values()
        last = batch.starts + batch.counts - 1
        texts = [os.urandom(size // 2).hex() for size in batch["size"][last].tolist()]
        self.held.at(batch.keys).upsert(text=np.array(texts, dtype=object))


#: Kind → its computation and the size of what a key holds.
KINDS: dict[str, tuple[Callable[[], Any], int]] = {
    "values of 1 kB": (Values, 1_000),
    "values of 100 kB": (Values, 100_000),
    "values of 1 MB": (Values, 1_000_000),
    "values of 10 MB": (Values, 10_000_000),
    "maps of 100 kB": (Maps, 100_000),
    "texts of 1 kB in a table": (Texts, 1_000),
    "texts of 1 MB in a table": (Texts, 1_000_000),
    "texts of 100 kB, streams at once": (Steps, 100_000),
}


def resident_mib() -> float:
    """Return the resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def child(folder: str, kind: str, bound: int, times: float, until: int) -> None:
    """Run up to a number of steps. Print resident memory before, its maximum, and seconds."""
    of, size = KINDS[kind]
    keys = max(2, int(times * bound / size))
    rows = max(1, _STEP_BYTES // size)

    def records() -> Iterator[Touch]:
        drawn = random.Random(7)
        for n in range(10**9):
            yield Touch(n if n < keys else drawn.randrange(keys), n, size)

    pipeline = hr.Pipeline("memory")
    stream = pipeline.inject("keys", hr.sources.Iterable(records, Touch, event_time="at"))
    pipeline.compute("keep", of(), keys={stream: "key"})
    driver = Driver(
        pipeline,
        LocalStore(folder),
        InlineRunner(),
        workers=1,
        bins=1_024,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 40), cached_bytes=bound),
    )
    before, highest, stamps = resident_mib(), [0.0], [time.perf_counter()]

    def note(summary: hr.StepSummary) -> None:
        highest.append(resident_mib())
        stamps.append(time.perf_counter())
        if summary.step >= until:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    driver.run()
    seconds = sorted(b - a for a, b in zip(stamps, stamps[1:], strict=False))
    said = {"before": before, "highest": max(highest), "step_s": seconds[len(seconds) // 2]}
    print(json.dumps(said), flush=True)


def run(folder: Path, kind: str, bound: int, times: float, until: int) -> dict[str, float]:
    """Run a child, and return what it has said."""
    what = [str(folder), kind, str(bound), str(times), str(until)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--child", *what],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(kind: str, chosen: argparse.Namespace) -> tuple[list[str], list[float]]:
    """Return the row of a kind, and its highest memory in both runs, in MiB."""
    _, size = KINDS[kind]
    bound = chosen.mib * MIB
    fill = int(chosen.times * bound / size / max(1, _STEP_BYTES // size))
    folder = Path(tempfile.mkdtemp(prefix="headrace-memory-"))
    try:
        first = run(folder / "bound", kind, bound, chosen.times, fill + chosen.steps)
        again = run(folder / "bound", kind, bound, chosen.times, fill + 2 * chosen.steps)
        room = run(folder / "room", kind, 8 << 30, chosen.times, fill + chosen.steps)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    grown = [of["highest"] - of["before"] for of in (first, again)]
    cost = again["step_s"] / room["step_s"]
    everything = room["highest"] - room["before"]
    cells = [f"{mib:.0f}" for mib in (*grown, everything)]
    return [kind, str(chosen.mib), *cells, f"{cost:.1f}"], grown


def main() -> None:
    """Run all kinds, and print a table."""
    if sys.argv[1:2] == ["--child"]:
        folder, kind, bound, times, until = sys.argv[2:]
        child(folder, kind, int(bound), float(times), int(until))
        return
    options = parser(__doc__)
    options.add_argument("--mib", type=int, default=64, help="the bound")
    options.add_argument("--times", type=float, default=10.0, help="state, over the bound")
    options.add_argument("--steps", type=int, default=20, help="after all keys are there")
    options.add_argument("--kinds", nargs="*", default=list(KINDS))
    chosen = options.parse_args()
    if chosen.quick:
        chosen.mib, chosen.steps = 32, 8
    rows = [["state", "bound MiB", "MiB", "MiB after a restart", "MiB with room", "step, times"]]
    figures = []
    for kind in chosen.kinds:
        row, grown = measured(kind, chosen)
        rows.append(row)
        over = (max(grown) - CONSTANT_MIB) / chosen.mib
        name = kind.replace(" ", "_")
        figures.append(figure(f"{name}_over_bound", over, "x", f"<= {GOAL}", over <= GOAL))
    report("Resident memory against cached_bytes", rows, figures, chosen)


if __name__ == "__main__":
    main()
