"""Query 1, currency conversion: each bid's price in euros, 0.908 times it, exactly.

nexmark-flink multiplies decimals, as here; Beam and Megaphone take 89 hundredths in whole numbers.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from benchmarks.nexmark.columns import TIME
from benchmarks.nexmark.queries.market import Market
from headrace.topology import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.nexmark.queries.spark_market import SparkMarket

COLUMNS = ["auction", "bidder", "price", "date_time", "extra"]
RATE = Decimal("0.908")
EUROS = pa.decimal128(23, 3)
TYPE = {"bidder": int, "price": EUROS, "date_time": TIME, "extra": str}


def migratable(market: Market) -> Node:
    """Each bid, with another price."""
    euros = hr.ops.Map(_in_euros, TYPE)
    return market.pipeline.compute("q1", euros, keys={market.bids(*COLUMNS): "auction"})


def _in_euros(bids: hr.KeyedBatch) -> dict[str, Any]:
    price = pc.multiply(bids.arrow("price").cast(pa.decimal128(19, 0)), pa.scalar(RATE))
    return {
        "bidder": bids.arrow("bidder"), "price": price.cast(EUROS),
        "date_time": bids.arrow("date_time"), "extra": bids.arrow("extra"),
    }  # fmt: skip


def native(market: SparkMarket) -> DataFrame:
    """Each bid, with another price."""
    bids = market.bids(*COLUMNS)
    return bids.withColumn("price", bids.price.cast("decimal(19, 0)") * RATE)
