"""The rows that a worker has read ahead, so that the switch itself reads only the latest changes.

They are kept beside the state, not in it. They consist of merged rows as of a step, and of the
changes since. Both are rows in memory. They are read in parts of bounded size, and kept up to date
as the present owner commits steps. Reading ahead works on ranges of hashes, so bins may be split
and merged meanwhile. The rows may be dropped at any time.

Megaphone sends state through the dataflow when it migrates. Here the state is in files already.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.keyspace.ranges import Ranges
from headrace.migration.reading import OPENING_BYTES
from headrace.runfiles.batches import combined
from headrace.runfiles.format import RunPart, RunReader
from headrace.runfiles.in_memory import RowsInMemory
from headrace.runfiles.merging import Each, StateSources, rows_of
from headrace.runfiles.portions import affordable, columns_of, width_of
from headrace.tasks.prefetch.kept import KeptRuns, Sections, parts_of

#: Computation → the files that hold its state.
Sources = Mapping[str, StateSources]

_NEVER = -1
#: At least one in this many of the wanted hashes is read at a time, once files are open.
_LEAST_PART = 256
#: Reading a block costs at least as much as reading this many bytes, however short it is. But the
#: budget is always enough for some blocks.
_BLOCK_BYTES, _LEAST_BLOCKS = 32 << 10, 8
#: A tail of up to this size is not merged with all rows. Pieces that are larger together stay
#: separate.
_SHORT = 1 << 20
#: This many neighbouring pieces of the same number of turns become one. So the number of pieces
#: that a switch looks through grows with the logarithm of the turns. Each row is merged as many
#: times.
_ALIKE = 4


class PreparedPiece(NamedTuple):
    """Rows that were read ahead together.

    Attributes:
        reader: reads them from memory.
        ranges: the hashes that they cover.
        turns: how many turns or steps they come from.
    """

    reader: RunReader
    ranges: Ranges
    turns: int

    @property
    def nbytes(self) -> int:
        """The memory that the rows take, in bytes."""
        return self.reader.ref.length


class Prepared:
    """What was read ahead for one (layer, worker).

    Attributes:
        ranges: the hashes that were read in full.
        as_of: the step that the rows are as of.
        since: digest that stands for the claim under which that step was made.
        opened: files that are open until everything is read, by name.
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
        """Drop the files that missing rows are read from."""
        self.opened.clear()
        self._kept.clear()
        self._listed = _NEVER  # the step as of which they were listed

    def copy(self) -> Prepared:
        """Return a copy to continue from."""
        other = Prepared()
        other.ranges, other.as_of, other.since = self.ranges, self.as_of, self.since
        other._whole, other._tail = list(self._whole), list(self._tail)
        other.opened, other._listed = dict(self.opened), self._listed
        other._kept = self._kept.copy()
        return other

    @property
    def prepared_bytes(self) -> int:
        """The memory that all of this takes, in bytes."""
        pieces = sum(piece.nbytes for piece in [*self._whole, *self._tail])
        opened = [reader for reader in self.opened.values() if reader.is_open]
        return pieces + self._kept.nbytes + sum(reader.opening_bytes for reader in opened)

    def keep(self, ranges: Ranges) -> None:
        """Forget everything except some hashes."""
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
        """Take over the changes of further steps.

        Args:
            files: the runs after :attr:`as_of`, and possibly others.
            sections: the sections that are wanted.
            as_of: the last of these steps.
            each: reads files.

        Returns:
            How many bytes were taken over or merged.
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
        self,
        wanted: Ranges,
        files: Sources,
        sections: Sections,
        budget: int,
        each: Each = map,
    ) -> int:
        """Read some more of the hashes that are wanted and missing.

        The number of calls until everything is read depends on the amount of state, and is finite
        for any budget.

        Args:
            wanted: all hashes that are wanted.
            files: the files that hold them as of :attr:`as_of`.
            sections: the sections that are wanted.
            budget: about how many bytes may be read, besides opening new files.
            each: reads files.

        Returns:
            How many bytes were read.
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
        least = width_of(wanted) / _LEAST_PART
        block = min(_BLOCK_BYTES, left // _LEAST_BLOCKS)
        blocks = [
            found
            for owner, sources in unread.items()
            for found in sources.blocks_in(missing, sections[owner])
        ]
        part = affordable(columns_of(blocks, block), missing, left, least)
        rows = [
            RunPart(owner, section, combined(table))
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
        self,
        missing: Ranges,
        files: Sources,
        sections: Sections,
        budget: int,
        each: Each,
    ) -> tuple[int, int, bool]:
        """Open files.

        Returns:
            How many bytes were read, what is left of the budget, and whether all files are open.
        """
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
        prices = {
            reader.ref.name: _BLOCK_BYTES
            if reader.is_in_memory
            else max(costs[reader.ref.name], OPENING_BYTES)
            for reader in closed
        }
        chosen, left, are_all = self._to_open(closed, prices, budget)
        list(each(RunReader.open, chosen))
        self._kept.take([run for run in chosen if run.ref.name in to_keep], sections, each)
        wanted = [*whole, *(name for name in runs if name not in self._kept)]
        self.opened = {name: self.opened[name] for name in wanted if name in self.opened}
        return sum(costs[reader.ref.name] for reader in chosen), left, are_all

    def _to_open(
        self, closed: Sequence[RunReader], costs: Mapping[str, int], budget: int
    ) -> tuple[list[RunReader], int, bool]:
        """Choose which files to open.

        Files that are new since the last time are opened in any case. Otherwise they could arrive
        as fast as the budget allows others to be opened, and this would never end.

        Returns:
            The files, what is left of the budget, and whether these are all.
        """
        since, self._listed = self._listed, self.as_of
        new = [reader for reader in closed if since != _NEVER and reader.ref.step > since]
        old = [reader for reader in closed if since == _NEVER or reader.ref.step <= since]
        chosen, left = 0, budget
        while chosen < len(old) and left > 0:
            left -= costs[old[chosen].ref.name]
            chosen += 1
        return [*new, *old[:chosen]], left, chosen == len(old)

    def _merge_if_long(self, sections: Sections) -> int:
        """Merge the changes into the rows if they are half as large; else merge some changes."""
        tail, whole = (sum(piece.nbytes for piece in part) for part in (self._tail, self._whole))
        if tail <= max(_SHORT, whole // 2):
            _shorten(self._tail, -1, sections)
            return 0
        rows = [
            RunPart(owner, section, combined(table))
            for owner, kinds in sections.items()
            for section, table in rows_of(self.sources(owner), kinds, self.ranges)
        ]
        self._whole = [_piece(rows, self.as_of, self.ranges)] if rows else []
        self._tail = []
        return sum(piece.nbytes for piece in self._whole)

    # -- at the switch ------------------------------------------------------------------------

    def sources(self, owner: str, newer: StateSources | None = None) -> StateSources:
        """Return the rows of a computation as files to be read.

        Args:
            owner: the computation.
            newer: the runs after :attr:`as_of`, and possibly others.
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
    """Merge the last pieces, as long as they come from equally many turns.

    Args:
        pieces: the pieces. They are changed in place.
        at: index of the piece whose step the merged piece gets. For full rows it is the first,
            because the changes since must come after it. For changes it is the last, because full
            rows of other hashes may have been read in between.
        sections: the sections that the pieces may hold.
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
    """Return the rows of several pieces, and the hashes that they cover."""
    runs, extents = [piece.reader for piece in pieces], [piece.ranges for piece in pieces]
    ranges = functools.reduce(Ranges.plus, extents)
    parts = [
        RunPart(owner, section, combined(table))
        for owner, kinds in sections.items()
        for section in kinds
        if (table := StateSources(owner, [], runs, extents).changes(section, ranges)) is not None
    ]
    return parts, ranges


def _within(pieces: list[PreparedPiece], ranges: Ranges) -> list[PreparedPiece]:
    """Return pieces without the hashes that are not wanted."""
    kept = [piece._replace(ranges=piece.ranges.within(ranges)) for piece in pieces]
    return [piece for piece in kept if len(piece.ranges)]
