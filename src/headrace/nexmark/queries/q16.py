"""Query 16, channel statistics: as query 15, for each channel and day.

The column with the newest minute is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.nexmark.queries.distinct import compute_counts, native_counts
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key0", "key1"]


def migratable(market: Market) -> Node:
    """Return sums by channel and day of what is new by auction and by bidder."""
    bids = market.bids("auction", "bidder", "channel", "price")
    return compute_counts(market.pipeline, "q16", bids, ["channel"])


def native(market: SparkMarket) -> DataFrame:
    """Return counts by channel and day, with sets for the distinct ones."""
    return native_counts(
        market.bids("auction", "bidder", "channel", "price", "date_time"), ["channel"]
    )
