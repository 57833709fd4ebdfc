"""Query 12, processing-time windows: how many bids each bidder makes in each ten seconds.

A bid belongs to the window in which it is processed. So only a bidder's totals are the same each
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.eventtime.timestamps import to_micros
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node
from headrace.schema import TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

WINDOW = "10s"
LATEST = ["key", "window_end"]


class ByTheClock(hr.ColumnarComputation):
    """How many records a key has in each processing-time window, produced at its end."""

    counts = hr.TableState({"count": int}, sub={"ends": int})
    over = hr.Timer(hr.WALL_TIME)
    out = hr.Output({"bids": int, "window_end": TIMESTAMP})

    def __init__(self, window: DurationLike) -> None:
        self._window = duration_micros(window, "window")

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        ends = (to_micros(ctx.now) // self._window + 1) * self._window
        rows = self.counts.at(batch.keys, ends=ends)
        new = ~rows.exists
        rows.upsert(count=rows["count"] + batch.counts)
        self.over.set(batch.keys[new], ends, tags=ends)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        rows = self.counts.at(fired.keys, ends=fired.tags)
        answer: dict[str, Any] = {"bids": rows["count"], "window_end": fired.tags}
        ctx.produce("out", fired.keys, answer)
        rows.delete()


def migratable(market: Market, window: str = WINDOW) -> Node:
    """Return counts by bidder."""
    return market.pipeline.compute(
        "q12", ByTheClock(window), keys={market.bids("bidder"): "bidder"}
    )


def native(market: SparkMarket, window: str = "10 seconds") -> DataFrame:
    """Return counts by bidder and processing-time window, by the time at which a batch begins."""
    from pyspark.sql import functions as f

    bids = market.bids("bidder").withColumn("at", f.current_timestamp())
    counts = bids.withWatermark("at", "0 seconds").groupBy(f.window("at", window), "bidder")
    found = counts.agg(f.count("*").alias("bids"))
    return found.selectExpr("bidder as key", "bids", "window.end as window_end")
