"""What queries 15 to 17 tell apart: days, and bids below 10 000, below 1 000 000 and above, in cents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

import headrace as hr

RANKS = ["rank1", "rank2", "rank3"]
BOUNDS = [10_000, 1_000_000]


def with_day_and_rank(bids: hr.KeyedBatch) -> dict[str, Any]:
    """Return the day of each bid (of UTC, as text), and for each rank whether it is of it, as 0 or 1."""
    rank = np.digitize(bids["price"], BOUNDS)
    day = pc.strftime(bids.arrow("date_time"), "%Y-%m-%d")
    return {"day": day, **{name: (rank == at).astype(np.int64) for at, name in enumerate(RANKS)}}
