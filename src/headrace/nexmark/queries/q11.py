"""Query 11, user sessions: how many bids each bidder makes without a pause of ten seconds.

A pause of exactly ten seconds ends a session, as in Beam. In Flink and Spark it does not, so
``native`` uses a pause that is a microsecond shorter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

GAP = "10s"


def migratable(market: Market, gap: str = GAP) -> Node:
    """Return sessions by bidder."""
    sessions = hr.ops.Session(gap, bids=hr.ops.Count())
    return market.pipeline.compute("q11", sessions, keys={market.bids("bidder"): "bidder"})


def native(market: SparkMarket, gap: str = "9.999999 seconds") -> DataFrame:
    """Return sessions by bidder. They end a microsecond later than Spark says."""
    from pyspark.sql import functions as f

    bids = market.bids("bidder", "date_time")
    sessions = bids.groupBy(f.session_window("date_time", gap), "bidder").agg(
        f.count("*").alias("bids")
    )
    return sessions.selectExpr(
        "bidder", "bids", "session_window.start as window_start",
        "session_window.end + INTERVAL '0.000001' SECOND as window_end",
    )  # fmt: skip
