"""Sums of what was noted lately: what is older counts less, by half after each half-life."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

#: What was measured so long ago counts half.
HALF_LIFE_US = 30_000_000

#: Gains are kept below 2 to this.
_MOST_DOUBLINGS = 512.0
#: Between two readings of the clock at most so many half-lives pass: what is older counts for nothing, and
#: one that is years ahead must not keep what comes from fading.
_MOST_HALF_LIVES = 64


class ExponentialDecay:
    """How much more counts what is noted now than what was noted first.

    Instead of letting all sums fade with time, which would cost as much as there is, what is added is
    raised; quotients of sums need nothing else. Once in a few hours the sums are lowered.

    Args:
        half_life_us: see above.
    """

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._half_life_us = half_life_us
        self._passed_us = 0  # since the sums were lowered
        self._last_us: int | None = None

    def gain(self, now_us: int, *sums: F64) -> float:
        """Return what to multiply by what is added to sums now; lower the sums if that becomes large."""
        last, self._last_us = self._last_us, now_us
        if last is not None:
            self._passed_us += min(max(0, now_us - last), _MOST_HALF_LIVES * self._half_life_us)
        doublings = self._passed_us / self._half_life_us
        if doublings > _MOST_DOUBLINGS:
            for column in sums:
                np.multiply(column, 2.0 ** -min(doublings, 1_074.0), out=column)
            self._passed_us, doublings = 0, 0.0
        return float(2.0**doublings)
