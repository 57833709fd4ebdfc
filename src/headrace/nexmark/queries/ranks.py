"""The groups of queries 15 to 17: days, and ranks of bids.

Ranks are: below 10 000, below 1 000 000, and above, in cents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace as hr
from headrace.nexmark.draws import I64

if TYPE_CHECKING:
    from pyspark.sql import Column

RANKS = ["rank1", "rank2", "rank3"]
BOUNDS = [10_000, 1_000_000]
DAY_US = 86_400_000_000


def by_day(bids: hr.KeyedBatch) -> hr.KeyedBatch:
    """Return bids divided by ``day`` (of UTC) as well."""
    return bids.by(day=bids.timestamps_us // DAY_US)


def counts_by_rank(bids: hr.KeyedBatch) -> dict[str, I64]:
    """Return the number of bids of each rank, for each key."""
    low, high = BOUNDS
    price = bids["price"]
    ranks = [price < low, (price >= low) & (price < high), price >= high]
    return {name: bids.sum(rank) for name, rank in zip(RANKS, ranks, strict=True)}


def day_in_spark() -> Column:
    """Return the day of a bid (of UTC, whatever the session's time zone)."""
    from pyspark.sql import functions as f

    days = (f.unix_seconds("date_time") / 86_400).cast("int")
    return f.date_from_unix_date(days).alias("day")


def ranks_in_spark() -> dict[str, Column]:
    """Return, for each rank, whether a bid is of it."""
    from pyspark.sql import functions as f

    low, high = BOUNDS
    price = f.col("price")
    return dict(zip(RANKS, [price < low, price.between(low, high - 1), price >= high], strict=True))
