"""Past owners of hashes: found by undoing relocations, backwards from the layout in force."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.keyspace.updates import Relocated

#: Worker → the hashes that it owns.
Owned = dict[int, Ranges]


class PastOwners:
    """The owners of some hashes at earlier steps, as far back as relocations are known.

    Cost: each relocation after the oldest step that is asked for is undone once, and only the moves
    that concern these hashes.

    Args:
        ranges: the hashes.
        layout: the layout in force.
        relocated: the live changes that led to it, ascending.

    Example:
        >>> from headrace.keyspace.layout import Layout
        >>> now = Layout.uniform(2, [0, 1], 2)
        >>> moved = Relocated(version=1, step=7, moves=[(2**63, 2**64 - 1, 0, 1)])
        >>> past = PastOwners(Ranges.everything(), now, [moved])
        >>> sorted(past.at(7)), sorted(past.at(6))
        ([0, 1], [0])
    """

    def __init__(self, ranges: Ranges, layout: Layout, relocated: Sequence[Relocated]) -> None:
        self._ranges = ranges
        self._older = list(relocated)
        self._owned = owned_by(ranges, layout)  # the owners before the changes in _since
        self._since: list[tuple[int, Owned]] = []  # newest first

    def at(self, step: int) -> Owned:
        """Return who owned which hashes in a step. Calls for one step give the same objects."""
        while self._older and step < self._older[-1].step:
            change = self._older.pop()
            before = _undone(self._owned, change, self._ranges)
            if before is not self._owned:
                self._since.append((change.step, self._owned))
                self._owned = before
        return next((owned for since, owned in self._since if step >= since), self._owned)

    def held(self, worker: int, step: int) -> Ranges | None:
        """Return which of the hashes a worker owned in a step; None if it owned none."""
        return self.at(step).get(worker)


def owned_by(ranges: Ranges, layout: Layout) -> Owned:
    """Return which of some hashes each worker owns. Workers without any are left out."""
    pieces = ranges.cut_at(layout.starts[np.flatnonzero(np.diff(layout.owners, prepend=-1))])
    workers = layout.workers_of(pieces.firsts)
    return {worker: pieces.where(workers == worker) for worker in np.unique(workers).tolist()}


def _undone(owned: Owned, change: Relocated, ranges: Ranges) -> Owned:
    """Return who owned some hashes before a change; the same object if it moved none of them."""
    if not change.moves or not owned:
        return owned
    firsts = np.array([move[0] for move in change.moves], dtype=np.uint64)
    lasts = np.array([move[1] for move in change.moves], dtype=np.uint64)
    between = np.array([move[2:] for move in change.moves], dtype=np.int64)
    concerned = np.flatnonzero(ranges.overlapping(firsts, lasts))
    if not len(concerned):
        return owned
    before = dict(owned)
    pairs, which = np.unique(between[concerned], axis=0, return_inverse=True)
    for number, (source, target) in enumerate(pairs.tolist()):
        rows = concerned[which.reshape(-1) == number]
        moved = owned[target].within(Ranges(firsts[rows], lasts[rows]))
        _put(before, target, before[target].without(moved))
        _put(before, source, moved.plus(before[source]) if source in before else moved)
    return before


def _put(owned: Owned, worker: int, ranges: Ranges) -> None:
    if len(ranges):
        owned[worker] = ranges
    else:
        owned.pop(worker, None)
