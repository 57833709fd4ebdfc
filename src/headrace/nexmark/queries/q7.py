"""Query 7, highest bid: all bids with the highest price of each ten seconds.

Windows are half open. (In nexmark-flink's text they are closed at both ends, so a bid at an end can
be produced twice, and two columns of the answer are exchanged. In the paper they are of a minute.
Megaphone produces the price alone.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.best import Best
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

WINDOW = "10s"
PARTS = 64
#: In plain PySpark, a window with this many bids of the highest price, or more, is an error.
TIES = 64


def migratable(market: Market, window: str = WINDOW) -> Node:
    """Return the best of each window.

    The best are found first in evenly divided parts of the bids, and then among these.
    """
    compute = market.pipeline.compute
    requested = ["auction", "bidder", "date_time", "extra"]
    bids = market.bids(*requested, "price")
    part = hr.Salt(PARTS, by=("auction",))
    of_parts = compute("of_parts", Best("price", requested, window=window), keys={bids: (part,)})
    best = Best("price", requested, ends="window_end")
    return compute("q7", best, keys={of_parts: "window_end"})


def native(market: SparkMarket, window: str = "10 seconds") -> DataFrame:
    """Return the bids with the highest price of each window, of at most ``TIES`` candidates.

    So only some bids of a window are kept. (With a list for each price, or a join with the highest
    price, all bids would be kept.)
    """
    from pyspark.sql import functions as f

    requested = ["auction", "bidder", "date_time", "extra", "price"]
    bids = market.bids(*requested)
    best = bids.groupBy(f.window("date_time", window)).agg(
        f.max_by(f.struct(*requested), "price", TIES).alias("best")
    )
    too_many = f.expr(f"size(best) = {TIES} and best[{TIES - 1}].price = best[0].price")
    checked = f.when(too_many, f.raise_error(f.lit(f"{TIES} bids or more have the highest price")))
    same = f.filter("best", lambda one: one["price"] == f.col("best")[0]["price"])
    found = best.select(f.explode(checked.otherwise(same)).alias("one"), "window.end")
    return found.selectExpr("one.*", "end as window_end")
