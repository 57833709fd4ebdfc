"""Gathers the read-ahead rows that a new layout gives to a worker.

These are the rows that were read ahead, with the changes since. The plan names the files with these
changes. So gathering starts as soon as the process sees the plan, while records are still being
read. The task that takes the rows over comes later in the step. It would otherwise have to wait for
the files.
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
from headrace.runfiles.merging import rows_of
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
        as_of: digests of the files of the layer's state, as of which the rows are.
    """

    ranges: Mapping[str, Ranges]
    as_of: tuple[str, ...]


def gathered(
    arrival: Arrival,
    sections: Sections,
    prepared: Prepared,
    committed: CommittedFiles,
    layout: Layout,
    worker: int,
) -> Rows:
    """Return the rows that arrive.

    Args:
        arrival: their hashes.
        sections: the sections of each computation's state.
        prepared: the rows that were read ahead. They include all of these hashes.
        committed: the files as of the step before.
        layout: bins, at whose borders files are cut.
        worker: the new owner.

    Raises:
        NotFound: files with changes since the read-ahead are gone.
    """
    readers = StateReaders(
        committed.store, layout, worker, committed.tail_of(prepared), each=committed.each
    )
    return {
        name: rows_of(prepared.sources(name, readers.sources(name, own)), sections[name], own)
        for name, own in arrival.ranges.items()
    }


class Arriving:
    """Gathers arriving rows concurrently with the tasks of a step."""

    def __init__(self) -> None:
        self._arrival: Arrival | None = None
        self._rows: Future[Rows] | None = None

    def begin(self, arrival: Arrival, gather: Callable[[], Rows], reading: Reading) -> None:
        """Start to gather rows. Drop whatever was started for another arrival."""
        if self._arrival != arrival:
            self.forget()
            self._arrival, self._rows = arrival, reading.soon(gather)

    def take(self, arrival: Arrival) -> Rows | None:
        """Return the gathered rows, and wait for them if necessary.

        Returns:
            The rows. None if they are not being gathered, or not yet, or could not be.
        """
        begun, rows = self._arrival, self._rows
        self._arrival = self._rows = None
        if rows is None or rows.cancel() or begun != arrival:
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
