"""Query 5, hot items: the auctions with the most bids in the last ten seconds, every two seconds.

If several auctions have the most, all of them are produced. The window's end is part of the answer.
nexmark-flink does the same, without the window's end. The paper's windows are of an hour every
minute. Megaphone's are of a minute every second, and its answer is one auction for each bin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.best import Best
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node
from headrace.schema import TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

SIZE, EVERY = "10s", "2s"


def migratable(market: Market, size: str = SIZE, every: str = EVERY) -> Node:
    """Return the best of each window, of the bids of each auction counted in sliding windows."""
    compute = market.pipeline.compute
    count = hr.ops.Sliding(size, every, bids=hr.ops.Count())
    counts = compute("counts", count, keys={market.bids("auction"): "auction"})
    named = hr.ops.Map(_named, {"auction": int, "bids": int, "ends": TIMESTAMP})
    of_auctions = compute("of_auctions", named, keys={counts: "key"})
    best = Best("bids", ["auction"], ends="ends")
    return compute("q5", best, keys={of_auctions: "ends"})


def _named(counts: hr.KeyedBatch) -> dict[str, object]:
    return {"auction": counts.row_keys.values, "bids": counts["bids"], "ends": counts["window_end"]}


def native(market: SparkMarket, size: str = "10 seconds", every: str = "2 seconds") -> DataFrame:
    """Return the best of each window, from lists of the counts in it."""
    from pyspark.sql import functions as f

    bids = market.bids("auction", "date_time")
    counts = bids.groupBy(f.window("date_time", size, every), "auction").agg(
        f.count("*").alias("bids")
    )
    lists = counts.groupBy(f.window(f.window_time("window"), every)).agg(
        f.max("bids").alias("most"), f.collect_list(f.struct("auction", "bids")).alias("all")
    )
    best = f.filter("all", lambda one: one.bids == f.col("most"))
    found = lists.select(f.explode(best).alias("one"), f.col("window.end").alias("window_end"))
    return found.select("one.auction", "one.bids", "window_end")
