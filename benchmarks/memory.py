"""Resident memory against ``cached_bytes``, with ten times as much state, and right after a restart.

Each kind of state runs in a process of its own: per-record values of 1 kB to 10 MB, maps with many
entries, tables of texts, one of them of a computation that sees all of a step at once, a view with a
join of two Z-sets, and records that wait for their turn. A run fills ten times the bound, touches
keys at random, and is started again. Resident memory counts from what the process has before its
first step, with the modules that PyArrow imports later (pandas: 45 MB). It is taken after each step,
and the peak within steps beside it. The last columns are the cost: the time of a step, and that over
the time of one with room for everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
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
Records = Callable[[], "Iterator[Touch]"]
Attach = Callable[[hr.Pipeline, Records], None]


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


class Row(msgspec.Struct):
    """A record that brings its content, and belongs to one of two sides."""

    key: int
    at: int
    side: int
    text: str


class InOrder(hr.Computation):
    count = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1


def computed(of: Callable[[], Any]) -> Attach:
    """Return what adds a computation of touched keys."""

    def attach(pipeline: hr.Pipeline, records: Records) -> None:
        pipeline.compute("keep", of(), keys={touched(pipeline, records): "key"})

    return attach


def touched(pipeline: hr.Pipeline, records: Records) -> hr.Stream:
    """Add a source of touched keys."""
    return pipeline.inject("keys", hr.sources.Iterable(records, Touch, event_time="at"))


def rows_of(pipeline: hr.Pipeline, records: Records, **way: Any) -> hr.Stream:
    """Add a source of rows with content: half of the keys on either side."""

    def rows() -> Iterator[Row]:
        for of in records():
            yield Row(of.key // 2, of.at, of.key % 2, os.urandom(of.size // 2).hex())

    return pipeline.inject("rows", hr.sources.Iterable(rows, Row, event_time="at"), **way)


def joined(pipeline: hr.Pipeline, records: Records) -> None:
    """Add a view with a join that keeps the texts of both sides."""
    views = hr.sql.Views()
    views.table("rows", hr.zsets.table("all_rows", rows_of(pipeline, records)))
    views.view(
        "pairs",
        """
        SELECT a.key % 16 AS part, count(*) AS pairs, sum(length(concat(a.text, b.text))) AS letters
        FROM rows a JOIN rows b ON a.key = b.key WHERE a.side = 0 AND b.side = 1
        GROUP BY a.key % 16
        """,
    ).view("pairs_of_parts", key="part")


def waiting(pipeline: hr.Pipeline, records: Records) -> None:
    """Add a computation in whose inputs all records wait."""
    stream = rows_of(pipeline, records, watermark=hr.bounded_delay("300d"))
    pipeline.compute("keep", InOrder(), keys={stream: "key"}, ordered=True)


#: Kind → what adds it to a pipeline, and the size of what a key holds.
KINDS: dict[str, tuple[Attach, int]] = {
    "values of 1 kB": (computed(Values), 1_000),
    "values of 100 kB": (computed(Values), 100_000),
    "values of 1 MB": (computed(Values), 1_000_000),
    "values of 10 MB": (computed(Values), 10_000_000),
    "maps of 100 kB": (computed(Maps), 100_000),
    "texts of 1 kB in a table": (computed(Texts), 1_000),
    "texts of 1 MB in a table": (computed(Texts), 1_000_000),
    "texts of 100 kB, streams at once": (computed(Steps), 100_000),
    "rows of 1 kB in a view's join": (joined, 1_000),
    "records of 1 kB that wait": (waiting, 1_000),
}


def resident_mib() -> float:
    """Return the resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def peak_mib() -> float:
    """Return the highest resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024


def child(folder: str, kind: str, bound: int, times: float, until: int) -> None:
    """Run up to a number of steps. Print resident memory before, its maximum, and seconds."""
    attach, size = KINDS[kind]
    keys = max(2, int(times * bound / size))
    rows = max(1, _STEP_BYTES // size)

    def records() -> Iterator[Touch]:
        drawn = random.Random(7)
        for n in range(10**9):
            yield Touch(n if n < keys else drawn.randrange(keys), n, size)

    pipeline = hr.Pipeline("memory")
    attach(pipeline, records)
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
    said = {
        "before": before,
        "highest": max(highest),
        "peak": peak_mib(),
        "step_s": seconds[len(seconds) // 2],
    }
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
    peak = max(of["peak"] - of["before"] for of in (first, again))
    everything = room["highest"] - room["before"]
    cells = [f"{mib:.0f}" for mib in (*grown, peak, everything)]
    cost = [f"{again['step_s'] * 1e3:.0f}", f"{again['step_s'] / room['step_s']:.1f}"]
    return [kind, str(chosen.mib), *cells, *cost], grown


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
    rows = [
        [
            "state",
            "bound MiB",
            "MiB",
            "MiB after a restart",
            "MiB within a step",
            "MiB with room",
            "step ms",
            "times that with room",
        ]
    ]
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
