"""What is due when: rows of a table by time, lowest first; vectorised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.eventtime.timestamps import MAX_TIME
from headrace.state.index import Slots

Times = npt.NDArray[np.int64]


class DueRows:
    """Slots by the time that they were due at when they were pushed.

    Kept as a few sorted stretches, each at least twice as long as the next, so that a push costs
    what it brings, times a logarithm. Entries go stale and are returned all the same: the caller
    knows what a row is due at now.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Times, Slots]] = []

    def push(self, times: Times, slots: Slots) -> None:
        """Add rows."""
        if not len(times):
            return
        while self._runs and len(self._runs[-1][0]) < 2 * len(times):
            more_times, more_slots = self._runs.pop()
            times, slots = np.append(more_times, times), np.append(more_slots, slots)
        order = np.argsort(times, kind="stable")
        self._runs.append((times[order], slots[order]))

    def lowest(self) -> int:
        """Return a lower bound of the pending times, or ``MAX_TIME``."""
        return min((int(times[0]) for times, _ in self._runs), default=MAX_TIME)

    def pop(self, until: int) -> Slots:
        """Remove what was due up to a time; return the slots, each once, ascending."""
        found: list[Slots] = []
        left: list[tuple[Times, Slots]] = []
        for times, slots in self._runs:
            end = int(np.searchsorted(times, until, side="right"))
            if end:
                found.append(slots[:end])
            if end < len(times):
                left.append((times[end:], slots[end:]))
        self._runs = left
        return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int32)
