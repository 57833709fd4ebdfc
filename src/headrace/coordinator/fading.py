"""Sums of what was noted lately: what is older counts less, by half after each half-life."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

#: What was measured so long ago counts half.
HALF_LIFE_US = 30_000_000

#: Gains are kept below 2 to this.
_MOST_DOUBLINGS = 512.0


class Fading:
    """How much more counts what is noted now than what was noted first.

    Instead of letting all sums fade with time, which would cost as much as there is, what is added is
    raised; quotients of sums need nothing else. Once in a few hours the sums are lowered.

    Args:
        half_life_us: see above.
    """

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._half_life_us = half_life_us
        self._origin_us: int | None = None

    def gain(self, now_us: int, *sums: F64) -> float:
        """Return what to multiply by what is added to sums now; lower the sums if that becomes large."""
        if self._origin_us is None:
            self._origin_us = now_us
        doublings = max(0.0, (now_us - self._origin_us) / self._half_life_us)
        if doublings > _MOST_DOUBLINGS:
            for column in sums:
                np.multiply(column, 2.0 ** -min(doublings, 1_074.0), out=column)
            self._origin_us, doublings = now_us, 0.0
        return float(2.0**doublings)
