"""Latency in open loop: from the time that a record was scheduled to arrive until its step is released.

Records come at a constant rate, whatever the pipeline does: one that has to wait is not forgiven its
waiting. One computation, and three with different keys one after another; durable, exactly once, released
to a sink. Beside it the bare job that a step rides on, measured in the same run.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from benchmarks.floor import driver_floor
from benchmarks.harness import figure, local_session, parser, report, timed
from headrace.driver import Driver
from headrace.runners.spark import SparkRunner
from headrace.schema import ValueType, value_type_of
from headrace.sources.base import TIMESTAMP_COLUMN, Limit, Offer, Position, Split
from headrace.storage import LocalStore

PERCENTILES = (50, 90, 95, 99, 99.9, 100)


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

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        now = time.time_ns() // 1_000
        if self._begun_us is None:
            self._begun_us = now
        there = (now - self._begun_us) * self.rate // 1_000_000
        end = min(there, position + limit.rows)
        return None if end <= position else Offer(end, end - position, (end - position) * 48)

    def splits(self, start: Position, end: Position) -> list[Split]:
        return [Split([start, end, self._begun_us])]

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


def measure(context: Any, rate: int, depth: int, seconds: float, warm: float) -> Any:
    """Return the latencies of all records after the warm ones, in seconds, and the mean phases."""
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
    phases: dict[str, float] = {}
    begun = time.perf_counter()

    def note(summary: hr.StepSummary) -> None:
        ends[summary.step] = summary.head.positions["records"]
        if time.perf_counter() - begun > warm:
            for name, spent in summary.phases.items():
                phases[name] = phases.get(name, 0.0) + spent
        if time.perf_counter() - begun > warm + seconds:
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
    steps = max(len(found), 1)
    return np.concatenate(found), {name: spent / steps for name, spent in phases.items()}, steps


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rates", type=int, nargs="*", default=[10_000, 100_000])
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--warm", type=float, default=20.0)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.warm = 8.0, 8.0
    spark = local_session(2)
    floor = driver_floor(spark.sparkContext)
    timed(floor, 200)
    bare = np.array(timed(floor, 100)) * 1e3
    rows = [
        ["records/s", "computations", "steps", *(f"p{p:g} ms" for p in PERCENTILES[:-1]), "max ms"]
    ]
    figures: list[dict[str, Any]] = []
    phases: dict[str, Any] = {}
    p95s: dict[tuple[int, int], float] = {}
    for rate in chosen.rates:
        for depth in (1, 3):
            latencies, spent, steps = measure(
                spark.sparkContext, rate, depth, chosen.seconds, chosen.warm
            )
            found = np.percentile(latencies, PERCENTILES) * 1e3
            rows.append([f"{rate:,}", str(depth), str(steps), *(f"{ms:.1f}" for ms in found)])
            p95s[rate, depth] = float(found[2])
            phases[f"{rate}/{depth}"] = {name: value * 1e3 for name, value in spent.items()}
            for p, ms in zip(PERCENTILES, found, strict=True):
                figures.append(figure(f"strong_p{p:g}_ms_{rate}_{depth}", float(ms), "ms"))
    more = np.array(timed(floor, 100)) * 1e3
    spark.stop()
    base = float(np.median([*bare, *more]))
    first = p95s[chosen.rates[0], 1] / base
    figures.insert(0, figure("strong_p95_over_floor", first, "x", "<= 2.5", first <= 2.5))
    figures.insert(1, figure("floor_p50_ms", base, "ms"))
    report("Latency from the scheduled time to the release", rows, figures, chosen, phases=phases)


if __name__ == "__main__":
    main()
