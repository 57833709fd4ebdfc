"""What is due when: rows of a table by time, lowest first; vectorised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.eventtime.timestamps import MAX_TIME
from headrace.state.index import Slots

Times = npt.NDArray[np.int64]


#: Says for slots and times, pairwise, whether the row is there and due at that time.
Holds = Callable[[Slots, Times], npt.NDArray[np.bool_]]
_LOOK = 64


class DueRows:
    """Slots by the time that they were due at when they were pushed.

    Kept as a few sorted stretches, each at least twice as long as the next, so that a push costs
    what it brings, times a logarithm. Entries go stale; the caller knows what a row is due at now.

    Args:
        holds: tells stale entries from others.
    """

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._runs: list[tuple[Times, Slots]] = []

    def __len__(self) -> int:
        return sum(len(times) for times, _ in self._runs)

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
        """Return the lowest pending time, or ``MAX_TIME``. Forgets the stale entries before it."""
        self._runs = [run for run in map(self._from_first_pending, self._runs) if len(run[0])]
        return min((int(times[0]) for times, _ in self._runs), default=MAX_TIME)

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
