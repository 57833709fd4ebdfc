"""Query 0, pass through: every bid as it is. What a pipeline costs that does nothing.

Bids go to their auction's worker nevertheless, as in all queries here; other forms of it move nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.queries.market import Market
from headrace.pipeline import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.nexmark.queries.spark_market import SparkMarket

COLUMNS = ["auction", "bidder", "price", "date_time", "extra"]


def migratable(market: Market) -> Node:
    """Every bid, as its auction's worker has it."""
    same = hr.ops.Filter(lambda bids: bids["auction"] > 0)
    return market.pipeline.compute("q0", same, keys={market.bids(*COLUMNS): "auction"})


def native(market: SparkMarket) -> DataFrame:
    """Every bid."""
    return market.bids(*COLUMNS)
