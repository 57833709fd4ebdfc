"""Query 1, currency conversion: each bid's price in euros, at a rate of 0.908, exactly.

nexmark-flink multiplies decimals, as this query does. Beam and Megaphone take 89 hundredths in
whole numbers.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.nexmark.columns import TIME
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

COLUMNS = ["auction", "bidder", "price", "date_time", "extra"]
RATE = Decimal("0.908")
EUROS = pa.decimal128(23, 3)
TYPE = {"bidder": int, "price": EUROS, "date_time": TIME, "extra": str}


def migratable(market: Market) -> Node:
    """Return each bid, with its price in euros."""
    euros = hr.ops.Map(_converted, TYPE)
    return market.pipeline.compute("q1", euros, keys={market.bids(*COLUMNS): "auction"})


def _converted(bids: hr.KeyedBatch) -> dict[str, Any]:
    others = {name: bids.arrow(name) for name in ("bidder", "date_time", "extra")}
    return {**others, "price": in_euros(bids.arrow("price"))}


def in_euros(prices: pa.Array) -> pa.Array:
    """Return prices times the rate, exactly."""
    return pc.multiply(prices.cast(pa.decimal128(19, 0)), pa.scalar(RATE)).cast(EUROS)


def native(market: SparkMarket) -> DataFrame:
    """Return each bid, with its price in euros."""
    bids = market.bids(*COLUMNS)
    return bids.withColumn("price", bids.price.cast("decimal(19, 0)") * RATE)
