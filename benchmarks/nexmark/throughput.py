"""Each query as fast as it goes: on Headrace, and in plain PySpark on the same session, files and batches.

``python -m benchmarks.nexmark.throughput --events 4000000 --queries q3 q5 q8``. Both read the same Parquet
files, only those columns that a query asks for, in as many tasks and rows a step. Counted are events of the
whole timeline, of all kinds. Both are durable: state, offsets and answers' place in the stream survive a
crash. Ours hand their answers to a sink that drops them, once they are staged; Spark's go to its ``noop``
sink. They take turns; what is told is the median of several runs. The first part of the events warms up,
and the last step, in which all that is open is answered here, is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.harness import figure, local_session, parser, show, write
from benchmarks.nexmark.recorded import Recorded, RecordedMarket, RecordedSparkMarket
from headrace.nexmark.queries import NAMES, module_of
from headrace.nexmark.timeline import Timeline
from headrace.runners.spark import SparkRunner

CORES = 2
#: Queries without state.
STATELESS = {"q0", "q1", "q2", "q13", "q14", "q21", "q22"}
#: So much of the events is not counted.
_WARM = 0.4

#: When so many events were done, in seconds.
Progress = list[tuple[int, float]]


def own(query: Any, recorded: Recorded, spark: Any, step: int, folder: Path) -> Progress:
    """Run a query on Headrace."""
    pipeline, found = hr.Pipeline("nexmark"), []
    market = RecordedMarket(pipeline, recorded)
    node = query.migratable(market)
    pipeline.sink("answers", node, hr.sinks.Calls(lambda step, rows: None))

    def note(summary: hr.StepSummary) -> None:
        found.append((market.done(summary.head), time.perf_counter()))

    job = hr.run(
        pipeline, storage=folder, workers=CORES, bins=256, runner=SparkRunner(spark.sparkContext),
        settings=hr.Settings(limit=hr.Limit(step, 1 << 40)), listeners=[note],
    )  # fmt: skip
    with job:
        job.drain()
    return found


def native(query: Any, recorded: Recorded, spark: Any, step: int, folder: Path) -> Progress:
    """Run a query in plain PySpark."""
    market = RecordedSparkMarket(spark, recorded, step // recorded.piece)
    writer = query.native(market).writeStream.format("noop")
    writer = writer.outputMode("update" if hasattr(query, "LATEST") else "append")
    running = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    running.awaitTermination()
    found: Progress = []
    at, done = 0.0, 0
    for progress in running.recentProgress:
        at += progress["durationMs"]["triggerExecution"] / 1e3
        if progress["numInputRows"]:
            done += step
            found.append((done, at))
    return found


def per_core(found: Progress, events: int, step: int) -> float:
    """Return how many events a second one core has done, once it was warm and before the last step."""
    first = next(at for at in found if at[0] >= _WARM * events)
    last = next(at for at in found if at[0] >= events - step)
    return (last[0] - first[0]) / (last[1] - first[1]) / CORES


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--events", type=int, default=12_000_000)
    options.add_argument("--step", type=int, default=1_000_000)
    options.add_argument("--rate", type=int, default=100_000, help="events a second of event time")
    options.add_argument("--in-flight", type=int, default=1_000)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--heap", default="4g", help="of the JVM, for both")
    options.add_argument("--queries", nargs="*", default=[name for name in NAMES if name != "q12"])
    chosen = options.parse_args()
    if chosen.quick:
        chosen.events, chosen.step, chosen.runs = 2_000_000, 250_000, 1
    timeline = Timeline(events=chosen.events, rate=chosen.rate, in_flight=chosen.in_flight)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {chosen.heap} pyspark-shell"
    spark = local_session(CORES)
    spark.conf.set("spark.sql.shuffle.partitions", str(CORES))
    rows, figures = [["query", "own /s/core", "PySpark /s/core", "ratio"]], []
    with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
        recorded = Recorded(folder, timeline, chosen.step // CORES)
        recorded.write()
        for name in chosen.queries:
            speed = speeds(module_of(name), recorded, spark, chosen)
            rows.append(row_of(name, speed))
            figures += figures_of(name, speed)
            print("  ".join(rows[-1]), flush=True)
            write(rows, figures, chosen)
    spark.stop()
    show("NEXMark, as fast as it goes", rows, figures)


def speeds(
    query: Any, recorded: Recorded, spark: Any, chosen: argparse.Namespace
) -> dict[str, float]:
    """Run a query on each side, in turns; return the median of what a core did in a second."""
    sides: dict[str, Callable[..., Progress]] = {"own": own}
    if hasattr(query, "native"):
        sides["native"] = native
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(chosen.runs):
        for side, run in sides.items():
            with tempfile.TemporaryDirectory(prefix="nexmark-state-") as folder:
                progress = run(query, recorded, spark, chosen.step, Path(folder))
            found[side].append(per_core(progress, chosen.events, chosen.step))
    return {side: statistics.median(speed) for side, speed in found.items()}


def row_of(name: str, speed: dict[str, float]) -> list[str]:
    """Return a query's line of the table."""
    shown = [f"{speed[side]:,.0f}" if side in speed else "-" for side in ("own", "native")]
    return [name, *shown, f"{speed['own'] / speed['native']:.2f}" if "native" in speed else "-"]


def figures_of(name: str, speed: dict[str, float]) -> list[dict[str, Any]]:
    """Return a query's figures; Spark is not asked to be overtaken where there is no state."""
    found = [figure(f"{name}_{side}", each, "events/s/core") for side, each in speed.items()]
    if "native" not in speed:
        return found
    ratio = speed["own"] / speed["native"]
    goal = () if name in STATELESS else ("> 1", ratio > 1)
    return [*found, figure(f"{name}_ratio", ratio, "x", *goal)]


if __name__ == "__main__":
    main()
