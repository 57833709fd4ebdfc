"""Gathers the rows that a new layout gives to a worker.

Some of them were read ahead. Of these, only the changes since are read. The others are read whole,
from the files that the plan names. So gathering starts as soon as the process sees the plan, while
records are still being read, for all layers at once. The task that takes the rows over comes later
in the step. It would otherwise have to wait for the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

import pyarrow as pa

from headrace.checkpoints.state_files import StateReaders
from headrace.errors import Damaged, StorageError
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.runfiles.merging import RowsWanted, rows_of_several
from headrace.storage.reading import Reading
from headrace.tasks.committed_files import CommittedFiles
from headrace.tasks.prefetch.kept import Sections
from headrace.tasks.prefetch.prepared import Prepared

#: Computation → its live rows of the hashes that arrive, by section.
Rows = Mapping[str, list[tuple[str, pa.Table]]]


class Arrival(NamedTuple):
    """Identifies the rows that arrive.

    Attributes:
        ranges: computation → its hashes that arrive.
        unread: those of them that were not read ahead, and are read now.
        as_of: digests of the files of the layer's state, as of which the rows are.
    """

    ranges: Mapping[str, Ranges]
    unread: Mapping[str, Ranges]
    as_of: tuple[str, ...]

    @property
    def prepared(self) -> dict[str, Ranges]:
        """Those that were read ahead."""
        nothing = Ranges.of([])
        found = {
            name: own.without(self.unread.get(name, nothing)) for name, own in self.ranges.items()
        }
        return {name: own for name, own in found.items() if len(own)}

    def has_rows_of(self, other: Arrival) -> bool:
        """Return whether the same rows arrive, whichever of them were read ahead."""
        return self.ranges == other.ranges and self.as_of == other.as_of


def gathered(
    arrival: Arrival,
    sections: Sections,
    prepared: Prepared,
    committed: CommittedFiles,
    layout: Layout,
    worker: int,
) -> Rows:
    """Return the rows that arrive. All files of all computations are read side by side.

    Args:
        arrival: their hashes.
        sections: the sections of each computation's state.
        prepared: the rows that were read ahead. They include all hashes that were.
        committed: the files as of the step before.
        layout: bins, at whose borders files are cut.
        worker: the new owner.

    Raises:
        NotFound: files are gone.
    """
    wanted: list[tuple[str, RowsWanted]] = []
    ahead = arrival.prepared
    if ahead:
        tail = StateReaders(
            committed.store, layout, worker, committed.tail_of(prepared), each=committed.each
        )
        for name, own in ahead.items():
            sources = prepared.sources(name, tail.sources(name, own))
            wanted.append((name, RowsWanted(sources, sections[name], own)))
    if arrival.unread:
        readers = committed.named_readers(layout)
        for name, own in arrival.unread.items():
            wanted.append((name, RowsWanted(readers.sources(name, own), sections[name], own)))
    found = rows_of_several([of for _, of in wanted], committed.each)
    rows: dict[str, list[tuple[str, pa.Table]]] = {name: [] for name in arrival.ranges}
    for (name, _), tables in zip(wanted, found, strict=True):
        rows[name] += tables
    return rows


class Arriving:
    """Gathers arriving rows concurrently with the tasks of a step."""

    def __init__(self) -> None:
        self._arrival: Arrival | None = None
        self._rows: Future[Rows] | None = None

    def begin(self, arrival: Arrival, gather: Callable[[], Rows], reading: Reading) -> None:
        """Start to gather rows. Drop whatever was started for another arrival."""
        if self._arrival is None or not self._arrival.has_rows_of(arrival):
            self.forget()
            self._arrival, self._rows = arrival, reading.soon(gather)

    def take(self, arrival: Arrival) -> Rows | None:
        """Return the gathered rows, and wait for them if necessary.

        Returns:
            The rows. None if they are not being gathered, or not yet, or could not be.
        """
        begun, rows = self._arrival, self._rows
        self._arrival = self._rows = None
        if rows is None or rows.cancel() or begun is None or not begun.has_rows_of(arrival):
            return None
        try:
            return rows.result()
        except (StorageError, Damaged):
            return None  # the caller gathers them itself, and sees the error

    def forget(self) -> None:
        """Drop whatever was started."""
        if self._rows is not None:
            self._rows.cancel()
        self._arrival = self._rows = None
