"""Slots in ascending order of some value: pushed many at a time, found by range. Vectorised."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.keyspace.spans import positions
from headrace.state.tables.index import Slots

Values = npt.NDArray[Any]


class SortedRuns:
    """Pairs (value, slot) in a few sorted stretches, each at least twice as long as the next.

    So a push costs the number of new pairs, times a logarithm.

    Args:
        dtype: the type of the values.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self.runs: list[tuple[Values, Slots]] = []

    def __len__(self) -> int:
        return sum(len(values) for values, _ in self.runs)

    def push(self, values: Values, slots: Slots) -> None:
        """Add pairs, in any order."""
        if not len(values):
            return
        while self.runs and len(self.runs[-1][0]) < 2 * len(values):
            more_values, more_slots = self.runs.pop()
            values, slots = np.append(more_values, values), np.append(more_slots, slots)
        if (values[1:] < values[:-1]).any():
            order = np.argsort(values, kind="stable")
            values, slots = values[order], slots[order]
        else:
            values, slots = values.copy(), slots.copy()
        self.runs.append((values, slots))

    def between(self, firsts: Values, lasts: Values) -> Slots:
        """Return the slots of all pairs with first <= value <= last for one of some ranges."""
        found = [np.empty(0, dtype=np.int32)]
        for values, slots in self.runs:
            lows = np.searchsorted(values, firsts, side="left")
            highs = np.searchsorted(values, lasts, side="right")
            found.append(slots[positions(lows, highs - lows)])
        return np.concatenate(found)

    def located(self, values: Values) -> tuple[npt.NDArray[np.int64], Slots]:
        """Return the pairs of some values: the position of each pair's value, and its slot.

        Args:
            values: each once.
        """
        found = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32))]
        for run, slots in self.runs:
            lows = np.searchsorted(run, values, side="left")
            counts = np.searchsorted(run, values, side="right") - lows
            at = np.repeat(np.arange(len(values)), counts)
            found.append((at, slots[positions(lows, counts)]))
        return np.concatenate([at for at, _ in found]), np.concatenate([s for _, s in found])

    def pop(self, until: Any) -> Slots:
        """Remove all pairs up to a value. Return their slots."""
        found = [np.empty(0, dtype=np.int32)]
        left: list[tuple[Values, Slots]] = []
        for values, slots in self.runs:
            end = int(np.searchsorted(values, self._dtype.type(until), side="right"))
            found.append(slots[:end])
            if end < len(values):
                left.append((values[end:], slots[end:]))
        self.runs = left
        return np.concatenate(found)
