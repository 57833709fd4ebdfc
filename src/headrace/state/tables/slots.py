"""Which slots of a table rows have: one that is free is given to the next row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.state.tables.index import Slots

#: A table has outgrown its rows when they are such a part of its slots.
FEW = 1 / 4


class SlotPool:
    """The slots of a table, from 0 up to those that were never given.

    Attributes:
        reach: how many there are, so far.
        free: for each, whether no row has it. (Longer than ``reach``: there is room for more.)
        given: how often one was given to a row.
    """

    def __init__(self) -> None:
        self.given = 0
        self.begin(0)

    def begin(self, rows: int) -> None:
        """Begin anew: so many rows have the first slots."""
        self.reach = rows
        self.free: npt.NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self._spare: list[Slots] = []
        self._spares = 0
        self._most, self._freed = rows, 0  # most rows at once, and slots freed, since a last look

    def __len__(self) -> int:
        """How many slots rows have."""
        return self.reach - self._spares

    def in_use(self) -> Slots:
        """Return the slots that rows have, ascending. Costs all slots."""
        return np.flatnonzero(~self.free[: self.reach]).astype(np.int32)

    def take(self, rows: int) -> Slots:
        """Give some slots to rows: free ones first."""
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
        """Take slots back, each once, which rows have."""
        self.free[slots] = True
        self._spare.append(slots)
        self._spares += len(slots)
        self._freed += len(slots)

    def outgrown(self, rows: int, fewest: int) -> bool:
        """Say whether there have long been few rows for so many slots. To be asked after each step.

        Long is until as many slots as there are have been freed twice: so what is emptied and filled again
        keeps its room.

        Args:
            rows: how many there are now.
            fewest: so many slots are never too many.
        """
        self._most = max(self._most, rows)
        if self._freed <= 2 * self.reach + fewest:
            return False
        most, self._most, self._freed = self._most, rows, 0
        return most < FEW * self.reach
