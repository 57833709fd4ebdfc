"""Query 2, selection: the price of each bid for one of some auctions: those whose number is a multiple of
123.

So everybody has it today; in the original they are five auctions with fixed numbers.
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
    """Some of the bids."""
    some = hr.ops.Filter(lambda bids: bids["auction"] % EVERY == 0)
    return market.pipeline.compute("q2", some, keys={market.bids("auction", "price"): "auction"})


def native(market: SparkMarket) -> DataFrame:
    """Some of the bids."""
    bids = market.bids("auction", "price")
    return bids.where(bids.auction % EVERY == 0)
