"""What the native queries ask: the same events as streaming DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

from headrace.nexmark.spark_source import FORMAT, register, timeline_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."


class SparkMarket:
    """Reads the events of a timeline as streams, one for each kind.

    Args:
        spark: the session.
        options: of the source: the knobs of the timeline, and how much a trigger takes.
        delay: how far events may be behind the newest one.

    Attributes:
        longest_open_us: how long an auction is open, at most.
    """

    def __init__(
        self, spark: SparkSession, options: Mapping[str, object], *, delay: str = "0 seconds"
    ) -> None:
        register(spark)
        self.spark, self.delay = spark, delay
        self._options = {name: str(value) for name, value in options.items()}
        self.longest_open_us = timeline_of(self._options).longest_open_us

    def people(self, *columns: str) -> DataFrame:
        """Return who registers."""
        return self._read("person", columns)

    def auctions(self, *columns: str, by: str = "date_time") -> DataFrame:
        """Return what is put up for sale; the watermark goes by one of the columns, if it is asked for."""
        return self._read("auction", columns, by)

    def bids(self, *columns: str) -> DataFrame:
        """Return who bids what."""
        return self._read("bid", columns)

    def _read(self, kind: str, columns: tuple[str, ...], by: str = "date_time") -> DataFrame:
        reader = self.spark.readStream.format(FORMAT).options(**self._options)
        found = reader.option("kind", kind).option("columns", ",".join(columns)).load()
        return found.withWatermark(by, self.delay) if by in columns else found


def native_writer(query: ModuleType, market: SparkMarket) -> DataStreamWriter:
    """Return a native query with its output mode set, in a session that keeps its state where it has to be.

    What is kept by hand needs RocksDB; for the rest the store that is Spark's default is the faster one,
    as long as state is small.
    """
    by_hand = hasattr(query, "BY_HAND")
    provider = "RocksDBStateStoreProvider" if by_hand else "HDFSBackedStateStoreProvider"
    market.spark.conf.set("spark.sql.streaming.stateStore.providerClass", _PROVIDERS + provider)
    updates = hasattr(query, "LATEST") and not by_hand
    writer: DataStreamWriter = query.native(market).writeStream
    return writer.outputMode("update" if updates else "append")
