"""Each query as fast as it goes: on Headrace, and in plain PySpark on the same session, events and
batches.

``python -m benchmarks.nexmark.throughput --events 4000000 --queries q3 q5 q8``. Counted are events of
the whole timeline, of all kinds, though each side makes only those columns that a query asks for, and
in the same tasks. Both are durable: state, offsets and answers' place in the stream survive a crash.
Ours hand their answers to a sink that drops them, once they are staged; Spark's go to its ``noop``
sink. The first part of the events warms up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.harness import figure, local_session, parser, report
from headrace.nexmark.queries import NAMES, module_of
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.spark_market import SparkMarket
from headrace.nexmark.timeline import Timeline
from headrace.runners.spark import SparkRunner

CORES = 2
#: Queries without state: Spark is not asked to be overtaken there.
STATELESS = {"q0", "q1", "q2", "q13", "q14", "q21", "q22"}
#: So much of the events is not counted.
_WARM = 0.4

#: When so many events were done, in seconds.
Progress = list[tuple[int, float]]


def own(
    query: Any, timeline: Timeline, spark: Any, chosen: argparse.Namespace, folder: Path
) -> Progress:
    """Run a query on Headrace."""
    pipeline, found = hr.Pipeline("nexmark"), []
    market = Market(pipeline, timeline, tasks=CORES)
    node = query.migratable(market)
    pipeline.sink("answers", node, hr.sinks.Calls(lambda step, rows: None))

    def note(summary: hr.StepSummary) -> None:
        found.append((market.done(summary.head), time.perf_counter()))

    job = hr.run(
        pipeline, storage=folder, workers=CORES, bins=256, runner=SparkRunner(spark.sparkContext),
        settings=hr.Settings(limit=hr.Limit(chosen.step, 1 << 40)), listeners=[note],
    )  # fmt: skip
    with job:
        job.drain()
    return found


def native(
    query: Any, timeline: Timeline, spark: Any, chosen: argparse.Namespace, folder: Path
) -> Progress:
    """Run a query in plain PySpark."""
    assert timeline.events is not None
    options = {
        "events": timeline.events, "rate": timeline.rate, "inFlight": timeline.in_flight,
        "eventsPerTrigger": chosen.step, "parts": CORES,
    }  # fmt: skip
    found: Progress = []
    writer = query.native(SparkMarket(spark, options)).writeStream.format("noop")
    writer = writer.outputMode("update" if hasattr(query, "LATEST") else "append")
    running = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    running.awaitTermination()
    at = 0.0
    for progress in running.recentProgress:
        if progress["numInputRows"]:
            at += progress["durationMs"]["triggerExecution"] / 1e3
            done = min(json.loads(source["endOffset"])["events"] for source in progress["sources"])
            found.append((done, at))
    return found


def per_core(found: Progress, events: int) -> float:
    """Return how many events a second one core has done, once it was warm."""
    first = next(at for at in found if at[0] >= _WARM * events)
    last = next(at for at in found if at[0] >= events)
    return (last[0] - first[0]) / (last[1] - first[1]) / CORES


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--events", type=int, default=10_000_000)
    options.add_argument("--step", type=int, default=1_000_000)
    options.add_argument("--rate", type=int, default=100_000, help="events a second of event time")
    options.add_argument("--in-flight", type=int, default=1_000)
    options.add_argument("--queries", nargs="*", default=[name for name in NAMES if name != "q12"])
    chosen = options.parse_args()
    if chosen.quick:
        chosen.events, chosen.step = 2_000_000, 250_000
    timeline = Timeline(events=chosen.events, rate=chosen.rate, in_flight=chosen.in_flight)
    spark = local_session(CORES)
    spark.conf.set("spark.sql.shuffle.partitions", str(CORES))
    rows, figures = [["query", "own /s/core", "PySpark /s/core", "ratio"]], []
    for name in chosen.queries:
        query = module_of(name)
        speed = {"own": measured(own, query, timeline, spark, chosen)}
        figures.append(figure(f"{name}_own", speed["own"], "events/s/core"))
        if hasattr(query, "native"):
            speed["native"] = measured(native, query, timeline, spark, chosen)
            ratio = speed["own"] / speed["native"]
            figures.append(figure(f"{name}_native", speed["native"], "events/s/core"))
            goal = () if name in STATELESS else ("> 1", ratio > 1)
            figures.append(figure(f"{name}_ratio", ratio, "x", *goal))
        shown = [f"{speed[side]:,.0f}" if side in speed else "-" for side in ("own", "native")]
        rows.append(
            [name, *shown, f"{speed['own'] / speed['native']:.2f}" if "native" in speed else "-"]
        )
        print("  ".join(rows[-1]), flush=True)
    spark.stop()
    report("NEXMark, as fast as it goes", rows, figures, chosen)


def measured(
    run: Callable[..., Progress],
    query: Any,
    timeline: Timeline,
    spark: Any,
    chosen: argparse.Namespace,
) -> float:
    """Run a side in a folder of its own; return its events a second and core."""
    folder = Path(tempfile.mkdtemp(prefix="nexmark-"))
    try:
        return per_core(run(query, timeline, spark, chosen, folder), chosen.events)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
