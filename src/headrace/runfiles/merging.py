"""The files of a worker's state, merged: slices that are whole as of a step, and later changes.

Files are read lazily, and only for hashes of which nothing newer has all rows. Their rows are
merged in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.eventtime.domains import EVENT_TIME, WALL_TIME, TimeDomain
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.runfiles.format import Block, LowestTimers, RunReader
from headrace.runfiles.newest_rows import Dated, merge, newest
from headrace.runfiles.sections import is_whole, whole_section

#: Calls a function for each item, perhaps for several at once; see
#: ``storage.reading.Reading.each``.
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]

_NEVER = -1


class SlicePart(msgspec.Struct, frozen=True):
    """A hash range and the files that hold all of its rows as of a step.

    Attributes:
        first, last: the range.
        as_of: the step.
        readers: the files; none if the range was empty.
    """

    first: int
    last: int
    as_of: int
    readers: list[RunReader]


class _Wanted(NamedTuple):
    """The rows of a file that count; see :meth:`RunReader.rows_in`.

    Attributes:
        step: the step that they are of.
        reader: the file.
        kind: the section in the file.
        ranges: the hashes of the rows.
    """

    step: int
    reader: RunReader
    kind: str
    ranges: Ranges


class StateSources:
    """The files that hold one computation's state, newest last.

    Args:
        owner: the computation's name.
        slices: disjoint hash ranges, ascending, each whole as of a step.
        runs: files with the changes of single steps, in ascending order of steps.
        extents: for each run, the hashes of which its rows count, or None for all. A run is only
            opened for these.
        each: reads several files. A bin is waited for as long as this takes.

    Attributes:
        each: as given.
    """

    def __init__(
        self,
        owner: str,
        slices: Sequence[SlicePart],
        runs: Sequence[RunReader],
        extents: Sequence[Ranges | None] | None = None,
        each: Each = map,
    ) -> None:
        self.each = each
        self.owner = owner
        self.slices = slices
        self.runs = runs
        self.extents = extents if extents is not None else [None] * len(runs)
        self._covered = Ranges.of((part.first, part.last) for part in slices)
        self._as_of = np.array([part.as_of for part in slices], dtype=np.int64)

    def with_run(self, reader: RunReader) -> StateSources:
        """Return these files with a newest run added, unless it is one of them."""
        if any(run.ref.name == reader.ref.name for run in self.runs):
            return self
        runs, extents = [*self.runs, reader], [*self.extents, None]
        return StateSources(self.owner, self.slices, runs, extents, self.each)

    def with_runs(self, runs: Sequence[tuple[RunReader, Ranges | None]]) -> StateSources:
        """Return these slices with other runs, each with the hashes of which its rows count."""
        readers, extents = [run for run, _ in runs], [extent for _, extent in runs]
        return StateSources(self.owner, self.slices, readers, extents, self.each)

    def nbytes_in(self, ranges: Ranges) -> int:
        """Return the total length of the files that may have rows of some hashes, in bytes."""
        refs = {reader.ref.name: reader.ref.length for reader in self.readers_in(ranges)}
        return sum(refs.values())

    @property
    def opened_bytes(self) -> int:
        """How many bytes of files are in memory because the files were read whole."""
        readers = {id(reader): reader for reader in self._readers()}
        return sum(reader.memory_bytes for reader in readers.values())

    def release(self) -> None:
        """Drop the bytes of files that were read whole. They are read again when they are needed."""
        for reader in self._readers():
            reader.release()

    def _readers(self) -> Iterator[RunReader]:
        for part in self.slices:
            yield from part.readers
        yield from self.runs

    def readers_in(self, ranges: Ranges) -> Iterator[RunReader]:
        """Yield the files that may have rows of some hashes. A file may occur more than once."""
        yield from self.slices_in(ranges)
        yield from self.runs_in(ranges)

    def _open(self, ranges: Ranges) -> None:
        """Open the files that may have rows of some hashes."""
        _open_all(self.readers_in(ranges), self.each)

    def slices_in(self, ranges: Ranges) -> Iterator[RunReader]:
        """Yield the files of slices that may have rows of some hashes."""
        overlap = ranges.overlapping(self._covered.firsts, self._covered.lasts)
        for number in np.flatnonzero(overlap).tolist():
            yield from self.slices[number].readers

    def runs_in(self, ranges: Ranges) -> Iterator[RunReader]:
        """Yield the runs that may have rows of some hashes."""
        know = _Overlaps(ranges)
        for reader, extent in zip(self.runs, self.extents, strict=True):
            if know.overlap(extent):
                yield reader

    def blocks_in(self, ranges: Ranges, sections: Iterable[str]) -> Iterator[Block]:
        """Yield the blocks of some sections in the files that may have rows of some hashes."""
        wanted = set(sections)
        for reader, section, kind in self._sections(ranges):
            found = reader.section(self.owner, kind) if section in wanted else None
            yield from found.blocks if found is not None else ()

    @property
    def sections(self) -> list[str]:
        """The sections of state in any of the files, including those that no code declares now."""
        every = self._sections(Ranges.everything())
        return sorted({kind for _, kind, _ in every if not is_whole(kind)})

    def _sections(self, ranges: Ranges) -> Iterable[tuple[RunReader, str, str]]:
        """Yield (file, section's name in state, its name in the file) for each relevant section."""
        overlap = ranges.overlapping(self._covered.firsts, self._covered.lasts)
        for number in np.flatnonzero(overlap).tolist():
            for reader in self.slices[number].readers:
                for kind in reader.kinds_of(self.owner):
                    if is_whole(kind):
                        yield reader, kind.removeprefix(whole_section("")), kind
        for reader in self.runs_in(ranges):
            for kind in reader.kinds_of(self.owner):
                if not is_whole(kind):
                    yield reader, kind, kind

    def rows(self, section: str, ranges: Ranges, newer: Sequence[Dated] = ()) -> pa.Table | None:
        """Return the live rows of some hashes, sorted by hash, or None if there are none.

        Args:
            section: the section of state.
            ranges: the hashes.
            newer: further changes, (step, rows), newer than all files.
        """
        return merge([*self._tables(section, ranges), *newer])

    def changes(self, section: str, ranges: Ranges) -> pa.Table | None:
        """Return the newest rows of some hashes, including deletions, sorted by hash, or None."""
        dated = self._tables(section, ranges)
        return newest(dated) if dated else None

    def _tables(self, section: str, ranges: Ranges) -> list[Dated]:
        """Return (step, rows) of each file, without rows that a newer slice has."""
        return self.tables_of([section], ranges)[0]

    def tables_of(self, sections: Sequence[str], ranges: Ranges) -> list[list[Dated]]:
        """Return (step, rows) of each file, for several sections.

        All files are read side by side.
        """
        (found,) = _tables_of([RowsWanted(self, sections, ranges)], self.each)
        return found

    def rows_of(self, wanted: _Wanted) -> pa.Table | None:
        """Return the rows of a file that count, or None if there are none."""
        return wanted.reader.rows_in(self.owner, wanted.kind, wanted.ranges)

    def wanted(self, section: str, ranges: Ranges) -> Iterable[_Wanted]:
        """Yield which rows are to be read from which files. Opens no file."""
        pieces = ranges.cut_at(np.concatenate([self._covered.firsts, self._covered.lasts + _ONE]))
        part_of = np.searchsorted(self._covered.firsts, pieces.firsts, side="right") - 1
        inside = self._covered.contain(pieces.firsts)
        as_of = np.full(len(pieces), _NEVER, dtype=np.int64)
        as_of[inside] = self._as_of[part_of[inside]]
        whole = whole_section(section)
        for number in np.unique(part_of[inside]).tolist():
            part = self.slices[number]
            wanted = pieces.where(inside & (part_of == number))
            for reader in part.readers:
                yield _Wanted(part.as_of, reader, whole, wanted)
        order = np.sort(as_of)
        older, wanted, know = 0, pieces, _Overlaps(pieces)
        for reader, extent in zip(self.runs, self.extents, strict=True):
            step = reader.ref.step
            # The number of pieces to which this run adds something.
            count = int(np.searchsorted(order, step))
            if count != older:
                older, wanted = count, pieces.where(as_of < step)
                know = _Overlaps(wanted)
            if count and know.overlap(extent):
                yield _Wanted(step, reader, section, know.within(extent))

    def lowest_timers(
        self, layout: Layout, ranges: Ranges
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return lower bounds of each bin's timers (event, wall), from the footers alone.

        Args:
            layout: the bins.
            ranges: the hashes of interest. Only files that may have rows of them are opened.
        """
        event = np.full(len(layout), MAX_TIME, dtype=np.int64)
        wall = event.copy()
        self._open(ranges)
        for reader, _, kind in self._sections(ranges):
            facts = reader.lowest_timers(self.owner, kind)
            if facts is not None:
                lower_by_facts({EVENT_TIME: event, WALL_TIME: wall}, layout, facts)
        return event, wall


class RowsWanted(NamedTuple):
    """Some rows of a computation's state.

    Attributes:
        sources: the files that hold them.
        sections: the sections of state.
        ranges: their hashes.
    """

    sources: StateSources
    sections: Sequence[str]
    ranges: Ranges


def rows_of(
    sources: StateSources, sections: Iterable[str], ranges: Ranges, most: int | None = None
) -> list[tuple[str, pa.Table]]:
    """Return the live rows of some hashes, by section; see :meth:`StateSources.rows`.

    Args:
        sources: the files.
        sections: the sections of state.
        ranges: the hashes.
        most: about how many bytes may be read before superseded rows are let go; None for any.
    """
    (found,) = rows_of_several([RowsWanted(sources, list(sections), ranges)], sources.each, most)
    return found


def rows_of_several(
    wanted: Sequence[RowsWanted], each: Each, most: int | None = None
) -> list[list[tuple[str, pa.Table]]]:
    """Return live rows of several computations, by section.

    All files of all of them are opened side by side, and then read side by side. So this takes as
    long as two or three calls of a store, if as many as there are files run at a time.
    """
    found = zip(wanted, _tables_of(wanted, each, most), strict=True)
    return [
        [
            (section, table)
            for section, dated in zip(of.sections, tables, strict=True)
            if (table := merge(dated)) is not None
        ]
        for of, tables in found
    ]


def _tables_of(
    wanted: Sequence[RowsWanted], each: Each, most: int | None = None
) -> list[list[list[Dated]]]:
    """Return (step, rows) of each file that counts, for each section of each computation."""
    needed = [
        _Place(number, at, of)
        for number, rows in enumerate(wanted)
        for at, section in enumerate(rows.sections)
        for of in rows.sources.wanted(section, rows.ranges)
    ]
    # Open each file once, before sections are read side by side: each of them would open it.
    _open_all((place.of.reader for place in needed), each)

    def read(place: _Place) -> pa.Table | None:
        return wanted[place.number].sources.rows_of(place.of)

    found = _Found(wanted, most)
    for places in _few_at_once(needed, wanted, most):
        at_hand = [place.of.reader.is_in_memory for place in places]
        away = [place for place, here in zip(places, at_hand, strict=True) if not here]
        distant = iter((each if len(away) > 1 else map)(read, away))
        for place, here in zip(places, at_hand, strict=True):
            found.add(place, read(place) if here else next(distant))
    return found.dated


class _Place(NamedTuple):
    """Rows of a file that count, and to what they belong.

    Attributes:
        number, at: the computation and its section, among those that are wanted.
        of: the rows.
    """

    number: int
    at: int
    of: _Wanted


class _Found:
    """The rows that were read. Superseded ones are let go if they are much.

    Args:
        wanted: what is read.
        most: about how many bytes may be here before superseded rows are let go. If it is given,
            rows are added in ascending order of steps.

    Attributes:
        dated: (step, rows) for each section of each computation.
    """

    def __init__(self, wanted: Sequence[RowsWanted], most: int | None) -> None:
        self.dated: list[list[list[Dated]]] = [[[] for _ in rows.sections] for rows in wanted]
        self._most = most
        self._nbytes = self._left = 0

    def add(self, place: _Place, table: pa.Table | None) -> None:
        """Add rows of a file."""
        if table is None:
            return
        self.dated[place.number][place.at].append((place.of.step, table))
        if self._most is not None:
            self._nbytes += table.nbytes
            if self._nbytes > max(self._most, 2 * self._left):
                self._merge()

    def _merge(self) -> None:
        self._nbytes = 0
        for sections in self.dated:
            for at, dated in enumerate(sections):
                if len(dated) > 1:
                    sections[at] = [(dated[-1][0], newest(dated))]
                self._nbytes += sum(table.nbytes for _, table in sections[at])
        self._left = self._nbytes


def _few_at_once(
    needed: list[_Place], wanted: Sequence[RowsWanted], most: int | None
) -> Iterator[list[_Place]]:
    """Yield what is to be read: all of it, or if that may be much, little by little, by steps."""
    files = {place.of.reader.ref.name: place.of.reader.ref.length for place in needed}
    if most is None or sum(files.values()) <= most:
        yield needed
        return
    few: list[_Place] = []
    nbytes = 0
    for place in sorted(needed, key=lambda place: place.of.step):
        of = place.of
        more = of.reader.bytes_in(wanted[place.number].sources.owner, of.kind, of.ranges)
        if few and nbytes + more > most:
            yield few
            few, nbytes = [], 0
        few.append(place)
        nbytes += more
    yield few


def _open_all(readers: Iterable[RunReader], each: Each) -> None:
    closed = {reader.ref.name: reader for reader in readers if not reader.is_open}
    list((each if len(closed) > 1 else map)(RunReader.open, closed.values()))


class _Overlaps:
    """Caches what extents have in common with some ranges.

    Runs of one worker share their extents.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._overlap: dict[int, bool] = {}
        self._common: dict[int, Ranges] = {}

    def overlap(self, extent: Ranges | None) -> bool:
        """Return whether an extent (None for all hashes) overlaps the ranges."""
        if extent is None:
            return True
        at = id(extent)
        if at not in self._overlap:
            found = self._ranges.overlapping(extent.firsts, extent.lasts)
            self._overlap[at] = bool(found.any())
        return self._overlap[at]

    def within(self, extent: Ranges | None) -> Ranges:
        """Return the hashes of the ranges that are in an extent (None for all hashes)."""
        if extent is None:
            return self._ranges
        at = id(extent)
        if at not in self._common:
            self._common[at] = self._ranges.within(extent)
        return self._common[at]


def lower_by_facts(
    lowest: Mapping[TimeDomain, npt.NDArray[np.int64]], layout: Layout, facts: LowestTimers
) -> None:
    """Lower each bin's bounds, by domain, to the lowest timers in a file's footer.

    The bins in the footer are those of the time when the file was written.
    """
    first, last = layout.bins_of(facts.starts), layout.bins_of(facts.ends)
    for domain, times in ((EVENT_TIME, facts.event), (WALL_TIME, facts.wall)):
        bounds = lowest[domain]
        np.minimum.at(bounds, first, times)
        for at in np.flatnonzero(last > first):  # bins that have been split since
            part = bounds[first[at] : last[at] + 1]
            np.minimum(part, times[at], out=part)


_ONE = np.uint64(1)
