"""Batch size: how many rows a step of a live stream takes, so that it lasts about the target time.

Only live sources are controlled by time. A bounded source is divided by rows and bytes alone, so
that two runs divide it in the same way, however fast the machine is.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, linear_regression, pstdev

#: The factor by which the limit may fall or grow from one step to the next.
MOST_CHANGE = 2.0
#: A step with fewer rows than this share of the limit was not bounded by the limit: no more rows
#: were available.
_BOUND = 0.5
#: How many of the newest steps the fixed time of a step is estimated from.
_WINDOW = 32
#: If numbers of rows vary by less than this share of their mean, the fixed time cannot be estimated
#: from them.
_LEAST_SPREAD = 0.05


class BatchSize:
    """The number of rows that live sources may offer in a step.

    Each step takes a fixed time whatever it reads: for the engine, and for calls to the storage.
    Fewer rows do not shorten it. If the fixed time is more than half of the target, steps may last
    twice as long as it. Then half of all time is spent on rows, however slow the storage is.

    Args:
        target_us: how long a step should take.
        at_most: the limit that is never exceeded.

    Attributes:
        rows: the current limit.
    """

    def __init__(self, target_us: int, at_most: int) -> None:
        self.rows = at_most
        self._target_us, self._at_most = target_us, at_most
        self._steps: deque[tuple[int, int]] = deque(maxlen=_WINDOW)
        self._fixed_us = 0.0

    def note(self, rows: int, took_us: int) -> None:
        """Note a step.

        Rows are counted as sources count them, since they are given the limit. A source that reads
        only some of the rows it passes, or has to estimate, offers more rows than records come of
        it.

        A step with few rows because no more were available says little. It lowers the limit only if
        it took too long.

        Args:
            rows: how many rows the live sources offered.
            took_us: how long the step took.
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
        """Return the fixed time of a step.

        If numbers of rows hardly vary, this is the previous estimate.
        """
        rows, took = zip(*self._steps, strict=True)
        fixed = self._fixed_us
        if pstdev(rows) > _LEAST_SPREAD * fmean(rows):
            fixed = float(linear_regression(rows, took).intercept)
        return min(max(fixed, 0.0), float(min(took)))
