"""A range's state as files: a snapshot, and the runs after it; read lazily, merged in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.layout import Layout
from headrace.state.runs import RunReader
from headrace.state.sections import deleted, identity_of

_SEQUENCE = "sequence"


class SnapshotPart(msgspec.Struct):
    """A hash range, and the files that hold all of it as of a step (none when it was empty)."""

    first: int
    last: int
    as_of: int
    readers: list[RunReader]


class StateSources:
    """The files that hold one computation's state, newest information last.

    Args:
        owner: the computation's name.
        snapshots: files with disjoint ranges, each whole as of a step.
        runs: files of single steps, in ascending order of steps.
    """

    def __init__(
        self, owner: str, snapshots: Sequence[SnapshotPart], runs: Sequence[RunReader]
    ) -> None:
        self.owner = owner
        self.snapshots = snapshots
        self.runs = runs

    def with_run(self, reader: RunReader) -> StateSources:
        """Return these files and one more run, the newest."""
        return StateSources(self.owner, self.snapshots, [*self.runs, reader])

    @property
    def sections(self) -> list[str]:
        """The sections of state that any of the files has, also such as no code declares now."""
        return sorted({kind for reader in self._readers() for kind in reader.kinds_of(self.owner)})

    def _readers(self) -> list[RunReader]:
        return [*(reader for part in self.snapshots for reader in part.readers), *self.runs]

    def rows_of_bins(
        self, section: str, layout: Layout, bins: npt.NDArray[np.int64]
    ) -> pa.Table | None:
        """Return the live rows of some bins (positions in the layout, ascending)."""
        ranges = _merged_ranges(layout, bins)
        return merge(
            [table for first, last in ranges for table in self._tables(section, first, last)]
        )

    def rows_of_range(self, section: str, first: int, last: int) -> pa.Table | None:
        """Return the live rows of a hash range (inclusive)."""
        return merge(self._tables(section, first, last))

    def _tables(self, section: str, first: int, last: int) -> Iterable[tuple[int, pa.Table]]:
        """Yield (step, rows) of each file; rows that a newer snapshot has are left out."""
        for part in self.snapshots:
            low, high = max(first, part.first), min(last, part.last)
            if low > high:
                continue
            for reader in part.readers:
                table = reader.rows(self.owner, section, low, high)
                if table is not None:
                    yield part.as_of, table
        for reader in self.runs:
            for low, high in self._newer_ranges(reader.ref.step, first, last):
                table = reader.rows(self.owner, section, low, high)
                if table is not None:
                    yield reader.ref.step, table

    def _newer_ranges(self, step: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of [first, last] whose snapshot is older than a step."""
        covered = sorted((part.first, part.last) for part in self.snapshots if part.as_of >= step)
        ranges, at = [], first
        for low, high in covered:
            if high < at or low > last:
                continue
            if low > at:
                ranges.append((at, low - 1))
            at = max(at, high + 1)
        if at <= last:
            ranges.append((at, last))
        return ranges

    def lowest_timers(self, layout: Layout) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return a lower bound of each bin's timers (event, wall), from the footers alone."""
        event = np.full(len(layout), MAX_TIME, dtype=np.int64)
        wall = event.copy()
        found = [
            reader.lowest_timers(self.owner, section)
            for reader in self._readers()
            for section in reader.kinds_of(self.owner)
        ]
        for facts in found:
            if facts is None:
                continue
            first, last = layout.bins_of(facts.starts), layout.bins_of(facts.ends)
            for lowest, times in ((event, facts.event), (wall, facts.wall)):
                np.minimum.at(lowest, first, times)
                for at in np.flatnonzero(last > first):  # bins that were split since
                    part = lowest[first[at] : last[at] + 1]
                    np.minimum(part, times[at], out=part)
        return event, wall


def _merged_ranges(layout: Layout, bins: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the hash ranges of some bins, neighbours together."""
    if not len(bins):
        return []
    breaks = np.flatnonzero(np.diff(bins) != 1) + 1
    groups = np.split(bins, breaks)
    return [(layout.bin(int(g[0])).start, layout.bin(int(g[-1])).end) for g in groups]


def merge(tables: Iterable[tuple[int, pa.Table]]) -> pa.Table | None:
    """Return the newest of all rows that are the same row, without the deleted, sorted by hash.

    Args:
        tables: (step, rows), in any order.
    """
    parts = [
        table.append_column(_SEQUENCE, pa.repeat(pa.scalar(step, pa.int64()), table.num_rows))
        for step, table in tables
    ]
    if not parts:
        return None
    table = pa.concat_tables(parts)
    identity = [name for name in identity_of(table.schema) if name != _SEQUENCE]
    order = [(name, "ascending") for name in [*identity, _SEQUENCE]]
    table = table.take(pc.sort_indices(table, sort_keys=order)).combine_chunks()
    superseded = np.ones(max(table.num_rows - 1, 0), dtype=bool)
    for name in identity:
        column = table.column(name)
        superseded &= pc.equal(column[:-1], column[1:]).to_numpy(zero_copy_only=False)
    live = ~np.append(superseded, False) & ~deleted(table)
    table = table.filter(pa.array(live)).drop_columns([_SEQUENCE])
    return table if table.num_rows else None
