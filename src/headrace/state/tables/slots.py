"""The slots of a table: rows that are created get slots that became free."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.state.tables.index import Slots

#: With less than this share of its slots in use, a table is too large for its rows.
FEW = 1 / 4


class SlotPool:
    """The slots of a table, from 0 up to those that were never used.

    Attributes:
        reach: the number of slots so far.
        free: for each slot, whether it has no row. Longer than ``reach``, with room for more.
        given: how often a slot was given to a row.
    """

    def __init__(self) -> None:
        self.given = 0
        self.begin(0)

    def begin(self, rows: int) -> None:
        """Start over: the first slots are in use, one for each row."""
        self.reach = rows
        self.free: npt.NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self._spare: list[Slots] = []
        self._spares = 0
        # Since the last check: most rows at once, and slots freed.
        self._most, self._freed = rows, 0

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return self.reach - self._spares

    def in_use(self) -> Slots:
        """Return the slots in use, ascending. Costs all slots."""
        return np.flatnonzero(~self.free[: self.reach]).astype(np.int32)

    def take(self, rows: int) -> Slots:
        """Return slots for new rows: free ones first."""
        self.given += rows
        parts = []
        while rows and self._spare:
            some = self._spare.pop()
            parts.append(some[:rows])
            if len(some) > rows:
                self._spare.append(some[rows:])
            rows -= len(parts[-1])
            self._spares -= len(parts[-1])
        parts.append(np.arange(self.reach, self.reach + rows, dtype=np.int32))
        self.reach += rows
        slots = np.concatenate(parts)
        if self.reach > len(self.free):
            self.free = np.append(self.free, np.zeros(self.reach // 8 + rows, dtype=np.bool_))
        self.free[slots] = False
        return slots

    def release(self, slots: Slots) -> None:
        """Take back slots that are in use, each once."""
        self.free[slots] = True
        self._spare.append(slots)
        self._spares += len(slots)
        self._freed += len(slots)

    def outgrown(self, rows: int, fewest: int) -> bool:
        """Return whether rows have long been few for the number of slots. Call it after each step.

        "Long" is the time in which as many slots as there are were freed twice. So a table that is
        emptied and filled again keeps its room.

        Args:
            rows: the current number of rows.
            fewest: a number of slots that is never too many.
        """
        self._most = max(self._most, rows)
        if self._freed <= 2 * self.reach + fewest:
            return False
        most, self._most, self._freed = self._most, rows, 0
        return most < FEW * self.reach
