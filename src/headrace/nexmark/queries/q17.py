"""Query 17, auction statistics: bids by rank, and prices, of each auction and day.

The prices are the least, the greatest and the mean. The mean is a float; nexmark-flink truncates it
to whole numbers. Each answer is the state so far.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import numpy as np

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.ranks import (
    RANKS,
    by_day,
    counts_by_rank,
    day_in_spark,
    ranks_in_spark,
)
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key", "day"]
COLUMNS = dict.fromkeys(("bids", *RANKS, "least", "most", "total"), int)


class Statistics(hr.ColumnarComputation):
    """The statistics so far of each auction and day that has bids in a step."""

    deterministic = True

    days = hr.TableState(COLUMNS, sub={"day": date})
    out = hr.Output({"day": date, **COLUMNS, "mean": float})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        bids = by_day(batch)
        rows = self.days.at(bids.keys, **bids.sub)
        more = {"bids": bids.counts, **counts_by_rank(bids), "total": bids.sum("price")}
        now = {name: rows[name] + many for name, many in more.items()}
        least = bids.min("price")
        now["least"] = np.where(rows.exists, np.minimum(rows["least"], least), least)
        now["most"] = np.maximum(rows["most"], bids.max("price"))
        rows.upsert(**now)
        ctx.produce("out", bids.keys, {**bids.sub, **now, "mean": now["total"] / now["bids"]})


def migratable(market: Market) -> Node:
    """Return statistics by auction, with a row for each day."""
    return market.pipeline.compute(
        "q17", Statistics(), keys={market.bids("auction", "price"): "auction"}
    )


def native(market: SparkMarket) -> DataFrame:
    """Return aggregates by auction and day."""
    from pyspark.sql import functions as f

    bids = market.bids("auction", "price", "date_time")
    counts = [f.count_if(rank).alias(name) for name, rank in ranks_in_spark().items()]
    return bids.groupBy("auction", day_in_spark()).agg(
        f.count("*").alias("bids"), *counts, f.min("price").alias("least"), f.max("price").alias("most"),
        f.avg("price").alias("mean"), f.sum("price").alias("total"),
    )  # fmt: skip
