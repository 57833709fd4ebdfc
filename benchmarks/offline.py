"""Spark's own way to give streaming state more partitions: stop, repartition offline, restart.

A running count with Spark's aggregation and RocksDB state: every key once, and then a constant
rate. The API for repartitioning is not public yet (``spark._streamingCheckpointManager``, Spark 4.2
and newer). The session stays, so its JVM is warm. A user who stops the driver waits for a new JVM,
too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs import BLOCK, write_fill
from benchmarks.peers import ROCKSDB

#: Multiples of a prime above all numbers of keys. Modulo the number of keys they are spread over
#: them.
_PRIME = 982_451_653


@dataclass
class Outage:
    """What stopping, repartitioning and restarting showed. Times are seconds since 1970.

    Attributes:
        commits: when batches were committed, before and after.
        asked: when the stop was requested.
        stopped, repartitioned, started: when each of the three was done.
    """

    commits: Any
    asked: float
    stopped: float
    repartitioned: float
    started: float

    @property
    def window(self) -> tuple[float, float]:
        """From the last commit before to the first one after."""
        before = self.commits[self.commits <= self.stopped]
        after = self.commits[self.commits > self.repartitioned]
        return float(before[-1]), float(after[0])

    @property
    def seconds(self) -> float:
        """How long there was no commit."""
        last, first = self.window
        return first - last

    @property
    def parts(self) -> dict[str, float]:
        """How long each part took, from the request to stop."""
        _, first = self.window
        return {
            "stop": self.stopped - self.asked,
            "repartition": self.repartitioned - self.stopped,
            "start": self.started - self.repartitioned,
            "first batch": first - self.started,
        }


def repartitioned(
    spark: Any, folder: Path, *, keys: int, rate: int, workers: tuple[int, int], seconds: float
) -> Outage:
    """Run the count, repartition its state offline, and resume it.

    Args:
        spark: the session; its number of shuffle partitions is changed.
        folder: for the input and the checkpoint.
        keys: the number of keys; each comes once at first, as fast as possible.
        rate: records a second after that.
        workers: the number of partitions of state, before and after.
        seconds: duration of the load before, and after.
    """
    data, checkpoint = folder / "fill", folder / "checkpoint"
    data.mkdir()
    write_fill(data, BLOCK, keys)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", str(workers[0]))
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    query = _start(spark, data, checkpoint, keys, rate)
    # The source of files fails if a batch is cancelled by a stop in the middle and then given up.
    # So wait until all files are read.
    _wait_until(query, lambda: _read(query, "FileStreamSource") >= keys)
    query.awaitTermination(seconds)
    spark.sparkContext.setLogLevel("OFF")  # a cancelled batch is logged as an error
    asked = time.time()
    query.stop()
    stopped = time.time()
    before = _commits(query)
    # False: the cancelled batch may be given up, because this sink keeps nothing.
    spark._streamingCheckpointManager.repartition(str(checkpoint), workers[1], False)
    done = time.time()
    query = _start(spark, data, checkpoint, keys, rate)
    started = time.time()
    _wait_until(query, lambda: _read(query, "RateStream") > 0)
    query.awaitTermination(seconds)
    query.stop()
    commits = np.concatenate([before, _commits(query)])
    return Outage(commits, asked, stopped, done, started)


def _start(spark: Any, data: Path, checkpoint: Path, keys: int, rate: int) -> Any:
    fill = (
        spark.readStream.schema("key long, at timestamp")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(data))
        .select("key")
    )
    load = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
    paced = load.selectExpr(f"(value * {_PRIME}) % {keys} as key")
    counts = fill.union(paced).groupBy("key").count()
    writer = counts.writeStream.outputMode("update").format("noop")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def _wait_until(query: Any, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, while a query runs."""
    while not holds():
        if query.awaitTermination(0.1):
            raise RuntimeError("the query has ended")


def _read(query: Any, source: str) -> int:
    """Return how many rows a query has read from its sources of a kind, in committed batches."""
    return sum(
        of["numInputRows"]
        for progress in query.recentProgress
        for of in progress["sources"]
        if source in of["description"]
    )


def _commits(query: Any) -> Any:
    """Return when a query's batches were committed, by its own progress reports."""
    return np.array(
        [
            datetime.fromisoformat(p["timestamp"]).timestamp()
            + p["durationMs"]["triggerExecution"] / 1e3
            for p in query.recentProgress
            if p["numInputRows"]
        ]
    )
