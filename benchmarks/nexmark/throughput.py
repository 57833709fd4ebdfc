"""Each query as fast as it goes: on Headrace, and in plain PySpark on the same session, files and batches.

``python -m benchmarks.nexmark.throughput --events 4000000 --queries q3 q5 q8``. Both read the same Parquet
files, only those columns that a query asks for, in as many tasks and rows a step. Counted are events of the
whole timeline, of all kinds. Both are durable: state, offsets and answers' place in the stream survive a
crash. Ours hand their answers to a sink that drops them, once they are staged; Spark's go to its ``noop``
sink. Where plain PySpark can do in several ways, the fastest stands beside ours: with state in Spark's
default store or in RocksDB; 4 and 6, which need ``transformWithState`` and so RocksDB, also with
``foreachBatch``, which keeps means in files (:mod:`benchmarks.nexmark.by_batches`). Each way has a run that
is not counted, since a query gets faster in its session, the default store two; the last of these decide
between the two stores. Then they take turns, each first in every other one. What is told is the median.
Counted are of eight steps the fifth to the seventh: before that both sides get warm, and in the last all
that is open is answered here. Query 12 is by the clock: its windows are those in which it runs, so answers
differ.

How many answers each gave stands beside it: Spark leaves open what its watermark has not passed at the end,
and answers again with each micro-batch where a query has no end (in update mode).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import headrace as hr
from benchmarks.evaluation.common import options as options_of
from benchmarks.harness import figure, local_session, show
from benchmarks.nexmark.by_batches import QUERIES as BY_BATCHES
from benchmarks.nexmark.recorded import Recorded, RecordedMarket, RecordedSparkMarket
from benchmarks.parts import Parts, Told
from headrace.nexmark.queries import NAMES, module_of
from headrace.nexmark.queries.spark_market import native_writer
from headrace.nexmark.timeline import Timeline
from headrace.runners.spark.runner import SparkRunner

CORES = 2
#: Queries without state.
STATELESS = {"q0", "q1", "q2", "q13", "q14", "q21", "q22"}
#: Where Spark keeps its state, and where else it can.
STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: With it, RocksDB writes what a batch has changed, and not all that there is.
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
#: So much of the events is not counted.
_WARM = 0.4


class Ran(msgspec.Struct):
    """How a query ran.

    Attributes:
        progress: when so many events were done, in seconds.
        answers: how many there were.
        late: how many rows were dropped, because the watermark had passed them.
    """

    progress: list[tuple[int, float]] = []
    answers: int = 0
    late: int = 0

    def per_core(self, events: int, step: int) -> float:
        """Return how many events a second one core has done, once warm and before the last step."""
        first = next(at for at in self.progress if at[0] >= _WARM * events)
        last = next(at for at in self.progress if at[0] >= events - step)
        return (last[0] - first[0]) / (last[1] - first[1]) / CORES


class Side(msgspec.Struct, frozen=True):
    """What all runs of one side came to.

    Attributes:
        speed: events a second and core, in the median run.
        runs: the same of each run.
        answers, late: as :class:`Ran` has them, of the last run.
    """

    speed: float
    runs: list[float]
    answers: int
    late: int


#: What a query has found, by side.
Found = dict[str, Side]


def own(query: Any, recorded: Recorded, spark: Any, step: int, folder: Path) -> Ran:
    """Run a query on Headrace."""
    return on_headrace(query.migratable, recorded, spark, step, folder)


def on_headrace(
    draw: Callable[[RecordedMarket], Any], recorded: Recorded, spark: Any, step: int, folder: Path
) -> Ran:
    """Run a pipeline over the recorded market; ``draw`` returns what its sink receives."""
    pipeline, ran = hr.Pipeline("nexmark"), Ran()
    market = RecordedMarket(pipeline, recorded)
    answers = draw(market)

    def take(step: int, rows: pa.Table) -> None:
        ran.answers += len(rows)

    def note(summary: hr.StepSummary) -> None:
        ran.progress.append((market.done(summary.head), time.perf_counter()))

    pipeline.sink("answers", answers, hr.sinks.Calls(take))

    job = hr.run(
        pipeline,
        storage=folder,
        workers=CORES,
        bins=256,
        runner=SparkRunner(spark.sparkContext),
        settings=hr.Settings(limit=hr.Limit(step, 1 << 40)),
        listeners=[note],
    )
    with job:
        job.drain()
    return ran


def native(query: Any, recorded: Recorded, spark: Any, step: int, folder: Path) -> Ran:
    """Run a query in plain PySpark."""
    market = RecordedSparkMarket(spark, recorded, step // recorded.piece)
    writer = native_writer(query, market).format("noop")
    return _ran(writer, step, folder, Ran())


def on_rocksdb(query: Any, recorded: Recorded, spark: Any, step: int, folder: Path) -> Ran:
    """Run a query in plain PySpark, with its state in the other store."""
    market = RecordedSparkMarket(spark, recorded, step // recorded.piece)
    writer = native_writer(query, market).format("noop")
    spark.conf.set(STORE, ROCKSDB)
    return _ran(writer, step, folder, Ran())


def by_batches(query: Any, recorded: Recorded, spark: Any, step: int, folder: Path) -> Ran:
    """Run a query in plain PySpark, its last part by ``foreachBatch``."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    kept, ran = BY_BATCHES[name_of(query)](folder / "kept"), Ran()
    market = RecordedSparkMarket(spark, recorded, step // recorded.piece)

    def take(batch: Any, number: int) -> None:
        told = Observation()
        answers = kept.answer(batch, number).observe(told, f.count(f.lit(1)).alias("rows"))
        answers.write.format("noop").mode("append").save()
        ran.answers += told.get["rows"]
        spark.catalog.clearCache()

    spark.conf.unset(STORE)  # (4 and 6 in their other form have set it)
    writer = kept.stream(market).writeStream.outputMode("append").foreachBatch(take)
    return _ran(writer, step, folder / "checkpoint", ran)


def _ran(writer: Any, step: int, folder: Path, ran: Ran) -> Ran:
    running = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    running.awaitTermination()
    at, done = 0.0, 0
    for progress in running.recentProgress:
        at += progress["durationMs"]["triggerExecution"] / 1e3
        if progress["numInputRows"]:
            done += step
            ran.progress.append((done, at))
        ran.answers += max(0, progress["sink"]["numOutputRows"])  # (-1 where it is not known)
        ran.late += sum(of["numRowsDroppedByWatermark"] for of in progress["stateOperators"])
    return ran


def main() -> int:
    options = options_of("throughput", __doc__)
    options.add_argument("--events", type=int, default=8_000_000)
    options.add_argument("--step", type=int, default=1_000_000)
    options.add_argument("--rate", type=int, default=100_000, help="events a second of event time")
    options.add_argument("--in-flight", type=int, default=50_000, help="auctions that are open")
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--heap", default="8g", help="of the JVM, for both")
    options.add_argument("--queries", nargs="*", default=list(NAMES))
    Parts.add_option(options)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.events, chosen.step, chosen.runs = 2_000_000, 250_000, 1
        chosen.queries = ["q1", "q3", "q4"]
    parts = Parts(Found, list(NAMES), options, chosen, "queries")
    failed = 0
    if missing := parts.missing(chosen.queries):
        with recorded_in(chosen) as recorded, session(chosen) as spark:

            def measured(name: str) -> Found:
                found = sides_of(runs_of(module_of(name), recorded, spark, chosen), chosen)
                print("  ".join(row_of(name, found["own"], *fastest_of(found))), flush=True)
                return found

            failed = parts.measure(missing, measured, told)
    show("NEXMark, as fast as it goes", *told(parts.found))
    return failed


@contextmanager
def recorded_in(chosen: argparse.Namespace) -> Iterator[Recorded]:
    """Write the events to files, for as long as they are read."""
    timeline = Timeline(events=chosen.events, rate=chosen.rate, in_flight=chosen.in_flight)
    with tempfile.TemporaryDirectory(prefix="nexmark-", ignore_cleanup_errors=True) as folder:
        recorded = Recorded(folder, timeline, chosen.step // CORES)
        recorded.write()
        yield recorded


@contextmanager
def session(chosen: argparse.Namespace) -> Iterator[Any]:
    """Start the session that both sides run in."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {chosen.heap} pyspark-shell"
    spark = local_session(CORES)
    spark.conf.set("spark.sql.shuffle.partitions", str(CORES))
    spark.conf.set(CHANGELOG, "true")
    try:
        yield spark
    finally:
        spark.stop()


def runs_of(
    query: Any, recorded: Recorded, spark: Any, chosen: argparse.Namespace
) -> dict[str, list[Ran]]:
    """Run a query on each side: once for nobody, then in turns."""

    def run(side: str) -> Ran:
        with tempfile.TemporaryDirectory(
            prefix="nexmark-state-", ignore_cleanup_errors=True
        ) as folder:
            return sides[side](query, recorded, spark, chosen.step, Path(folder))

    def speed(side: str) -> float:
        return run(side).per_core(chosen.events, chosen.step)

    sides = sides_for(query)
    first = {side: speed(side) for side in sides}
    if "rocksdb" in sides:
        first["native"] = speed("native")  # (its first run has had the code compiled for both)
        del sides[min(("native", "rocksdb"), key=lambda side: first[side])]
    found: dict[str, list[Ran]] = {side: [] for side in sides}
    for turn in range(chosen.runs):
        for side in list(sides)[:: -1 if turn % 2 else 1]:
            found[side].append(run(side))
    return found


def sides_for(query: Any) -> dict[str, Callable[..., Ran]]:
    """Return all ways in which a query is run."""
    sides: dict[str, Callable[..., Ran]] = {"own": own, "native": native}
    if name_of(query) not in STATELESS and not hasattr(query, "BY_HAND"):
        sides["rocksdb"] = on_rocksdb
    if name_of(query) in BY_BATCHES:
        sides["batches"] = by_batches
    return sides


def name_of(query: Any) -> str:
    """Return what a query is called."""
    return str(query.__name__).rpartition(".")[2]


def sides_of(found: dict[str, list[Ran]], chosen: argparse.Namespace) -> Found:
    """Return what the runs of each side came to."""
    made: Found = {}
    for side, runs in found.items():
        speeds = [run.per_core(chosen.events, chosen.step) for run in runs]
        made[side] = Side(statistics.median(speeds), speeds, runs[-1].answers, runs[-1].late)
    return made


#: What plain PySpark's ways are called.
WAYS = {"native": "as it comes", "rocksdb": "state in RocksDB", "batches": "foreachBatch"}


def fastest_of(found: Found) -> tuple[str, Side]:
    """Return plain PySpark's fastest way, and what it came to."""
    fastest = max((side for side in found if side in WAYS), key=lambda side: found[side].speed)
    return WAYS[fastest], found[fastest]


def told(found: dict[str, Found]) -> Told:
    """Return the table and the figures of what was found."""
    rows = [
        [
            "query",
            "own /s/core",
            "PySpark /s/core",
            "ratio",
            "of the runs",
            "PySpark's way",
            "own answers",
            "PySpark answers",
            "PySpark drops as late",
        ]
    ]
    figures: list[dict[str, Any]] = []
    for name, of in found.items():
        rows.append(row_of(name, of["own"], *fastest_of(of)))
        figures += figures_of(name, of)
    return rows, figures


def row_of(name: str, ours: Side, way: str, theirs: Side) -> list[str]:
    """Return a query's line of the table."""
    speeds = [f"{ours.speed:,.0f}", f"{theirs.speed:,.0f}", f"{ours.speed / theirs.speed:.2f}"]
    worst, best = min(ours.runs) / max(theirs.runs), max(ours.runs) / min(theirs.runs)
    speeds += [f"{worst:.2f} to {best:.2f}", way]
    return [name, *speeds, f"{ours.answers:,}", f"{theirs.answers:,}", f"{theirs.late:,}"]


def figures_of(name: str, of: Found) -> list[dict[str, Any]]:
    """Return a query's figures; Spark is not asked to be overtaken where there is no state."""
    found = [figure(f"{name}_{side}", each.speed, "events/s/core") for side, each in of.items()]
    ratio = of["own"].speed / fastest_of(of)[1].speed
    goal = () if name in STATELESS else ("> 1", ratio > 1)
    return [*found, figure(f"{name}_ratio", ratio, "x", *goal)]


if __name__ == "__main__":
    sys.exit(main())
