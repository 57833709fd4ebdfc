"""Query 13, side input: each bid with the value that a fixed table has for its auction.

As in nexmark-flink, the table has a row for each number below 10 000, with the number itself as its
value. The row of a bid is its auction's number modulo 10 000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import headrace as hr
from headrace.nexmark.columns import TIME
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

COLUMNS = ["auction", "bidder", "price", "date_time"]
TYPE = {"bidder": int, "price": int, "date_time": TIME, "value": int}
SIDE = np.arange(10_000)


def migratable(market: Market) -> Node:
    """Return bids, each with its row of the table, which is part of the code."""
    known = hr.ops.Map(_with_value, TYPE)
    return market.pipeline.compute("q13", known, keys={market.bids(*COLUMNS): "auction"})


def _with_value(bids: hr.KeyedBatch) -> dict[str, Any]:
    value = SIDE[bids["auction"] % len(SIDE)]
    return {**{name: bids.arrow(name) for name in COLUMNS[1:]}, "value": value}


def native(market: SparkMarket) -> DataFrame:
    """Return bids joined with the table."""
    from pyspark.sql import functions as f

    bids = market.bids(*COLUMNS)
    table = bids.sparkSession.createDataFrame(
        [(int(n), int(n)) for n in SIDE], "number long, value long"
    )
    joined = bids.join(f.broadcast(table), bids.auction % len(SIDE) == table.number)
    return joined.select(*COLUMNS, "value")
