"""Run files that are read once, however many parts of the hashes are read of them one after another.

A run has a step's changes of all hashes that its worker owns, in a block or two: whoever wants some of them
reads all. So of a run its rows are read when it is opened, those of all hashes that are missing, and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from headrace.keyspace.ranges import Ranges
from headrace.runfiles.format import RunPart, RunReader
from headrace.runfiles.merging import Each, StateSources
from headrace.tasks.prefetch.in_memory import RowsInMemory

#: Computation → the sections that its state is in.
Sections = Mapping[str, Sequence[str]]

#: Longer runs have so many blocks that parts of the hashes are read by themselves.
_LONGEST = 2 << 20


class KeptRuns:
    """What was read of runs, in memory."""

    def __init__(self) -> None:
        self._ranges = Ranges.of([])
        self._runs: dict[str, RunReader | None] = {}

    def copy(self) -> KeptRuns:
        """Return another one with the same, to go on from."""
        other = KeptRuns()
        other._ranges, other._runs = self._ranges, dict(self._runs)
        return other

    def clear(self) -> None:
        """Forget all."""
        self._ranges = Ranges.of([])
        self._runs.clear()

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(run.ref.length for run in self._runs.values() if run is not None)

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    def want(self, missing: Ranges, runs: Iterable[str]) -> None:
        """Keep what serves for some hashes: runs of these names, if all of the hashes were read of them."""
        if len(missing.without(self._ranges)):
            self.clear()
            self._ranges = missing
        self._runs = {name: self._runs[name] for name in runs if name in self._runs}

    def takes(self, reader: RunReader) -> bool:
        """Say whether a run is one to be kept, and is not yet."""
        return reader.ref.length <= _LONGEST and reader.ref.name not in self._runs

    def take(self, readers: Sequence[RunReader], sections: Sections, each: Each) -> None:
        """Read and keep the rows of some runs.

        Args:
            readers: the runs.
            sections: what is wanted of them.
            each: reads them.
        """
        rows = each(lambda reader: parts_of(reader, sections, self._ranges), readers)
        for reader, parts in zip(readers, rows, strict=True):
            self._runs[reader.ref.name] = RowsInMemory(parts, reader.ref.step) if parts else None

    def split(self, sources: StateSources) -> tuple[StateSources, StateSources]:
        """Return files with the runs that are kept as they are kept; and those that are not kept alone."""
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
        RunPart(owner, kind, one_batch(rows)) for owner, kind, rows in tables if rows is not None
    ]


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch."""
    (batch,) = table.combine_chunks().to_batches()
    return batch
