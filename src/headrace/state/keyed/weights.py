"""How much memory the cells of keys take.

A key with small content counts as a flat amount, so computations with small state pay nothing for
this. What takes more is counted where it is encoded or decoded anyway: large rows by their stored
size, and maps, lists and timers by the number of their entries. The stored size is multiplied by a
factor, which is measured with a few rows of each declaration. (A list of numbers takes several
times as much in memory as it takes in a file.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.schema.memory import memory_of
from headrace.state.keyed.cells import KeyCells

#: About how many bytes a key with its cells takes in memory, measured with small values.
KEY_BYTES = 512
#: A row that takes no more than this, in bytes, is part of the flat amount.
SMALL = 256
#: An entry of a map or list takes about this many bytes, besides its value.
ENTRY_BYTES = 128
#: Keys with up to this many entries in a slot count as a flat amount.
FEW = 4
#: What counting a key costs, in bytes.
_COUNTED_BYTES = 320
#: Rows of a declaration that are measured in a step, and steps after which measuring is rarer.
_SAMPLE = 4
_OFTEN = 64
_SELDOM = 16
#: Larger rows are measured only until something is known.
_LONG = 1 << 18

#: A slot, or a row of it.
_Part = int | tuple[int, bytes]


class Weights:
    """What keys take in memory beyond :data:`KEY_BYTES` each.

    Args:
        slots: the number of slots of a key.

    Attributes:
        small: for each slot, up to which stored size a row need not be noted.
    """

    def __init__(self, slots: int) -> None:
        self.small = [SMALL] * slots
        self._of: dict[KeyCells, dict[_Part, int]] = {}
        self._stored = [0] * slots  # stored bytes of the large rows
        self._entries = [0] * slots  # entries of keys with many
        self._factors = [1.0] * slots
        self._means = [0.0] * slots  # what small rows take in memory
        self._samples = [_Sample() for _ in range(slots)]
        self._steps = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    @property
    def nbytes(self) -> int:
        """How many bytes all of this takes."""
        counted = sum(map(self._bytes_of, range(len(self.small)), self._stored, self._entries))
        return int(counted) + len(self._of) * _COUNTED_BYTES

    def _bytes_of(self, slot: int, stored: int, entries: int) -> float:
        return stored * self._factors[slot] + entries * (ENTRY_BYTES + self._means[slot])

    def note(self, cells: KeyCells, slot: int, entries: int, rows: Iterable[Any]) -> None:
        """Note what a slot of a key holds now.

        Args:
            cells: the key.
            slot: the slot.
            entries: how many entries the slot has; 0 for a value.
            rows: (sub, stored value, ...) of the rows that have changed. None was deleted.
        """
        parts, small = self._of.get(cells), self.small[slot]
        sizes = [(sub, 0 if value is None else len(sub) + len(value)) for sub, value, *_ in rows]
        if parts is None:
            if entries <= FEW and all(size <= small for _, size in sizes):
                return
            parts = self._of[cells] = {}
        for sub, size in sizes:
            self._set(parts, (slot, sub), slot, size if size > small else 0)
        counted = entries if entries > FEW else 0
        before = parts.pop(slot, 0)
        self._entries[slot] += counted - before
        if counted:
            parts[slot] = counted
        if not parts:
            del self._of[cells]

    def _set(self, parts: dict[_Part, int], part: _Part, slot: int, size: int) -> None:
        self._stored[slot] += size - parts.pop(part, 0)
        if size:
            parts[part] = size

    def forget(self, cells: KeyCells) -> None:
        """Forget a key."""
        for part, count in self._of.pop(cells, {}).items():
            if isinstance(part, int):
                self._entries[part] -= count
            else:
                self._stored[part[0]] -= count

    def by_key(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return the hashes of the keys that take more than a flat amount, and how much more."""
        hashes = np.array([cells.hash for cells in self._of], dtype=np.uint64)
        sizes = (_COUNTED_BYTES + self._weight(parts) for parts in self._of.values())
        return hashes, np.fromiter(sizes, dtype=np.int64, count=len(hashes))

    def _weight(self, parts: dict[_Part, int]) -> int:
        counted = (
            self._bytes_of(part, 0, count)
            if isinstance(part, int)
            else self._bytes_of(part[0], count, 0)
            for part, count in parts.items()
        )
        return int(sum(counted))

    # -- measuring ----------------------------------------------------------------------------

    def measures_now(self) -> bool:
        """Return whether rows should be measured in this step. Call it once a step."""
        self._steps += 1
        return self._steps <= _OFTEN or not self._steps % _SELDOM

    def measure(self, slot: int, values: Sequence[bytes | None], decode: Any) -> None:
        """Measure a few rows.

        Args:
            slot: the slot that they belong to.
            values: the stored values; None was deleted.
            decode: returns a value as it is in memory.
        """
        sample = self._samples[slot]
        for value in values[:: len(values) // _SAMPLE + 1]:
            if value is None or (len(value) > _LONG and sample.count >= _SAMPLE):
                continue
            sample.add(len(value), memory_of(decode(value)))
        self._factors[slot] = sample.factor
        self._means[slot] = sample.mean_small
        self.small[slot] = int(SMALL / max(1.0, sample.factor))


class _Sample:
    """What measured rows of one slot take."""

    def __init__(self) -> None:
        self.count = 0
        self._stored = self._memory = 0.0
        self._small = self._small_bytes = 0.0

    def add(self, stored: int, memory: int) -> None:
        self.count += 1
        if self.count % _OFTEN == 0:  # older rows count less
            for name in ("_stored", "_memory", "_small", "_small_bytes"):
                setattr(self, name, getattr(self, name) / 2)
        if memory > SMALL:
            self._stored += stored
            self._memory += memory
        else:
            self._small += 1
            self._small_bytes += memory

    @property
    def factor(self) -> float:
        return self._memory / self._stored if self._stored else 1.0

    @property
    def mean_small(self) -> float:
        return self._small_bytes / self._small if self._small else 0.0
