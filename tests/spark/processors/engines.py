"""Runs a case on Spark's own engine and on Headrace; returns what each yields, batch by batch."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import headrace as hr
from tests.spark.processors.random_processors import INPUT, OUTPUT, Case, processor_of, write_batch

#: What came of each batch that yielded anything: its rows, sorted.
Batches = list[list[str]]
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


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


def on_spark(
    spark: Any, case: Case, folder: Path, checkpoint: Path, noted: Noted, files: int
) -> None:
    """Let Spark's engine read what is in a folder."""
    grouped = read(spark, case, folder)
    transform = grouped.transformWithStateInPandas if case.pandas else grouped.transformWithState
    frame = transform(processor_of(case), OUTPUT, "Update", case.mode)
    writer = frame.writeStream.outputMode("update").foreachBatch(noted)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if case.mode == "processingTime":  # (with availableNow it never ends: it runs empty batches)
        noted.expect(files + 3)
        query = writer.start()
        noted.seen.wait(60)
        query.stop()
    else:
        writer.trigger(availableNow=True).start().awaitTermination()


def on_headrace(
    spark: Any, case: Case, folder: Path, state: Path, noted: Noted, runner: Any = "inline"
) -> None:
    """Let Headrace read what is in a folder."""
    pipeline = hr.Pipeline("fuzz")
    door = hr.spark.transform_with_state_in_pandas if case.pandas else hr.spark.transform_with_state
    made = door(
        read(spark, case, folder),
        processor_of(case),
        OUTPUT,
        "Update",
        case.mode,
        pipeline=pipeline,
        checkpoint=str(state / "input"),
    )
    from headrace.spark.writing import frame_of

    pipeline.sink(
        "out", made.stream, hr.sinks.Calls(lambda n, rows: noted(frame_of(made, rows), n))
    )
    with hr.run(pipeline, storage=str(state / "state"), runner=runner, workers=2) as job:
        job.catch_up()


def both(spark: Any, case: Case, folder: Path, runner: Any = "inline") -> tuple[Batches, Batches]:
    """Run a case on both engines, with its restart. Return what Spark and Headrace yield."""
    files = folder / "in"
    files.mkdir(parents=True)
    theirs, ours = Noted(), Noted()
    for first, last in ((0, case.restart), (case.restart, case.batches)):
        if first == last:
            continue
        for number in range(first, last):
            write_batch(case, number, files)
        on_spark(spark, case, files, folder / "spark", theirs, last - first)
        on_headrace(spark, case, files, folder / "headrace", ours, runner)
    return theirs.in_order(), ours.in_order()
