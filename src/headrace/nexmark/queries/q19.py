"""Query 19: the ten highest bids of each auction. Of equal prices, the earlier bid comes first.

The answer has the bid's number, bidder and price. (nexmark-flink's rows have all columns of a bid.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.winners import rank_of
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key", "rank"]
MANY = 10


def migratable(market: Market) -> Node:
    """Return the ten best bids by auction, by a single number that ranks bids."""
    compute = market.pipeline.compute
    bids = market.bids("event", "auction", "bidder", "price")
    named = hr.ops.Map(_ranked, {"event": int, "bidder": int, "price": int, "place": int})
    ranked = compute("ranked", named, keys={bids: "auction"})
    best = hr.ops.TopN(MANY, by="place", columns=["event", "bidder", "price"])
    return compute("q19", best, keys={ranked: "key"})


def _ranked(bids: hr.KeyedBatch) -> dict[str, Any]:
    requested = {name: bids[name] for name in ("event", "bidder", "price")}
    return {**requested, "place": rank_of(bids["price"], bids["event"])}


def native(market: SparkMarket) -> DataFrame:
    """Return the ten best bids by auction, by price and number, each with its rank."""
    from pyspark.sql import functions as f

    place = f.struct("price", -f.col("event"))
    best = f.max_by(f.struct("event", "bidder", "price"), place, MANY)
    found = (
        market.bids("event", "auction", "bidder", "price").groupBy("auction").agg(best.alias("all"))
    )
    ranked = found.select("auction", f.posexplode("all").alias("at", "one"))
    return ranked.select("auction", (f.col("at") + 1).alias("rank"), "one.*")
