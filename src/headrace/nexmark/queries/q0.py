"""Query 0, pass through: every bid as it is. It shows the cost of a pipeline that does nothing.

Bids go to their auction's worker all the same, as in all queries here. Other versions of this query
move nothing.
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
    """Return every bid, from its auction's worker."""
    same = hr.ops.Filter(lambda bids: bids["auction"] > 0)
    return market.pipeline.compute("q0", same, keys={market.bids(*COLUMNS): "auction"})


def native(market: SparkMarket) -> DataFrame:
    """Return every bid."""
    return market.bids(*COLUMNS)
