"""Query 8, monitor new users: people who register and put something up for sale in one window.

Windows are of ten seconds and follow each other. Each person is produced once, as in nexmark-flink.
(The paper and Megaphone ask for sales within twelve hours of registering; Megaphone's code takes
auctions for people. Beam has a row for each auction.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

WINDOW = "10s"


def migratable(market: Market, window: str = WINDOW) -> Node:
    """Return sellers once for each window, at its end, joined with those who registered in it."""
    compute = market.pipeline.compute
    count = hr.ops.Tumbling(window, auctions=hr.ops.Count())
    sellers = compute("sellers", count, keys={market.auctions("seller"): "seller"})
    people = market.people("id", "name")
    new = hr.ops.Join(within=("1us", window), right=["window_start"])
    return compute("q8", new, keys={people: "id", sellers: "key"})


def native(market: SparkMarket, window: str = "10 seconds") -> DataFrame:
    """Return people and sellers once for each window, joined."""
    from pyspark.sql import functions as f

    people = market.people("id", "name", "date_time").groupBy(
        f.window("date_time", window), "id", "name"
    )
    sellers = market.auctions("seller", "date_time").groupBy(
        f.window("date_time", window), "seller"
    )
    new, selling = people.count().drop("count"), sellers.count().withColumnRenamed("window", "when")
    joined = new.join(selling, (new.id == selling.seller) & (new.window == selling.when))
    return joined.selectExpr("id", "name", "window.start as window_start")
