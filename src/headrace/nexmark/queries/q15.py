"""Query 15, bidding statistics: how many bids, bidders and auctions each day has, in all and by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.nexmark.queries.distinct import draw_counts, native_counts
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key"]


def migratable(market: Market) -> Node:
    """What is new by auction and by bidder, and the sums of that by day."""
    return draw_counts(market.pipeline, "q15", market.bids("auction", "bidder", "price"), [])


def native(market: SparkMarket) -> DataFrame:
    """Counts by day, and sets."""
    return native_counts(market.bids("auction", "bidder", "price", "date_time"), [])
