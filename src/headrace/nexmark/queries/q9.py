"""Query 9, winning bids: each auction that was sold, with the winning bid, once it has closed.

(nexmark-flink produces the best bid so far again and again, and retracts it; the last one is this
answer. Its rows also have both times, and both ``extra``, which fill records up.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.winners import Winners, native_winners
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

AUCTION = [
    "item_name", "description", "initial_bid", "reserve", "expires", "seller", "category",
]  # fmt: skip
BID = ["bidder", "channel"]


def migratable(market: Market) -> Node:
    """Return winners by auction, with the columns of both."""
    auctions, bids = market.auctions("id", *AUCTION), market.bids("event", "auction", "price", *BID)
    winners = Winners(AUCTION, BID)
    return market.pipeline.compute("q9", winners, keys={auctions: "id", bids: "auction"})


def native(market: SparkMarket) -> DataFrame:
    """Return the same, by a join."""
    return native_winners(market, AUCTION, BID)
