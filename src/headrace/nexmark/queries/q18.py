"""Query 18, last bid: the newest bid of each bidder and auction.

Of bids at the same time, the one that was made last is the newest. The answer has the key and all
columns but the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key0", "key1"]
COLUMNS = ["event", "bidder", "auction", "price", "channel", "url", "extra"]


def migratable(market: Market) -> Node:
    """Return the bid with the highest number, by bidder and auction."""
    newest = hr.ops.TopN(1, by="event", columns=["event", "price", "channel", "url", "extra"])
    return market.pipeline.compute(
        "q18", newest, keys={market.bids(*COLUMNS): ("bidder", "auction")}
    )


def native(market: SparkMarket) -> DataFrame:
    """Return the bid with the highest number, by bidder and auction."""
    from pyspark.sql import functions as f

    newest = f.max_by(f.struct("event", "price", "channel", "url", "extra"), "event").alias("one")
    return market.bids(*COLUMNS).groupBy("bidder", "auction").agg(newest).select(
        "bidder", "auction", "one.*"
    )  # fmt: skip
