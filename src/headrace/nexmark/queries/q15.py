"""Query 15, bidding statistics: the number of bids, bidders and auctions of each day, by rank.

The numbers in all are there, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.nexmark.queries.distinct import compute_counts, native_counts
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key"]


def migratable(market: Market) -> Node:
    """Return sums by day of what is new by auction and by bidder."""
    return compute_counts(market.pipeline, "q15", market.bids("auction", "bidder", "price"), [])


def native(market: SparkMarket) -> DataFrame:
    """Return counts by day, with sets for the distinct ones."""
    return native_counts(market.bids("auction", "bidder", "price", "date_time"), [])
