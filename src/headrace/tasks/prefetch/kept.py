"""Short run files that are read once.

State is read ahead in parts of the hash space. A run holds a step's changes of all hashes that its
worker owns, often in one or two blocks. So whoever wants some of its hashes reads all of it. To
read a short run only once, its rows of all missing hashes are kept in memory when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.keyspace.ranges import Ranges
from headrace.runfiles.batches import combined
from headrace.runfiles.format import RunPart, RunReader
from headrace.runfiles.in_memory import RowsInMemory
from headrace.runfiles.merging import Each, StateSources

#: Computation → the sections that its state is in.
Sections = Mapping[str, Sequence[str]]

#: Longer runs have enough blocks for parts of the hash space to be read on their own.
_LONGEST = 2 << 20


class KeptRuns:
    """The rows of runs that were read once, in memory."""

    def __init__(self) -> None:
        self._ranges = Ranges.of([])
        self._runs: dict[str, RunReader | None] = {}

    def copy(self) -> KeptRuns:
        """Return a copy to continue from."""
        other = KeptRuns()
        other._ranges, other._runs = self._ranges, dict(self._runs)
        return other

    def clear(self) -> None:
        """Forget everything."""
        self._ranges = Ranges.of([])
        self._runs.clear()

    @property
    def nbytes(self) -> int:
        """The memory that the rows take, in bytes."""
        return sum(run.ref.length for run in self._runs.values() if run is not None)

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    def want(self, missing: Ranges, runs: Iterable[str]) -> None:
        """Set the missing hashes. Keep the named runs if these hashes were read from them."""
        if len(missing.without(self._ranges)):
            self.clear()
            self._ranges = missing
        self._runs = {name: self._runs[name] for name in runs if name in self._runs}

    def takes(self, reader: RunReader) -> bool:
        """Return whether a run should be kept and is not kept yet."""
        return reader.ref.length <= _LONGEST and reader.ref.name not in self._runs

    def take(self, readers: Sequence[RunReader], sections: Sections, each: Each) -> None:
        """Read the rows of some runs, and keep them.

        Args:
            readers: the runs.
            sections: the sections that are wanted.
            each: reads them concurrently.
        """
        rows = each(lambda reader: parts_of(reader, sections, self._ranges), readers)
        for reader, parts in zip(readers, rows, strict=True):
            self._runs[reader.ref.name] = RowsInMemory(parts, reader.ref.step) if parts else None

    def split(self, sources: StateSources) -> tuple[StateSources, StateSources]:
        """Return files twice: with the kept runs in place of their files, and without kept runs."""
        known, others = [], []
        for run, extent in zip(sources.runs, sources.extents, strict=True):
            if run.ref.name not in self._runs:
                others.append((run, extent))
                known.append((run, extent))
            elif (kept := self._runs[run.ref.name]) is not None:
                known.append((kept, extent))
        return sources.with_runs(known), sources.with_runs(others)


def parts_of(reader: RunReader, sections: Sections, ranges: Ranges) -> list[RunPart]:
    """Return the rows of some hashes in a file, by computation and section."""
    tables = (
        (owner, section, reader.rows_in(owner, section, ranges))
        for owner, kinds in sections.items()
        for section in kinds
    )
    return [
        RunPart(owner, kind, combined(rows)) for owner, kind, rows in tables if rows is not None
    ]
