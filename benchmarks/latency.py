"""Latency in open loop: from the time that a record was scheduled to arrive until its step is released.

Records come at a constant rate, whatever the pipeline does: one that has to wait is not forgiven its
waiting. One computation, and three with different keys one after another; durable, exactly once, released
to a sink. Beside it the bare jobs that a step rides on, of the exchange that ran, measured in the same run
after each part of it; what computations add is compared with what the bare jobs add. No computation may
hold the watermark back: the lag is that of the last one's output behind the newest event time.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from benchmarks.floor import driver_floor, shuffle_floor
from benchmarks.harness import figure, local_session, median_ms, parser, report, timed
from headrace.driver import Driver
from headrace.runners.spark import SparkRunner
from headrace.schema import ValueType, value_type_of
from headrace.sources.base import TIMESTAMP_COLUMN, Limit, Offer, Position, Split
from headrace.storage import LocalStore

PERCENTILES = (50, 90, 95, 99, 99.9, 100)
DEPTHS = (1, 3)
#: On a machine that is busy with something else, time alone may see hardly a step.
FEWEST_STEPS = 10
#: Fewer records are read by one task.
WORTH_TWO_TASKS = 20_000
#: percentile → how many times the floor it may take
OVER_FLOOR = {50: 2.0, 95: 2.5}
#: percentile → what the better of others took in ms, at 10 000 records/s and one computation:
#: MillWheel (p50, p95) and Spark's real-time mode with its own stateful operator in the JVM (p99).
OTHERS_MS = {50: 33.7, 95: 93.8, 99: 141.0}
GOAL_COMPUTATION = 1.25


class Paced(hr.sources.Source):
    """Records at a constant rate since a start; a record's number says when it is scheduled."""

    bounded = False

    def __init__(self, rate: int, keys: int) -> None:
        self.rate = rate
        self._keys = keys
        self._begun_us: int | None = None

    def values(self) -> ValueType:
        return value_type_of({"a": int, "b": int, "c": int})

    def start(self) -> Position:
        return 0

    def scheduled_us(self, number: Any) -> Any:
        """Return when a record is scheduled, in microseconds since 1970."""
        assert self._begun_us is not None
        return self._begun_us + number * 1_000_000 // self.rate

    def elapsed_s(self) -> float:
        """Return how long ago the first record was scheduled."""
        return time.time() - self.scheduled_us(0) / 1e6

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        now = time.time_ns() // 1_000
        if self._begun_us is None:
            self._begun_us = now
        there = (now - self._begun_us) * self.rate // 1_000_000
        end = min(there, position + limit.rows)
        return None if end <= position else Offer(end, end - position, (end - position) * 48)

    def splits(self, start: Position, end: Position) -> list[Split]:
        if end - start < WORTH_TWO_TASKS:
            return [Split([start, end, self._begun_us])]
        middle = (start + end) // 2
        return [Split([start, middle, self._begun_us]), Split([middle, end, self._begun_us])]

    def read(self, split: Split) -> pa.Table:
        first, last, begun = split.spec
        columns = np.random.default_rng(first).integers(0, self._keys, (3, last - first))
        times = begun + np.arange(first, last) * 1_000_000 // self.rate
        return pa.table(
            {TIMESTAMP_COLUMN: times, "a": columns[0], "b": columns[1], "c": columns[2]}
        )


class Hop(hr.ColumnarComputation):
    """Counts by its key, and passes records on for the next computation to key otherwise."""

    counts = hr.TableState({"count": int})
    out = hr.Output({"a": int, "b": int, "c": int})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        rows.upsert(count=rows["count"] + batch.counts)
        ctx.produce("out", batch.row_keys, batch.records)


@dataclass
class Seen:
    """What a run showed, once warm."""

    steps: list[float] = field(default_factory=list)
    phases: Counter[str] = field(default_factory=Counter)
    exchanges: Counter[str] = field(default_factory=Counter)
    lag_us: int = 0

    def add(self, summary: hr.StepSummary, last: str) -> None:
        """Take in a step; ``last`` is the last computation."""
        self.steps.append(summary.seconds)
        self.phases.update(summary.phases)
        self.exchanges[summary.exchange] += 1
        newest = summary.head.highest["records"]
        self.lag_us = max(self.lag_us, newest - summary.head.watermark_of(last)[1])

    @property
    def exchange(self) -> str:
        """The exchange that ran, most of the time."""
        return self.exchanges.most_common(1)[0][0]

    @property
    def mean_phases_ms(self) -> dict[str, float]:
        """The mean phases of a step."""
        return {name: spent / len(self.steps) * 1e3 for name, spent in self.phases.items()}


