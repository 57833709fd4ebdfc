"""The queues in which keys wait for their timers, holds and expiring state."""

from __future__ import annotations

import heapq

from headrace.eventtime.timestamps import MAX_TIME
from headrace.state.keyed.cell_types import CellType
from headrace.state.keyed.cells import KeyCells, Waiting
from headrace.state.keyed.expiring import NEVER

#: Up to this number of stale entries, a queue is not searched for them.
_FEWEST_STALE = 1_024


class TimerQueue:
    """Keys with pending timers of one domain, or with holds, ordered by their lowest timers.

    A key waits under one time, which is never after its lowest timer. A timer that is set to a
    later time leaves the queue alone. When the key's time comes, the key is looked at, and waits
    on. So a timer that every record postpones costs nothing, and the queue is about as long as the
    number of keys.

    Args:
        place: the queue's position in ``KeyCells.queued``.
        slots: the slots of its timers.
    """

    def __init__(self, place: int, slots: list[int]) -> None:
        self._place = place
        self._slots = slots
        self._heap: list[Waiting] = []
        self._pushed = 0
        self._keys = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, time: int, cells: KeyCells) -> None:
        """Add a key under a timer's time, unless it waits under an earlier one."""
        place = self._place
        before = cells.queued[place]
        if before is None:
            self._keys += 1
        elif time >= before:
            return
        cells.queued = (*cells.queued[:place], time, *cells.queued[place + 1 :])
        self._pushed += 1
        heapq.heappush(self._heap, (time, self._pushed, cells))
        self.tidy()

    def push_lowest(self, cells: KeyCells) -> None:
        """Add a key under its lowest timer, if it has one."""
        time = self._lowest_of(cells)
        if time is not None:
            self.push(time, cells)

    def lowest_of(self, cells: KeyCells) -> int | None:
        """Return the lowest pending time of a key, or None."""
        return self._lowest_of(cells)

    def _lowest_of(self, cells: KeyCells) -> int | None:
        tags = [tags for slot in self._slots if (tags := cells.slots[slot])]
        return min([min(times.values()) for times in tags], default=None)

    def _is_stale(self, entry: Waiting) -> bool:
        return entry[2].queued[self._place] != entry[0]

    def forget(self, cells: KeyCells) -> None:
        """Stop waiting for a key. :meth:`drop_stale` removes its entry."""
        place = self._place
        if cells.queued[place] is not None:
            cells.queued = (*cells.queued[:place], None, *cells.queued[place + 1 :])
            self._keys -= 1

    def lowest(self) -> int:
        """Return the lowest pending time, or ``MAX_TIME``."""
        while self._heap:
            entry = self._heap[0]
            if self._is_stale(entry):
                heapq.heappop(self._heap)
                continue
            cells = entry[2]
            if self._lowest_of(cells) == entry[0]:
                return entry[0]
            self.forget(cells)
            self.push_lowest(cells)
        return MAX_TIME

    def bound(self) -> int:
        """Return a lower bound of the pending times, at once.

        Using :meth:`lowest` in each step instead would make timers that are postponed cost
        something.
        """
        return self._heap[0][0] if self._heap else MAX_TIME

    def tidy(self) -> None:
        """Remove stale entries if most entries are stale."""
        if len(self._heap) > 2 * self._keys + _FEWEST_STALE:
            self.drop_stale()

    def drop_stale(self) -> None:
        """Remove stale entries, which also frees the keys that they refer to."""
        self._heap = [entry for entry in self._heap if not self._is_stale(entry)]
        heapq.heapify(self._heap)

    def due_keys(self, until: int) -> list[KeyCells]:
        """Return the keys with timers up to a time, each once. They no longer wait."""
        due: list[KeyCells] = []
        while self._heap and self._heap[0][0] <= until:
            entry = heapq.heappop(self._heap)
            if self._is_stale(entry):
                continue
            cells = entry[2]
            self.forget(cells)
            time = self._lowest_of(cells)
            if time is not None and time <= until:
                due.append(cells)
            elif time is not None:
                self.push(time, cells)
        return due


class ExpiryQueue(TimerQueue):
    """Keys with state that expires in one time domain, ordered by their first expiry times.

    Args:
        place: the queue's position in ``KeyCells.queued``.
        cells: the states with a time to live in that domain.
    """

    def __init__(self, place: int, cells: list[CellType]) -> None:
        super().__init__(place, [cell.slot for cell in cells])
        self._contents = [(cell.slot, cell.expiring) for cell in cells if cell.expiring is not None]

    def _lowest_of(self, cells: KeyCells) -> int | None:
        found = [content.lowest(cells.slots[slot]) for slot, content in self._contents]
        lowest = min(found, default=NEVER)
        return None if lowest == NEVER else lowest
