"""What a worker reads ahead of hashes that it is to own, so that the switch itself reads only the tail.

Beside the state, never in it: the merged rows as of a step, and the changes since, as rows in memory.
They are read in parts, at most so many bytes at a time, and follow the steps of the owner cheaply. It
is by ranges of hashes, so bins may be split and merged meanwhile. It can be dropped at any time.
(Megaphone migrates state through the dataflow; here it comes from files that are there anyway.)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.keyspace.ranges import Ranges
from headrace.runfiles.format import RunPart, RunReader
from headrace.runfiles.merging import Each, StateSources, rows_of
from headrace.tasks.prefetch.in_memory import RowsInMemory
from headrace.tasks.prefetch.kept import KeptRuns, Sections, one_batch, parts_of

#: Computation → the files that hold its state.
Sources = Mapping[str, StateSources]

_NEVER = -1
#: At least such a part of what is wanted is read at a time, once files are open.
_LEAST_PART = 256
#: Hashes that are nearer to each other are one, when they are reckoned with as floats.
_FINEST = 4_096.0
#: To open a file takes at least as long as to read so many bytes, however little is in it.
_OPENING_BYTES = 256 << 10
#: And to read a block of one as long as so many, however few it has; yet a turn reads some in any case.
_BLOCK_BYTES, _LEAST_BLOCKS = 32 << 10, 8
#: Tails up to so many bytes are not worth a merge with all rows; pieces together longer than it stay apart.
_SHORT = 1 << 20
#: So many neighbours that came of as many turns each become one piece: how many are looked through at the
#: switch grows with the logarithm of the turns, and each row is merged as many times.
_ALIKE = 4


class PreparedPiece(NamedTuple):
    """Rows that were read ahead.

    Attributes:
        reader: has them, in memory.
        ranges: the hashes that they are of.
        turns: of how many turns, or steps, it came.
    """

    reader: RunReader
    ranges: Ranges
    turns: int

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return self.reader.ref.length


class Prepared:
    """What was read ahead for one (layer, worker).

    Attributes:
        ranges: the hashes of which everything is here.
        as_of: up to which step.
        since: names the claim that the steps up to then were made under.
        opened: files that are open while it is not done, by name.
    """

    def __init__(self) -> None:
        self.opened: dict[str, RunReader] = {}
        self._kept = KeptRuns()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.ranges = Ranges.of([])
        self.as_of, self.since = _NEVER, ""
        self._whole: list[PreparedPiece] = []  # all rows of their hashes
        self._tail: list[PreparedPiece] = []  # the changes since, ascending by step
        self.all_is_read()

    def all_is_read(self) -> None:
        """Let go of the files that what is missing is read from."""
        self.opened.clear()
        self._kept.clear()
        self._listed = _NEVER  # up to which step they were listed

    def copy(self) -> Prepared:
        """Return another one with the same, to go on from."""
        other = Prepared()
        other.ranges, other.as_of, other.since = self.ranges, self.as_of, self.since
        other._whole, other._tail = list(self._whole), list(self._tail)
        other.opened, other._listed = dict(self.opened), self._listed
        other._kept = self._kept.copy()
        return other

    @property
    def prepared_bytes(self) -> int:
        """How much memory it takes."""
        pieces = sum(piece.nbytes for piece in [*self._whole, *self._tail])
        opened = [reader for reader in self.opened.values() if reader.is_open]
        return pieces + self._kept.nbytes + sum(reader.opening_bytes for reader in opened)

    def keep(self, ranges: Ranges) -> None:
        """Forget what is not of some hashes."""
        if not len(self.ranges.without(ranges)):
            return
        self.ranges = self.ranges.within(ranges)
        if not len(self.ranges):
            self.clear()
            return
        self._whole = _within(self._whole, self.ranges)
        self._tail = _within(self._tail, self.ranges)

    # -- reading ahead ------------------------------------------------------------------------

    def follow(self, files: Sources, sections: Sections, as_of: int, each: Each = map) -> int:
        """Take over the changes of further steps; return how many bytes that were.

        Args:
            files: the runs after :attr:`as_of`, at least.
            sections: what is wanted of them.
            as_of: up to which step they go.
            each: reads files.
        """
        newer = {
            reader.ref.name: reader
            for sources in files.values()
            for reader in sources.runs_in(self.ranges)
            if reader.ref.step > self.as_of
        }
        rows = each(lambda reader: parts_of(reader, sections, self.ranges), newer.values())
        done = 0
        for reader, parts in zip(newer.values(), rows, strict=True):
            if parts:
                self._tail.append(_piece(parts, reader.ref.step, self.ranges))
                done += self._tail[-1].nbytes
        self.as_of = as_of
        return done + self._merge_if_long(sections)

    def read(
        self, wanted: Ranges, files: Sources, sections: Sections, budget: int,
        each: Each = map,
    ) -> int:  # fmt: skip
        """Read some more of the hashes that are wanted, and not here yet; return how many bytes that were.

        However little may be read, all is here after a number of calls that goes with how much there is.

        Args:
            wanted: all that are wanted.
            files: what holds them as of :attr:`as_of`.
            sections: what is wanted of them.
            budget: about how many bytes may be read, besides those that it takes to open what is new.
            each: reads files.
        """
        missing = wanted.without(self.ranges)
        if not len(missing):
            self.all_is_read()
            return 0
        opened, left, are_all = self._open(missing, files, sections, budget, each)
        if not are_all or left <= 0:
            return opened
        known, unread = {}, {}
        for owner, sources in files.items():
            known[owner], unread[owner] = self._kept.split(sources)
        least = _width(wanted) / _LEAST_PART
        block = min(_BLOCK_BYTES, left // _LEAST_BLOCKS)
        part = affordable(_blocks(unread, missing, sections, block), missing, left, least)
        rows = [
            RunPart(owner, section, one_batch(table))
            for owner, kinds in sections.items()
            for section, table in rows_of(known[owner], kinds, part)
        ]
        done = opened
        if rows:
            self._whole.append(_piece(rows, self.as_of, part))
            done += self._whole[-1].nbytes
            _shorten(self._whole, 0, sections)
        self.ranges = self.ranges.plus(part)
        if not len(missing.without(part)):
            self.all_is_read()
        return done

    def _open(
        self, missing: Ranges, files: Sources, sections: Sections, budget: int,
        each: Each,
    ) -> tuple[int, int, bool]:  # fmt: skip
        """Open files; return how many bytes that were, what is left of the budget, and if these are all."""
        whole: dict[str, RunReader] = {}
        runs: dict[str, RunReader] = {}
        for sources in files.values():
            whole |= {reader.ref.name: reader for reader in sources.slices_in(missing)}
            runs |= {reader.ref.name: reader for reader in sources.runs_in(missing)}
        self._kept.want(missing, runs)
        to_keep = {name for name, reader in runs.items() if self._kept.takes(reader)}
        to_read = whole | {name: run for name, run in runs.items() if name not in self._kept}
        closed = [
            reader for name, reader in to_read.items() if name in to_keep or not reader.is_open
        ]
        costs = {
            reader.ref.name: reader.ref.length
            if reader.ref.name in to_keep
            else reader.opening_bytes
            for reader in closed
        }
        chosen, left, are_all = self._to_open(closed, costs, budget)
        list(each(RunReader.open, chosen))
        self._kept.take([run for run in chosen if run.ref.name in to_keep], sections, each)
        wanted = [*whole, *(name for name in runs if name not in self._kept)]
        self.opened = {name: self.opened[name] for name in wanted if name in self.opened}
        return sum(costs[reader.ref.name] for reader in chosen), left, are_all

    def _to_open(
        self, closed: Sequence[RunReader], costs: Mapping[str, int], budget: int
    ) -> tuple[list[RunReader], int, bool]:
        """Return which files to open, what is left of the budget then, and whether these are all.

        Those that are new since the last time are opened in any case: else they could come as fast as the
        budget lets others be opened, and there would be no end.
        """
        since, self._listed = self._listed, self.as_of
        new = [reader for reader in closed if since != _NEVER and reader.ref.step > since]
        old = [reader for reader in closed if since == _NEVER or reader.ref.step <= since]
        chosen, left = 0, budget
        while chosen < len(old) and left > 0:
            left -= max(costs[old[chosen].ref.name], _OPENING_BYTES)
            chosen += 1
        return [*new, *old[:chosen]], left, chosen == len(old)

    def _merge_if_long(self, sections: Sections) -> int:
        """Merge what was read and the changes since, when these are half as much; else some of these."""
        tail, whole = (sum(piece.nbytes for piece in part) for part in (self._tail, self._whole))
        if tail <= max(_SHORT, whole // 2):
            _shorten(self._tail, -1, sections)
            return 0
        rows = [
            RunPart(owner, section, one_batch(table))
            for owner, kinds in sections.items()
            for section, table in rows_of(self.sources(owner), kinds, self.ranges)
        ]
        self._whole = [_piece(rows, self.as_of, self.ranges)] if rows else []
        self._tail = []
        return sum(piece.nbytes for piece in self._whole)

    # -- at the switch ------------------------------------------------------------------------

    def sources(self, owner: str, newer: StateSources | None = None) -> StateSources:
        """Return what is here of a computation as files to be read.

        Args:
            owner: the computation.
            newer: the runs after :attr:`as_of`, at least.
        """
        found = [(piece.reader, piece.ranges) for piece in [*self._whole, *self._tail]]
        each: Each = map
        if newer is not None:
            each = newer.each
            extents = zip(newer.runs, newer.extents, strict=True)
            found += [
                (run, self.ranges if extent is None else extent)
                for run, extent in extents
                if run.ref.step > self.as_of
            ]
        runs, ranges = [run for run, _ in found], [extent for _, extent in found]
        return StateSources(owner, [], runs, ranges, each)


def _piece(parts: list[RunPart], step: int, ranges: Ranges, turns: int = 1) -> PreparedPiece:
    """Return rows as a run file in memory."""
    return PreparedPiece(RowsInMemory(parts, step), ranges, turns)


def _shorten(pieces: list[PreparedPiece], at: int, sections: Sections) -> None:
    """Merge the last pieces as long as they came of as many turns each.

    Args:
        pieces: what to shorten.
        at: whose step they are of together. Of all rows of some hashes it is the first's, for the changes
            since come after it; of changes it is the last's, for all rows of other hashes may come between.
        sections: what there may be of them.
    """
    while _are_alike(last := pieces[-_ALIKE:]):
        parts, ranges = _merged(last, sections)
        turns = sum(piece.turns for piece in last)
        step = last[at].reader.ref.step
        pieces[-_ALIKE:] = [_piece(parts, step, ranges, turns)] if parts else []


def _are_alike(pieces: list[PreparedPiece]) -> bool:
    few = sum(piece.nbytes for piece in pieces) <= _SHORT
    return len(pieces) == _ALIKE and few and len({piece.turns for piece in pieces}) == 1


def _merged(pieces: list[PreparedPiece], sections: Sections) -> tuple[list[RunPart], Ranges]:
    """Return what is in several pieces, and of which hashes it may be."""
    runs, extents = [piece.reader for piece in pieces], [piece.ranges for piece in pieces]
    ranges = functools.reduce(Ranges.plus, extents)
    parts = [
        RunPart(owner, section, one_batch(table))
        for owner, kinds in sections.items()
        for section in kinds
        if (table := StateSources(owner, [], runs, extents).changes(section, ranges)) is not None
    ]
    return parts, ranges


def _within(pieces: list[PreparedPiece], ranges: Ranges) -> list[PreparedPiece]:
    """Return what is left of pieces when only some hashes are wanted."""
    kept = [piece._replace(ranges=piece.ranges.within(ranges)) for piece in pieces]
    return [piece for piece in kept if len(piece.ranges)]


def _blocks(files: Sources, ranges: Ranges, sections: Sections, least: int) -> Any:
    """Return (first hash, last hash, bytes) of the blocks of files that hold some hashes, as columns.

    Each counts as so many bytes at least.
    """
    blocks = [
        (block.first, block.last, max(block.length, least))
        for owner, sources in files.items()
        for block in sources.blocks_in(ranges, sections[owner])
    ]
    columns = list(zip(*blocks, strict=True)) if blocks else [(), (), ()]
    return [np.array(column, dtype=np.float64) for column in columns]


def _width(ranges: Ranges) -> float:
    """Return how many hashes there are in some ranges."""
    return float((ranges.lasts - ranges.firsts).astype(np.float64).sum()) + len(ranges)


def affordable(blocks: Any, ranges: Ranges, budget: int, least: float) -> Ranges:
    """Return the first part of some ranges of which about so many bytes are in some blocks.

    Args:
        blocks: first hash, last hash and bytes of each, as columns; bytes are even in between.
        ranges: the hashes; not empty.
        budget: about how many bytes.
        least: so many hashes are returned in any case, as far as there are so many.
    """
    firsts, lasts, nbytes = blocks
    ends = np.maximum(lasts, firsts + _FINEST)
    starts = ranges.firsts.astype(np.float64)
    widths = (ranges.lasts - ranges.firsts).astype(np.float64) + 1
    before = np.concatenate([[0.0], np.cumsum(widths)])

    def width_below(edges: Any) -> Any:
        """Return how many hashes of the ranges are below some edges."""
        at = np.searchsorted(starts, edges, side="right") - 1
        inside = np.clip(edges - starts[at], 0, widths[at]) + before[at]
        return np.where(at >= 0, inside, 0.0)

    def bytes_in_first(width: float) -> float:
        share = np.minimum(width_below(ends), width) - np.minimum(width_below(firsts), width)
        return float((nbytes * share / (ends - firsts)).sum())

    total = float(before[-1])
    if least >= total or bytes_in_first(total) <= budget:
        return ranges
    low, high = max(least, 1.0), total
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if bytes_in_first(middle) <= budget else (low, middle)
    at = int(np.searchsorted(before, low, side="right")) - 1
    most = int(ranges.lasts[at]) - int(ranges.firsts[at])
    last = int(ranges.firsts[at]) + min(most, int(low - before[at]))
    return ranges.within(Ranges.of([(0, last)]))