def measure(context: Any, rate: int, depth: int, seconds: float, warm: float) -> tuple[Any, Seen]:
    """Return the latencies of all records after the warm ones, in seconds, and what else was seen."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-latency-"))
    pipeline, source = hr.Pipeline("latency"), Paced(rate, 100_000)
    stream: Any = pipeline.inject("records", source)
    for number, key in enumerate("abc"[:depth]):
        stream = pipeline.compute(f"hop{number}", Hop(), keys={stream: key})
    released: dict[int, int] = {}
    pipeline.sink(
        "out",
        stream,
        hr.sinks.Calls(lambda step, rows: released.update({step: time.time_ns() // 1_000})),
    )
    driver = Driver(
        pipeline, LocalStore(folder), SparkRunner(context), workers=2, bins=256,
        settings=hr.Settings(exchange="auto"),
    )  # fmt: skip
    ends: dict[int, int] = {}
    seen = Seen()

    def note(summary: hr.StepSummary) -> None:
        ends[summary.step] = summary.head.positions["records"]
        elapsed = source.elapsed_s()
        if elapsed > warm:
            seen.add(summary, f"hop{depth - 1}")
        if elapsed > warm + seconds and len(seen.steps) > FEWEST_STEPS:
            driver.ask_to_stop(drain=False)

    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
        shutil.rmtree(folder, ignore_errors=True)
    found, before = [], 0
    for step in sorted(ends):
        numbers, before = np.arange(before, ends[step]), ends[step]
        if step in released and numbers.size and numbers[0] > rate * warm:
            found.append((released[step] - source.scheduled_us(numbers)) / 1e6)
    return np.concatenate(found), seen


class Floors:
    """The bare jobs by exchange and number of computations, measured after each run of theirs."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._jobs: dict[tuple[str, int], Any] = {}
        self._seconds: dict[tuple[str, int], list[float]] = {}

    def measure(self, exchange: str, times: int) -> None:
        """Run those of an exchange so many times; the first time they are warmed up."""
        for depth in DEPTHS:
            case = exchange, depth
            if case not in self._jobs:
                self._jobs[case] = self._job(*case)
                self._seconds[case] = []
                timed(self._jobs[case], times)
            self._seconds[case] += timed(self._jobs[case], times)

    def _job(self, exchange: str, depth: int) -> Any:
        if exchange == "shuffle":
            return shuffle_floor(self._context, depth)
        one = driver_floor(self._context)
        jobs = depth + 1 if exchange == "host" else depth  # there, reading is a job too
        return lambda: [one() for _ in range(jobs)]

    def ms(self, exchange: str, depth: int) -> float:
        """Return the median of a bare job, in milliseconds."""
        return median_ms(self._seconds[exchange, depth])

    def figures(self) -> list[dict[str, Any]]:
        """Return them as figures."""
        return [
            figure(f"floor_p50_ms_{exchange}_{depth}", self.ms(exchange, depth), "ms")
            for exchange, depth in self._jobs
        ]


def at_most(name: str, value: float, unit: str, goal: float | None) -> dict[str, Any]:
    """Return a figure that may have a highest value."""
    return figure(name, value, unit, *((f"<= {goal:g}", value <= goal) if goal else ()))


def over_floor(latencies: Any, floor: float, suffix: str) -> list[dict[str, Any]]:
    """Return the latencies of one computation over the floor, p95 first."""
    return [
        at_most(f"strong_p{p}_over_floor{suffix}", float(np.percentile(latencies, p)) * 1e3 / floor,
                "x", OVER_FLOOR[p])
        for p in sorted(OVER_FLOOR, reverse=True)
    ]  # fmt: skip


def computation_figures(rate: int, runs: dict[int, Seen], floors: Floors) -> list[dict[str, Any]]:
    """Return what a computation more costs over what it adds to the bare jobs, and the lag."""
    few, many = (runs[depth] for depth in DEPTHS)
    added = statistics.median(many.steps) - statistics.median(few.steps)
    bare = floors.ms(many.exchange, DEPTHS[1]) - floors.ms(many.exchange, DEPTHS[0])
    lag = max(seen.lag_us for seen in runs.values()) / 1e3
    return [
        at_most(f"computation_over_bare_{rate}", added * 1e3 / bare, "x", GOAL_COMPUTATION),
        figure(f"watermark_lag_ms_{rate}", lag, "ms", "= 0", lag == 0),
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rates", type=int, nargs="*", default=[10_000, 100_000])
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--warm", type=float, default=20.0)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.warm = 4.0, 3.0
    spark = local_session(2)
    # The first run would be the only one in a cold JVM.
    measure(spark.sparkContext, chosen.rates[0], max(DEPTHS), 0.0, chosen.warm)
    floors = Floors(spark.sparkContext)
    found = {}
    for rate in chosen.rates:
        for depth in DEPTHS:
            latencies, seen = measure(spark.sparkContext, rate, depth, chosen.seconds, chosen.warm)
            floors.measure(seen.exchange, 30 if chosen.quick else 200)
            found[rate, depth] = latencies, seen
    spark.stop()
    tell(found, floors, chosen)


def tell(
    found: dict[tuple[int, int], tuple[Any, Seen]], floors: Floors, chosen: argparse.Namespace
) -> None:
    """Report what was found."""
    head = ["records/s", "computations", "exchange", "steps"]
    rows = [[*head, *(f"p{p:g} ms" for p in PERCENTILES[:-1]), "max ms"]]
    figures: list[dict[str, Any]] = []
    own: list[dict[str, Any]] = []
    for (rate, depth), (latencies, seen) in found.items():
        shown = np.percentile(latencies, PERCENTILES) * 1e3
        rows.append([f"{rate:,}", str(depth), seen.exchange, str(len(seen.steps)),
                     *(f"{ms:.1f}" for ms in shown)])  # fmt: skip
        others = OTHERS_MS if (rate, depth) == (10_000, 1) else {}
        own += [
            at_most(f"strong_p{p:g}_ms_{rate}_{depth}", float(ms), "ms", others.get(p))
            for p, ms in zip(PERCENTILES, shown, strict=True)
        ]
        if depth == 1:
            suffix = "" if rate == chosen.rates[0] else f"_{rate}"
            figures += over_floor(latencies, floors.ms(seen.exchange, 1), suffix)
    for rate in chosen.rates:
        runs = {depth: found[rate, depth][1] for depth in DEPTHS}
        figures += computation_figures(rate, runs, floors)
    phases = {f"{rate}/{depth}": seen.mean_phases_ms for (rate, depth), (_, seen) in found.items()}
    title = "Latency from the scheduled time to the release"
    report(title, rows, [*figures, *floors.figures(), *own], chosen, phases=phases)


if __name__ == "__main__":
    main()
