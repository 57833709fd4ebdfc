"""The input of the native queries: the same events as streaming DataFrames."""

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
        options: of the source: the parameters of the timeline, and how much a trigger takes.
        delay: how far events may be behind the newest one.

    Attributes:
        longest_open_us: the longest that an auction is open.
    """

    def __init__(
        self, spark: SparkSession, options: Mapping[str, object], *, delay: str = "0 seconds"
    ) -> None:
        register(spark)
        self.spark, self.delay = spark, delay
        self._options = {name: str(value) for name, value in options.items()}
        self.longest_open_us = timeline_of(self._options).longest_open_us

    def people(self, *columns: str) -> DataFrame:
        """Return the stream of people who register."""
        return self._read("person", columns)

    def auctions(self, *columns: str, by: str = "date_time") -> DataFrame:
        """Return the stream of new auctions, with a watermark on ``by`` if that is a column."""
        return self._read("auction", columns, by)

    def bids(self, *columns: str) -> DataFrame:
        """Return the stream of bids."""
        return self._read("bid", columns)

    def _read(self, kind: str, columns: tuple[str, ...], by: str = "date_time") -> DataFrame:
        reader = self.spark.readStream.format(FORMAT).options(**self._options)
        found = reader.option("kind", kind).option("columns", ",".join(columns)).load()
        return found.withWatermark(by, self.delay) if by in columns else found


def native_writer(query: ModuleType, market: SparkMarket) -> DataStreamWriter:
    """Return a native query with its output mode, and set the session's state store provider.

    State that is kept by hand needs RocksDB. For other queries Spark's default store is faster, as
    long as state is small.
    """
    by_hand = hasattr(query, "BY_HAND")
    provider = "RocksDBStateStoreProvider" if by_hand else "HDFSBackedStateStoreProvider"
    market.spark.conf.set("spark.sql.streaming.stateStore.providerClass", _PROVIDERS + provider)
    updates = hasattr(query, "LATEST") and not by_hand
    writer: DataStreamWriter = query.native(market).writeStream
    return writer.outputMode("update" if updates else "append")
