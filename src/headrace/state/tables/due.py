"""The rows of a table by the time at which they are due, lowest first. Vectorised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.distinct import distinct
from headrace.state.tables.index import Slots
from headrace.state.tables.sorted_runs import SortedRuns

Times = npt.NDArray[np.int64]


#: Returns for pairs of a slot and a time whether the slot's row exists and is due at that time.
Holds = Callable[[Slots, Times], npt.NDArray[np.bool_]]
_LOOK = 64


class DueRows(SortedRuns):
    """Slots, ordered by the time at which they were due when they were pushed.

    Entries may become stale. Only the caller knows when a row is due now.

    Args:
        holds: recognises entries that are not stale.
    """

    def __init__(self, holds: Holds) -> None:
        super().__init__(np.int64)
        self._holds = holds

    def lowest(self) -> int:
        """Return the lowest pending time, or ``MAX_TIME``. Removes the stale entries before it."""
        runs = map(self._from_first_pending, self.runs)
        self.runs = [run for run in runs if len(run[0])]
        return min((int(times[0]) for times, _ in self.runs), default=MAX_TIME)

    def bound(self) -> int:
        """Return a lower bound of the pending times, at once; ``MAX_TIME`` if there are none."""
        return min((int(times[0]) for times, _ in self.runs), default=MAX_TIME)

    def _from_first_pending(self, run: tuple[Times, Slots]) -> tuple[Times, Slots]:
        times, slots = run
        first, step = 0, _LOOK
        while first < len(times):
            pending = self._holds(slots[first : first + step], times[first : first + step])
            if pending.any():
                first += int(np.argmax(pending))
                break
            first, step = first + step, 2 * step
        return times[first:], slots[first:]

    def pop_due(self, until: int) -> Slots:
        """Remove the entries up to a time. Return their slots, each once, ascending."""
        return distinct(self.pop(until))
