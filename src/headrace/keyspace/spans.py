"""Positions that lie in stretches of consecutive numbers. Vectorised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


def positions(begins: I64, counts: I64) -> I64:
    """Return the positions in some stretches, one stretch after the other.

    Args:
        begins: where each stretch begins.
        counts: how long each is, from 0 on.

    >>> positions(np.array([7, 1, 4]), np.array([2, 0, 3])).tolist()
    [7, 8, 4, 5, 6]
    """
    before = np.cumsum(counts) - counts
    found: I64 = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
    return found
