"""Query 20, filter of a join: each bid for an auction of category 10, with the item.

State is kept forever. The answer has some columns of both. (nexmark-flink's rows have all of them.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.q3 import CATEGORY
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

BID = ["bidder", "price", "channel"]
AUCTION = ["item_name", "initial_bid", "reserve", "seller"]


def migratable(market: Market) -> Node:
    """Return auctions of the category, joined with bids."""
    compute = market.pipeline.compute
    kind = hr.ops.Filter(lambda auctions: auctions["category"] == CATEGORY)
    items = compute("items", kind, keys={market.auctions("id", "category", *AUCTION): "id"})
    pairs = hr.ops.Join(left=AUCTION, right=BID)
    return compute("q20", pairs, keys={items: "key", market.bids("auction", *BID): "auction"})


def native(market: SparkMarket) -> DataFrame:
    """Return the same, as Spark's own join of two streams."""
    items = market.auctions("id", "category", *AUCTION).where(f"category = {CATEGORY}")
    bids = market.bids("auction", *BID)
    return items.join(bids, items.id == bids.auction).select("auction", *AUCTION, *BID)
