"""Query 14, calculation: bids in a range of prices in euros, with derived columns.

These are whether it is day or night, and how often a letter occurs in the bid's text. Hours are of
UTC; 7 and 19 o'clock are neither day nor night.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

import headrace as hr
from headrace.nexmark.columns import TIME
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.q1 import EUROS, RATE, in_euros
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

COLUMNS = ["auction", "bidder", "price", "date_time", "extra"]
TYPE = {
    "bidder": int, "price": EUROS, "time_type": str, "date_time": TIME, "extra": str, "c_counts": int,
}  # fmt: skip
LEAST, MOST = 1_000_000, 50_000_000
_HOUR_US = 3_600_000_000


def migratable(market: Market) -> Node:
    """Return the bids in the range, with the derived columns."""
    calculation = hr.ops.FlatMap(_calculated, TYPE)
    return market.pipeline.compute("q14", calculation, keys={market.bids(*COLUMNS): "auction"})


def _calculated(bids: hr.KeyedBatch) -> tuple[Any, dict[str, Any]]:
    thousandths = bids["price"] * int(RATE * 1_000)
    rows = np.flatnonzero((thousandths > LEAST * 1_000) & (thousandths < MOST * 1_000))
    hour = bids.timestamps_us[rows] // _HOUR_US % 24
    day, night = (hour >= 8) & (hour <= 18), (hour <= 6) | (hour >= 20)
    extra = bids.arrow("extra").take(rows)
    return rows, {
        "bidder": bids["bidder"][rows], "price": in_euros(bids.arrow("price").take(rows)),
        "time_type": np.select([day, night], ["dayTime", "nightTime"], "otherTime").astype(object),
        "date_time": bids.arrow("date_time").take(rows), "extra": extra,
        "c_counts": pc.count_substring(extra, "c").cast("int64"),
    }  # fmt: skip


def native(market: SparkMarket) -> DataFrame:
    """Return the bids in the range, with the derived columns."""
    bids = market.bids(*COLUMNS).selectExpr(
        "auction", "bidder", f"cast(price as decimal(19, 0)) * {RATE} as price",
        "pmod(unix_seconds(date_time) div 3600, 24) as hour", "date_time",
        "extra", "cast(length(extra) - length(replace(extra, 'c', '')) as long) as c_counts",
    )  # fmt: skip
    some = bids.where(f"price > {LEAST} and price < {MOST}")
    kind = "case when hour between 8 and 18 then 'dayTime' when hour <= 6 or hour >= 20 then 'nightTime'"
    return some.selectExpr(
        "auction",
        "bidder",
        "price",
        f"{kind} else 'otherTime' end as time_type",
        "date_time",
        "extra",
        "c_counts",
    )
