"""What queries 15 to 17 tell apart: days, and bids below 10 000, below 1 000 000 and above, in cents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

import headrace as hr

if TYPE_CHECKING:
    from pyspark.sql import Column

RANKS = ["rank1", "rank2", "rank3"]
BOUNDS = [10_000, 1_000_000]


def with_day_and_rank(bids: hr.KeyedBatch) -> dict[str, Any]:
    """Return the day of each bid (of UTC, as text), and for each rank whether it is of it, as 0 or 1."""
    rank = np.digitize(bids["price"], BOUNDS)
    day = pc.strftime(bids.arrow("date_time"), "%Y-%m-%d")
    return {"day": day, **{name: (rank == at).astype(np.int64) for at, name in enumerate(RANKS)}}


def day_in_spark() -> Column:
    """Return the day of a bid (of UTC, whatever the session's zone), as text."""
    from pyspark.sql import functions as f

    days = (f.unix_seconds("date_time") / 86_400).cast("int")
    return f.date_from_unix_date(days).cast("string").alias("day")


def ranks_in_spark() -> dict[str, Column]:
    """Return for each rank whether a bid is of it."""
    from pyspark.sql import functions as f

    low, high = BOUNDS
    price = f.col("price")
    return dict(zip(RANKS, [price < low, price.between(low, high - 1), price >= high], strict=True))
