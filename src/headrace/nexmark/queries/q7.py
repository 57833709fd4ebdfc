"""Query 7, highest bid: of every ten seconds the bids with the highest price; all that have it.

Windows are half open. (In nexmark-flink's text they are closed at both ends, so a bid at an end can be
told twice, and two columns of the answer are exchanged; in the paper they are of a minute; Megaphone
tells the price alone.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.nexmark.queries.best import Best
from headrace.nexmark.queries.market import Market
from headrace.topology import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

WINDOW = "10s"


def migratable(market: Market, window: str = WINDOW) -> Node:
    """The best of each auction and window, then the best of these."""
    draw = market.pipeline.compute
    asked = ["auction", "bidder", "date_time", "extra"]
    bids = market.bids(*asked, "price")
    of_auctions = draw("of_auctions", Best("price", asked, window=window), keys={bids: "auction"})
    best = Best("price", asked, ends="window_end")
    return draw("q7", best, keys={of_auctions: "window_end"})


def native(market: SparkMarket, window: str = "10 seconds") -> DataFrame:
    """The bids of each window in a list for each price, the highest one kept."""
    from pyspark.sql import functions as f

    asked = ["auction", "bidder", "date_time", "extra", "price"]
    bids = market.bids(*asked)
    best = bids.groupBy(f.window("date_time", window), "price").agg(
        f.collect_list(f.struct("auction", "bidder", "date_time", "extra")).alias("all")
    )
    highest = best.groupBy(f.window(f.window_time("window"), window)).agg(
        f.max(f.struct("price", "all")).alias("best")
    )
    found = highest.select("best.price", f.explode("best.all").alias("one"), "window.end")
    return found.selectExpr("one.*", "price", "end as window_end")
