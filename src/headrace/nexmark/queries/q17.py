"""Query 17, auction statistics: of each auction and day the bids, by rank, and the least, greatest and
mean price.

The mean is a float; nexmark-flink cuts it off to whole numbers. Each answer is what is so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.ranks import RANKS, day_in_spark, ranks_in_spark, with_day_and_rank
from headrace.topology import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key0", "key1"]
TYPE = {"auction": int, "price": int, "day": str, **dict.fromkeys(RANKS, int)}


def migratable(market: Market) -> Node:
    """Days and ranks, then running aggregates by auction and day."""
    draw = market.pipeline.compute
    bids = market.bids("auction", "price", "date_time")
    ranked = draw("ranked", hr.ops.Map(_ranked, TYPE), keys={bids: "auction"})
    of = hr.ops
    asked: dict[str, Any] = {name: of.Sum(name) for name in RANKS}
    asked |= {"least": of.Min("price"), "most": of.Max("price"), "mean": of.Mean("price")}
    statistics = of.Running(bids=of.Count(), total=of.Sum("price"), **asked)
    return draw("q17", statistics, keys={ranked: ("auction", "day")})


def _ranked(bids: hr.KeyedBatch) -> dict[str, Any]:
    return {"auction": bids["auction"], "price": bids["price"], **with_day_and_rank(bids)}


def native(market: SparkMarket) -> DataFrame:
    """Aggregates by auction and day."""
    from pyspark.sql import functions as f

    bids = market.bids("auction", "price", "date_time")
    counts = [f.count_if(rank).alias(name) for name, rank in ranks_in_spark().items()]
    return bids.groupBy("auction", day_in_spark()).agg(
        f.count("*").alias("bids"), *counts, f.min("price").alias("least"), f.max("price").alias("most"),
        f.avg("price").alias("mean"), f.sum("price").alias("total"),
    )  # fmt: skip
