"""Query 2, selection: the prices of bids for auctions whose number is a multiple of 123.

All versions have it so today. The original selects five auctions with fixed numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

EVERY = 123


def migratable(market: Market) -> Node:
    """Return the selected bids."""
    some = hr.ops.Filter(lambda bids: bids["auction"] % EVERY == 0)
    return market.pipeline.compute("q2", some, keys={market.bids("auction", "price"): "auction"})


def native(market: SparkMarket) -> DataFrame:
    """Return the selected bids."""
    bids = market.bids("auction", "price")
    return bids.where(bids.auction % EVERY == 0)
