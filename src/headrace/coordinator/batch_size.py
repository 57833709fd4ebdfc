"""Pace: how much a step of a live stream takes, so that it lasts about as long as it should.

Only live sources are paced by time. A bounded source is divided by rows and bytes alone, so that two
runs of it divide it alike, however fast the machine is.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, linear_regression, pstdev

#: A step may take at most so many times what the step before took, or that part of it.
MOST_CHANGE = 2.0
#: Fewer rows than such a part of the limit were not limited by it: no more were there.
_BOUND = 0.5
#: So many newest steps tell what a step takes whatever it brings.
_WINDOW = 32
#: When numbers of rows differ by less than such a part, they do not tell what a step takes without any.
_LEAST_SPREAD = 0.1


class BatchSize:
    """How many rows live sources may bring in a step.

    A step takes some time whatever it brings: the engine's, and that of calls to a storage. Fewer rows
    do not shorten that. So where it is more than half of what a step should take, steps may last twice as
    long as it: half of all time is then spent on rows, however slow the storage is.

    Args:
        target_us: how long a step should take.
        at_most: the limit that is never passed.

    Attributes:
        rows: how many they may bring now.
    """

    def __init__(self, target_us: int, at_most: int) -> None:
        self.rows = at_most
        self._target_us, self._at_most = target_us, at_most
        self._steps: deque[tuple[int, int]] = deque(maxlen=_WINDOW)
        self._fixed_us = 0.0

    def note(self, rows: int, took_us: int) -> None:
        """Note a step.

        Rows are counted as sources count them that are given the limit: one that reads only some of what
        it passes, or can but guess, offers more than records come of it.

        A step that brought few because no more were there says little; it never lowers the limit unless
        it took too long.

        Args:
            rows: how many the live sources offered.
            took_us: how long it took.
        """
        if rows <= 0 or took_us <= 0:
            return
        self._steps.append((rows, took_us))
        self._fixed_us = fixed = self._without_rows()
        aim = max(self._target_us, 2 * fixed)
        ideal = rows * (aim - fixed) / max(took_us - fixed, 1.0)
        if took_us > aim:
            self._set(max(ideal, self.rows / MOST_CHANGE))
        elif rows >= self.rows * _BOUND:
            self._set(min(max(ideal, self.rows), self.rows * MOST_CHANGE))

    def _set(self, rows: float) -> None:
        self.rows = max(1, min(self._at_most, round(rows)))

    def _without_rows(self) -> float:
        """Return what a step takes without any: what it was before, where rows hardly differ."""
        rows, took = zip(*self._steps, strict=True)
        fixed = self._fixed_us
        if pstdev(rows) > _LEAST_SPREAD * fmean(rows):
            fixed = float(linear_regression(rows, took).intercept)
        return min(max(fixed, 0.0), float(min(took)))
