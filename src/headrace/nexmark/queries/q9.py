"""Query 9, winning bids: each auction that was sold, with the bid that won it, once it has closed.

(nexmark-flink tells the best bid so far again and again, and takes it back; the last one is this. Its rows
also have both times and both ``extra``, which fill records up.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.winners import Winners
from headrace.topology import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

AUCTION = [
    "item_name", "description", "initial_bid", "reserve", "expires", "seller", "category",
]  # fmt: skip
BID = ["bidder", "channel"]


def migratable(market: Market) -> Node:
    """Winners by auction, with all that is told of both."""
    auctions, bids = market.auctions("id", *AUCTION), market.bids("event", "auction", "price", *BID)
    winners = Winners(AUCTION, BID)
    return market.pipeline.compute("q9", winners, keys={auctions: "id", bids: "auction"})


def native(market: SparkMarket) -> DataFrame:
    """Bids joined with their auctions, and of each auction the best, once it has closed.

    Bids are kept for the join for as long as an auction is open at most.
    """
    from pyspark.sql import functions as f

    auctions = market.auctions("id", *AUCTION, "date_time", by="expires")
    auctions = auctions.withColumnRenamed("date_time", "opens")
    bids = market.bids("event", "auction", "price", *BID, "date_time")
    # (The second bound is what lets Spark forget bids: by the watermark of `expires`.)
    while_open = "date_time between opens and expires"
    longest = f"date_time >= expires - interval {market.longest_open_us} microseconds"
    pairs = auctions.join(bids, f.expr(f"id = auction and {while_open} and {longest}"))
    bid = f.struct("price", "event", *BID)
    best = f.max_by(bid, f.struct("price", -f.col("event"))).alias("best")
    return pairs.groupBy("id", *AUCTION).agg(best).select("id", *AUCTION, "best.*")
