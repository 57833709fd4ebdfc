"""Runs a case on Spark's own engine and on Headrace; returns what each yields, batch by batch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace as hr
from tests.spark.conftest import session
from tests.spark.processors.random_processors import INPUT, OUTPUT, Case, processor_of, write_batch

#: What came of each batch that yielded anything: its rows, sorted.
Batches = list[list[str]]
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


def in_utc(**settings: str) -> Iterator[Any]:
    """Yield a session whose workers, and this process, have UTC as their time zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    made = session("local[2]", **settings)
    yield made
    made.stop()
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def read(spark: Any, case: Case, folder: Path) -> Any:
    """Return the grouped input of a case."""
    stream = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(folder))
    if case.watermark:
        stream = stream.withWatermark("t", "10 seconds")
    return stream.groupBy(*case.keys)


def shown(rows: Any) -> list[str]:
    """Return rows in a form that can be compared. Their order within a batch is no promise."""
    return sorted(repr(row.asDict(recursive=True)) for row in rows)


class Noted:
    """Notes what each batch yields."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}
        self.left = 0
        self.seen = threading.Event()

    def expect(self, calls: int) -> None:
        """Wait for a number of calls from now on; ``seen`` is set then."""
        self.left = calls
        self.seen.clear()

    def __call__(self, frame: Any, number: int) -> None:
        rows = shown(frame.collect())
        if rows:
            self.batches[number] = rows
        self.left -= 1
        if self.left <= 0:
            self.seen.set()

    def in_order(self) -> Batches:
        return [self.batches[number] for number in sorted(self.batches)]


def run_on_spark(
    frame: Any, checkpoint: Path, noted: Noted, *, output_mode: str = "update", calls: int = 0
) -> None:
    """Run a query of Spark's own until its input has been read.

    Args:
        frame: what is written.
        checkpoint: the query's.
        noted: where each batch goes.
        output_mode: the query's.
        calls: after how many batches it is stopped, if it would never end; 0 if it ends.
    """
    writer = frame.writeStream.outputMode(output_mode).foreachBatch(noted)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if calls:  # (with availableNow it never ends: it runs empty batches)
        noted.expect(calls)
        query = writer.start()
        noted.seen.wait(60)
        query.stop()
    else:
        writer.trigger(availableNow=True).start().awaitTermination()


def run_on_headrace(
    pipeline: Any,
    stream: Any,
    schema: Any,
    state: Path,
    noted: Noted,
    runner: Any = "inline",
    workers: int = 2,
) -> None:
    """Run a pipeline until its input has been read, and note the rows of a stream.

    Args:
        pipeline: the pipeline.
        stream: the stream.
        schema: what its rows are in Spark.
        state: a folder for its state.
        noted: where each step goes.
        runner, workers: what runs it.
    """

    def note(number: int, rows: Any) -> None:
        own = rows.select(range(rows.num_columns - len(schema.names), rows.num_columns))
        found = SparkSession.active().createDataFrame(own.rename_columns(schema.names), schema)
        noted(found, number)

    pipeline.sink("out", stream, hr.sinks.Calls(note))
    with hr.run(pipeline, storage=str(state / "state"), runner=runner, workers=workers) as job:
        job.catch_up()


#: Reads what is in a folder, with a folder for state. Notes what each of this many files yields.
Engine = Callable[[Path, Path, Noted, int], None]


def batches_of(
    case: Case, folder: Path, on_spark: Engine, on_headrace: Engine, write: Any = write_batch
) -> tuple[Batches, Batches]:
    """Give both engines the files of a case, with its restart. Return what each yields."""
    files = folder / "in"
    files.mkdir(parents=True)
    theirs, ours = Noted(), Noted()
    for first, last in ((0, case.restart), (case.restart, case.batches)):
        if first == last:
            continue
        for number in range(first, last):
            write(case, number, files)
        on_spark(files, folder / "spark", theirs, last - first)
        on_headrace(files, folder / "headrace", ours, last - first)
    return theirs.in_order(), ours.in_order()


def both(spark: Any, case: Case, folder: Path, runner: Any = "inline") -> tuple[Batches, Batches]:
    """Run a case on both engines. Return what Spark and Headrace yield."""

    def on_spark(files: Path, state: Path, noted: Noted, count: int) -> None:
        grouped = read(spark, case, files)
        own = grouped.transformWithStateInPandas if case.pandas else grouped.transformWithState
        frame = own(processor_of(case), OUTPUT, "Update", case.mode)
        run_on_spark(frame, state, noted, calls=count + 3 if case.mode == "processingTime" else 0)

    def on_headrace(files: Path, state: Path, noted: Noted, count: int) -> None:
        pipeline = hr.Pipeline("fuzz")
        doors = hr.spark
        door = doors.transform_with_state_in_pandas if case.pandas else doors.transform_with_state
        made = door(
            read(spark, case, files),
            processor_of(case),
            OUTPUT,
            "Update",
            case.mode,
            pipeline=pipeline,
            checkpoint=str(state / "input"),
        )
        run_on_headrace(pipeline, made.stream, made.schema, state, noted, runner)

    return batches_of(case, folder, on_spark, on_headrace)
