"""The index of a table in a few segments, so that hashes which were not expected find room.

A row's home in a segment is proportional to the position of its hash in the ranges for which the
segment was made. Hashes of other ranges would all have one home, at an edge. So ranges that a
worker gains get a segment of their own. So do bins that are read from storage, since their rows
would crowd among others.

**Joining.** A segment that is at most twice as large as the next is joined with it, as in an LSM
tree. So segments are few, and a row is moved a logarithmic number of times. The first segment holds
the rows from before. Joining it would hold up a step the longest, so it is joined only when it is
less than half as large as the next.

**Rebuilding.** In that case, or when it is full, the whole table is indexed again for the current
ranges. While nothing is gained there is one segment, and no cost. A rebuilt segment is made only
for ranges that are still expected. Otherwise the homes in lost ranges would stay empty, and rows
would crowd in the others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headrace.keyspace.arrays import U64
from headrace.keyspace.distinct import distinct
from headrace.keyspace.ranges import Ranges
from headrace.state.tables.index import NO_SLOT, Same, Segment, Slots

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class SlotIndex:
    """A map from hashes to slots. The caller owns the slots; the index never looks at rows.

    Args:
        ranges: the hashes that rows are expected to have. None for any.
    """

    def __init__(self, ranges: Ranges | None) -> None:
        self._begin(ranges)

    def _begin(self, ranges: Ranges | None) -> None:
        self._now = (
            Ranges.everything() if ranges is None else ranges
        )  # the hashes that are expected
        self._made_for = self._now  # the hashes that segments were made for, including lost ones
        self._segments = [Segment(self._made_for)]
        self._edges: U64 = np.zeros(1, dtype=np.uint64)  # where the ranges of segments begin
        self._numbers: I64 = np.zeros(1, dtype=np.int64)  # and to which segment each belongs

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._segments)

    def find(self, needles: U64, same: Same) -> Slots:
        """Return the slot of each needle, or ``NO_SLOT``; see :meth:`Segment.find`."""
        if len(self._segments) == 1:
            return self._segments[0].find(needles, same)
        found: Slots = np.full(len(needles), NO_SLOT, dtype=np.int32)
        for segment, at in self._divided(needles):
            found[at] = segment.find(needles[at], _among(same, at))
        return found

    def near(self, ranges: Ranges) -> Slots:
        """Return the slots of all rows of some hashes, and of some neighbours, each once."""
        return np.concatenate([of.near(of.ranges.within(ranges)) for of in self._segments])

    def add(self, hashes: U64, slots: Slots, hashes_of: U64) -> bool:
        """Add rows that are not in the index.

        Args:
            hashes: hashes of the rows.
            slots: slots of the rows.
            hashes_of: the hashes of all slots, including these.

        Returns:
            Whether they were added. If not, the whole table must be indexed again.
        """
        first = self._segments[0]
        if len(self._segments) == 1:
            return first.has_room(len(slots)) and first.add(hashes, slots)
        for segment, at in self._divided(hashes):
            if segment.has_room(len(at)) and segment.add(hashes[at], slots[at]):
                continue
            if segment is first:
                return False
            there = distinct(np.concatenate([segment.slots(), slots[at]]))
            self._put(segment, self._made(segment.ranges, there, len(there), hashes_of))
        return self._join_small(hashes_of)

    def remove(self, hashes: U64, gone: Mask, hashes_of: U64) -> None:
        """Remove rows that are in the index; see :meth:`Segment.remove`."""
        for segment, at in self._divided(hashes):
            segment.remove(hashes[at], gone, hashes_of)

    def expect(self, ranges: Ranges, hashes_of: U64) -> bool:
        """Set the hashes that are expected. None of the new ones may have rows yet.

        Args:
            ranges: the hashes.
            hashes_of: the hashes of all slots.

        Returns:
            Whether that was done. If not, the whole table must be indexed again.
        """
        self._now = ranges
        gained = ranges.without(self._made_for)
        if not len(gained):
            return True
        self._segments.append(Segment(gained))
        self._made_for = self._made_for.plus(gained)
        self._route()
        return self._join_small(hashes_of)

    def make_room(self, ranges: Ranges, there: Slots, gone: Mask, hashes_of: U64) -> bool:
        """Give hashes that will get many rows a segment of their own, so that they do not crowd.

        Args:
            ranges: the hashes.
            there: the slots of the few rows that are present already.
            gone: for each slot, whether it is one of these.
            hashes_of: the hashes of all slots.

        Returns:
            Whether that was done. If not, the whole table must be indexed again.
        """
        if not any(segment.taken for segment in self._segments):
            return True  # the rows to come will be the first, and the index is built for them
        self.remove(hashes_of[there], gone, hashes_of)
        for segment in self._segments:
            segment.ranges = segment.ranges.without(ranges)
        self._now = self._now.plus(ranges)
        self._made_for = self._made_for.plus(ranges)
        self._segments.append(self._made(ranges, there, 0, hashes_of))
        self._route()
        return self._join_small(hashes_of)

    def rebuild(self, ranges: Ranges | None, hashes: U64, slots: Slots, more: int) -> None:
        """Start over with one segment for the current ranges, and make room for more rows."""
        self._begin(ranges)
        self._segments[0].rebuild(hashes, slots, more)

    # -- segments -----------------------------------------------------------------------------

    def _divided(self, hashes: U64) -> Iterator[tuple[Segment, I64]]:
        """Yield each segment with the positions of the hashes that belong to it."""
        if len(self._segments) == 1:
            yield self._segments[0], np.arange(len(hashes))
            return
        numbers = self._numbers[np.searchsorted(self._edges, hashes, side="right") - 1]
        for number, segment in enumerate(self._segments):
            at = np.flatnonzero(numbers == number)
            if len(at):
                yield segment, at

    def _route(self) -> None:
        firsts = [np.zeros(1, dtype=np.uint64), *(s.ranges.firsts for s in self._segments)]
        owners = [0, *(number for number, s in enumerate(self._segments) for _ in s.ranges.firsts)]
        edges = np.concatenate(firsts)
        order = np.argsort(edges, kind="stable")
        self._edges, self._numbers = edges[order], np.array(owners, dtype=np.int64)[order]

    def _join_small(self, hashes_of: U64) -> bool:
        """Join neighbouring segments of similar size.

        Returns:
            Whether that was done. If not, all would be joined: the whole table must be indexed
            again.
        """
        at = len(self._segments) - 1
        while at > 0:
            before, last = self._segments[at - 1], self._segments[at]
            if at == 1:
                return 2 * before.taken >= last.taken
            if before.taken <= 2 * last.taken:
                slots = np.concatenate([before.slots(), last.slots()])
                ranges = before.ranges.plus(last.ranges)
                del self._segments[at]
                self._put(before, self._made(ranges, slots, len(slots) // 8, hashes_of))
                at = len(self._segments)
            at -= 1
        return True

    def _made(self, ranges: Ranges, slots: Slots, more: int, hashes_of: U64) -> Segment:
        """Return a segment with some rows and room for more. It covers ranges still expected."""
        ranges = ranges.within(self._now)
        made = Segment(ranges)
        made.rebuild(hashes_of[slots], slots, more)
        return made

    def _put(self, old: Segment, new: Segment) -> None:
        """Replace a segment. Ranges that the new one was not made for are no longer expected."""
        self._segments[self._segments.index(old)] = new
        self._made_for = functools.reduce(Ranges.plus, (of.ranges for of in self._segments))
        self._route()


def _among(same: Same, at: I64) -> Same:
    return lambda rows, slots: same(at[rows], slots)
