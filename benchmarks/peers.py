"""Spark's own ways to keep a running count, on the same files and batches as Headrace.

Each peer runs as a user would run it: a checkpoint on the local disk, one file a micro-batch, two
shuffle partitions, and the changes of a batch written as Parquet. The rate is that of the batches
after the warm-up, by Spark's own progress reports. (The packages that ``transformWithState`` needs
are in the dependency group ``bench``.)
"""

# The names of the processors' methods and parameters are Spark's.
# ruff: noqa: N802, N803

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

PEERS = {
    "builtin-hdfs": "Spark's aggregation, HDFS-backed state",
    "builtin-rocksdb": "Spark's aggregation, RocksDB state",
    "apply-in-pandas": "applyInPandasWithState",
    "tws-pandas": "transformWithStateInPandas",
    "tws-rows": "transformWithState, rows",
}


def running_count(
    spark: Any, peer: str, data: Path, folder: Path, *, emit: bool, warm: int
) -> tuple[float, list[float]]:
    """Run a peer to the end of the files; return records/s and the seconds of each batch."""
    stream = _stream(spark, HDFS if peer == "builtin-hdfs" else ROCKSDB, data)
    return _drained(_COUNTS[peer](stream), folder, peer, emit=emit, warm=warm)


def tracked(
    spark: Any, peer: str, data: Path, folder: Path, *, warm: int
) -> tuple[float, list[float]]:
    """Run a peer with a struct for each key and a timer set by each record.

    Return records/s and the seconds of each batch.
    """
    stream = _stream(spark, ROCKSDB, data).withWatermark("at", "0 seconds")
    processor = tracker(rows=peer == "tws-rows")
    grouped = stream.groupBy("key")
    transform = (
        grouped.transformWithState if peer == "tws-rows" else grouped.transformWithStateInPandas
    )
    said = transform(processor, "key long, count long", "Update", "EventTime")
    return _drained(said, folder, peer, emit=True, warm=warm)


def _stream(spark: Any, provider: str, data: Path) -> Any:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    schema = spark.read.parquet(str(data)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(data))


def _drained(
    counted: Any, folder: Path, peer: str, *, emit: bool, warm: int
) -> tuple[float, list[float]]:
    out = folder / f"out-{peer}"

    def write(batch: Any, number: int) -> None:
        if emit:
            batch.write.mode("overwrite").parquet(f"{out}/{number}")
        else:
            batch.write.format("noop").mode("overwrite").save()

    query = (
        counted.writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / f"checkpoint-{peer}"))
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [p for p in query.recentProgress if p["numInputRows"]][warm:]
    seconds = [p["durationMs"]["triggerExecution"] / 1e3 for p in found]
    return sum(p["numInputRows"] for p in found) / sum(seconds), seconds


def _builtin(stream: Any) -> Any:
    return stream.groupBy("key").count()


def _apply_in_pandas(stream: Any) -> Any:
    import pandas as pd

    def count(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        total = state.get[0] if state.exists else 0
        total += sum(len(frame) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"key": [key[0]], "count": [total]})

    return stream.groupBy("key").applyInPandasWithState(
        count, "key long, count long", "count long", "update", "NoTimeout"
    )


def _answers(*, rows: bool) -> Callable[[Any, int], Any]:
    """Return the function with which a processor returns a count: as a row, or a frame of one row.

    Spark sends it to its workers by value, because it is defined inside this function.
    """
    import pandas as pd
    from pyspark.sql import Row

    def row(key: Any, count: int) -> Any:
        return Row(key=key[0], count=count)

    def frame(key: Any, count: int) -> Any:
        return pd.DataFrame({"key": [key[0]], "count": [count]})

    return row if rows else frame


def _counter(*, rows: bool) -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    answer = _answers(rows=rows)

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "count long")

        def handleInputRows(self, key: Any, found: Any, timerValues: Any) -> Iterator[Any]:
            total = self.total.get()[0] if self.total.exists() else 0
            total += sum(1 if rows else len(item) for item in found)
            self.total.update((total,))
            yield answer(key, total)

        def close(self) -> None:
            pass

    return Count()


def tracker(*, rows: bool) -> Any:
    """Return a processor with a struct for each key and a timer set by each record."""
    from pyspark.sql.streaming import StatefulProcessor

    answer = _answers(rows=rows)
    idle_ms = 3_600_000

    class Tracker(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.track = handle.getValueState("track", "count long, total double, last long")
            self.timer = handle.getValueState("timer", "at long")

        def handleInputRows(self, key: Any, found: Any, timerValues: Any) -> Iterator[Any]:
            count, total, last = self.track.get() if self.track.exists() else (0, 0.0, 0)
            for item in found:
                for at in (item["at"],) if rows else item["at"]:
                    count, total, last = count + 1, total + 0.5, int(at.timestamp() * 1000)
            self.track.update((count, total, last))
            # One timer a key, as in Headrace: the one before is replaced.
            if self.timer.exists():
                self.handle.deleteTimer(self.timer.get()[0])
            self.handle.registerTimer(last + idle_ms)
            self.timer.update((last + idle_ms,))
            yield from ()

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Any]:
            yield answer(key, self.track.get()[0])

        def close(self) -> None:
            pass

    return Tracker()


def _tws_pandas(stream: Any) -> Any:
    return stream.groupBy("key").transformWithStateInPandas(
        _counter(rows=False), "key long, count long", "Update", "None"
    )


def _tws_rows(stream: Any) -> Any:
    return stream.groupBy("key").transformWithState(
        _counter(rows=True), "key long, count long", "Update", "None"
    )


_COUNTS = {
    "builtin-hdfs": _builtin,
    "builtin-rocksdb": _builtin,
    "apply-in-pandas": _apply_in_pandas,
    "tws-pandas": _tws_pandas,
    "tws-rows": _tws_rows,
}
