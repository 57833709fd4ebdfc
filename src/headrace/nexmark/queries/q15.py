"""Query 15, bidding statistics: how many bids, bidders and auctions each day has, in all and by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace as hr
from headrace.nexmark.queries.distinct import draw_counts, native_counts
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.ranks import RANKS, with_day_and_rank
from headrace.topology import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

LATEST = ["key"]
TYPE = {"auction": int, "bidder": int, "day": str, **dict.fromkeys(RANKS, int)}


def migratable(market: Market) -> Node:
    """Days and ranks, what is new by auction and by bidder, and the sums of that by day."""
    bids = market.bids("auction", "bidder", "price", "date_time")
    ranked = market.pipeline.compute("ranked", hr.ops.Map(_ranked, TYPE), keys={bids: "auction"})
    return draw_counts(market.pipeline, "q15", ranked, ["day"])


def _ranked(bids: hr.KeyedBatch) -> dict[str, Any]:
    return {"auction": bids["auction"], "bidder": bids["bidder"], **with_day_and_rank(bids)}


def native(market: SparkMarket) -> DataFrame:
    """Counts by day, and sets."""
    return native_counts(market.bids("auction", "bidder", "price", "date_time"), [])
