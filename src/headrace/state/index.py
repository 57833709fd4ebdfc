"""Where the row of a hash is: a vectorised hash table from 64-bit hashes to slots.

Open addressing with linear probing. A row's home is given by the leading bits of its hash, so that
needles in ascending order walk through the table once, in memory order; a look-up of many needles is a
few NumPy instructions a round, and the rounds get short quickly, since at most half of the places
are taken. Measured on one core: 300 000 ascending needles among 10^7 rows in 12 ms, against 33 ms by
binary search in a sorted column, which moreover would have to be merged for each new row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int32]
#: Says for needles (by position) and slots, pairwise, whether they are the same row.
Same = Callable[[npt.NDArray[np.int64], Slots], npt.NDArray[np.bool_]]

NO_SLOT = -1
_FEWEST_BITS = 10


class SlotIndex:
    """Maps hashes to slots. Slots are the caller's; the index never looks at rows by itself."""

    def __init__(self) -> None:
        self._resize(_FEWEST_BITS)

    def _resize(self, bits: int) -> None:
        self._shift = np.uint64(64 - bits)
        self._mask = np.int64((1 << bits) - 1)
        self._places: Slots = np.full(1 << bits, NO_SLOT, dtype=np.int32)
        self._taken = 0

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self._places.nbytes

    def find(self, needles: U64, same: Same) -> Slots:
        """Return the slot of each needle, or ``NO_SLOT``.

        Args:
            needles: hashes; fastest in ascending order.
            same: compares a needle with the row in a slot.
        """
        place = (needles >> self._shift).astype(np.int64)
        found = self._places[place]
        at = np.flatnonzero(found != NO_SLOT)
        left = at[~same(at, found[at])]
        found[left] = NO_SLOT
        place = place[left]
        while len(left):
            place = (place + 1) & self._mask
            slots = self._places[place]
            on = slots != NO_SLOT
            left, place, slots = left[on], place[on], slots[on]
            hit = same(left, slots)
            found[left[hit]] = slots[hit]
            left, place = left[~hit], place[~hit]
        return found

    def add(self, hashes: U64, slots: Slots) -> None:
        """Add rows that are not there yet; there must be room."""
        place = (hashes >> self._shift).astype(np.int64)
        left = slots
        self._taken += len(slots)
        while len(left):
            free = self._places[place] == NO_SLOT
            self._places[place[free]] = left[free]  # of several for one place the last stays
            lost = self._places[place] != left
            left, place = left[lost], (place[lost] + 1) & self._mask

    def has_room(self, more: int) -> bool:
        """Say whether so many rows can be added and half of the places stay free."""
        return 2 * (self._taken + more) <= len(self._places)

    def rebuild(self, hashes: U64, more: int) -> None:
        """Begin anew with rows in slots 0, 1, ...; make room for more.

        Costs all rows; since room doubles, each row pays for it once or twice in its life.
        """
        rows = len(hashes) + more
        self._resize(max(_FEWEST_BITS, int(2 * rows - 1).bit_length()))
        order = np.argsort(hashes).astype(np.int32)
        self.add(hashes[order], order)
