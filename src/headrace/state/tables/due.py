"""What is due when: rows of a table by time, lowest first; vectorised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.distinct import distinct
from headrace.state.tables.index import Slots
from headrace.state.tables.sorted_runs import SortedRuns

Times = npt.NDArray[np.int64]


#: Says for slots and times, pairwise, whether the row is there and due at that time.
Holds = Callable[[Slots, Times], npt.NDArray[np.bool_]]
_LOOK = 64


class DueRows(SortedRuns):
    """Slots by the time that they were due at when they were pushed.

    Entries go stale; the caller knows what a row is due at now.

    Args:
        holds: tells stale entries from others.
    """

    def __init__(self, holds: Holds) -> None:
        super().__init__(np.int64)
        self._holds = holds

    def lowest(self) -> int:
        """Return the lowest pending time, or ``MAX_TIME``. Forgets the stale entries before it."""
        runs = map(self._from_first_pending, self.stretches)
        self.stretches = [run for run in runs if len(run[0])]
        return min((int(times[0]) for times, _ in self.stretches), default=MAX_TIME)

    def bound(self) -> int:
        """Return a time that no pending one is before, at once; ``MAX_TIME`` for none."""
        return min((int(times[0]) for times, _ in self.stretches), default=MAX_TIME)

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
        """Remove what was due up to a time; return the slots, each once, ascending."""
        return distinct(self.pop(until))
