"""Query 4, average price of a category: the mean price of its closed auctions so far.

Auctions are decided when they close (:mod:`headrace.nexmark.queries.winners`). nexmark-flink
decides again with each bid, and truncates the mean. Beam takes means of windows of closing times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.winners import Winners, native_winners
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key"]
BY_HAND = True


def migratable(market: Market) -> Node:
    """Return the running mean by category of the winners by auction."""
    compute = market.pipeline.compute
    auctions = market.auctions("id", "expires", "category")
    bids = market.bids("event", "auction", "price")
    winners = compute("winners", Winners(["category"]), keys={auctions: "id", bids: "auction"})
    mean = hr.ops.Running(average=hr.ops.Mean("price"))
    return compute("q4", mean, keys={winners: "category"})


def native(market: SparkMarket) -> DataFrame:
    """Return means, kept by hand, of the winners by a join. That needs RocksDB."""
    from headrace.nexmark.queries.spark_means import RunningMean

    sold = native_winners(market, ["expires", "category"]).groupBy("category")
    return sold.transformWithState(RunningMean(), "key bigint, average double", "append", "none")
