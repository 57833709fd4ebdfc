"""Exponential decay of sums: what was added one half-life ago counts half."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

#: Default half-life of what is measured, in microseconds.
HALF_LIFE_US = 30_000_000

#: Gains stay below 2 to the power of this.
_MOST_DOUBLINGS = 512.0
#: Maximum number of half-lives that pass between two clock readings. Older values count for nothing
#: anyway, and a reading that is years ahead must not keep later values from decaying.
_MOST_HALF_LIVES = 64


class ExponentialDecay:
    """Weights for sums whose older parts count less.

    Letting all sums decay with time would cost as much as there are sums. Instead, what is added is
    multiplied by a gain that grows with time. Quotients of sums are the same as with decay, and
    only quotients are used. Once in a few hours the sums are scaled down.

    Args:
        half_life_us: after this time a value counts half, in microseconds.
    """

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._half_life_us = half_life_us
        self._passed_us = 0  # time since the sums were scaled down
        self._last_us: int | None = None

    def gain(self, now_us: int, *sums: F64) -> float:
        """Return the factor for values that are added to sums now.

        If the factor becomes large, the sums are scaled down in place.
        """
        last, self._last_us = self._last_us, now_us
        if last is not None:
            self._passed_us += min(max(0, now_us - last), _MOST_HALF_LIVES * self._half_life_us)
        doublings = self._passed_us / self._half_life_us
        if doublings > _MOST_DOUBLINGS:
            for column in sums:
                np.multiply(column, 2.0 ** -min(doublings, 1_074.0), out=column)
            self._passed_us, doublings = 0, 0.0
        return float(2.0**doublings)
