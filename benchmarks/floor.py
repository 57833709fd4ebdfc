"""A durable, exactly-once step compared with the bare Spark job that runs it.

One computation, two workers, 10 000 records a step, 100 steps; columnar, or with ``--per-record``
user code that is called for each record. Each way to run a step is compared with its floor: the
empty job of the same stages, tasks, imports and pools. Resident workers, the default, run no job for
a step, and are compared with the bare job of one stage. The floor has the configuration that was
found to be the fastest *for the floor* (RDDs built once, collected by two gateway calls). It is
measured in the same run, before and after.
"""

from __future__ import annotations

import functools
import gc
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from benchmarks.harness import (
    figure,
    local_session,
    median_ms,
    parser,
    percentile,
    report,
    steps_of,
    timed,
)
from headrace.driver.driver import Driver
from headrace.pipeline.source import Limit, Offer, Position, Split
from headrace.runners.spark import private_api
from headrace.runners.spark.anchor import same
from headrace.runners.spark.runner import SparkRunner
from headrace.schema import ValueType, value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.storage import LocalStore


class Keys(hr.sources.Source):
    """Records with uniform keys, made where they are read, from their numbers alone."""

    def __init__(self, domain: int) -> None:
        self._domain = domain

    def values(self) -> ValueType:
        return value_type_of({"key": int})

    def start(self) -> Position:
        return 0

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        return Offer(position + limit.rows, limit.rows, limit.rows * 16)

    def splits(self, start: Position, end: Position) -> list[Split]:
        middle = (start + end) // 2
        return [Split([start, middle]), Split([middle, end])]

    def read(self, split: Split) -> pa.Table:
        first, last = split.spec
        keys = np.random.default_rng(first).integers(0, self._domain, last - first)
        times = np.arange(first, last, dtype=np.int64)
        return pa.table({TIMESTAMP_COLUMN: times, "key": keys})


class Count(hr.Computation):
    """Counts the records of each key, one by one, in the user's Python."""

    count = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1


class BatchCount(hr.ColumnarComputation):
    """Counts the records of each key, all keys of a step at once."""

    counts = hr.TableState({"count": int})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        rows.upsert(count=rows["count"] + batch.counts)


def _empty(numbers: Iterable[Any]) -> Iterator[bytes]:
    import pandas  # noqa: F401

    gc.freeze()
    list(numbers)
    yield b""


def _empty_map(numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    gc.freeze()
    list(numbers)
    yield from ((consumer, b"") for consumer in range(2))


def driver_floor(context: Any) -> Any:
    """Return the empty one-stage job, with a pool of Python processes for each of two workers."""

    def one(number: int) -> Any:
        rdd = context.parallelize([number], 1).mapPartitions(_empty)
        rdd._jrdd  # noqa: B018
        return rdd

    parts = [
        private_api.set_environment(functools.partial(one, n), context, {"HEADRACE_FLOOR": str(n)})
        for n in range(2)
    ]
    return private_api.lean_collector(context.union(parts))


def shuffle_floor(context: Any, layers: int = 1) -> Any:
    """Return the empty job with one stage to read and one for each layer, of two tasks each."""
    stage = context.parallelize(range(2), 2)
    for _ in range(layers):
        stage = stage.mapPartitions(_empty_map).partitionBy(2, same)
    rdd = stage.mapPartitions(_empty)
    collect, clean = private_api.lean_collector(rdd), private_api.shuffle_cleaner(rdd)

    def run() -> None:
        collect()
        clean()

    return run


#: By way to run a step: its exchange, the bare job, and how much of the bare job a step may take.
WAYS: dict[str, tuple[str, Callable[[Any], Callable[[], None]], float]] = {
    "resident": ("auto", driver_floor, 0.8),
    "driver": ("driver", driver_floor, 1.25),
    "shuffle": ("shuffle", shuffle_floor, 1.25),
}


def steps(
    context: Any, exchange: Any, computation: Any, rows: int, warm: int, measured: int, domain: int
) -> Any:
    """Run durable steps; return the seconds between commits, and the mean phases of a step."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-floor-"))
    pipeline = hr.Pipeline("floor")
    pipeline.compute("count", computation, keys={pipeline.inject("keys", Keys(domain)): "key"})
    driver = Driver(
        pipeline,
        LocalStore(folder),
        SparkRunner(context),
        workers=2,
        bins=256,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 30), exchange=exchange),
    )
    try:
        return steps_of(driver, warm=warm + 1, measured=measured)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=10_000, help="records a step")
    options.add_argument("--domain", type=int, default=100_000, help="how many keys there are")
    options.add_argument("--per-record", action="store_true", help="count record by record")
    options.add_argument("--steps", type=int, default=100)
    chosen = options.parse_args()
    warm = 100 if chosen.quick else 300
    spark = local_session(2)
    context = spark.sparkContext
    rows = [["workers", "floor p50 ms", "step p50 ms", "step p95 ms", "ratio"]]
    ratios = {}
    measured: dict[str, float] = {}
    all_phases: dict[str, dict[str, float]] = {}
    lines = []
    for name, (exchange, bare, _) in WAYS.items():
        floor = bare(context)
        timed(floor, warm)
        before = timed(floor, chosen.steps)
        computation = Count() if chosen.per_record else BatchCount()
        found, phases = steps(
            context, exchange, computation, chosen.rows, warm, chosen.steps, chosen.domain
        )
        after = timed(floor, chosen.steps)
        base = median_ms([*before, *after])
        measured[f"floor_p50_ms_{name}"] = base
        measured[f"step_p50_ms_{name}"] = median_ms(found)
        all_phases[name] = {phase: seconds * 1e3 for phase, seconds in phases.items()}
        ratios[name] = median_ms(found) / base
        rows.append(
            [
                name,
                f"{base:.1f}",
                f"{median_ms(found):.1f}",
                f"{percentile(found, 0.95) * 1e3:.1f}",
                f"{ratios[name]:.2f}",
            ]
        )
        inside = ", ".join(f"{phase} {seconds * 1e3:.1f}" for phase, seconds in phases.items())
        lines.append(f"phases of a {name} step (ms; those of tasks summed over tasks): {inside}")
    spark.stop()
    figures = [
        *(
            figure(f"step_over_floor_{name}", ratio, "x", f"<= {goal}", ratio <= goal)
            for (name, ratio), (_, _, goal) in zip(ratios.items(), WAYS.values(), strict=True)
        ),
        *(figure(name, value, "ms") for name, value in measured.items()),
    ]
    report(
        f"A durable step of {chosen.rows:,} records against the bare job",
        rows,
        figures,
        chosen,
        phases=all_phases,
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
