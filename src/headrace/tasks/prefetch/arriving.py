"""What arrives with a plan: rows of bins that a new layout gives to a worker, and that it has read ahead.

They are what was read ahead and the changes since, of which the plan names the files. So they can be
gathered from the moment that a process sees the plan, which is when it reads records: the task that takes
them over comes later in the step, and would have waited for the files.
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
    """What arrives.

    Attributes:
        ranges: computation → its hashes that arrive.
        as_of: names the files that the rows are as of.
    """

    ranges: Mapping[str, Ranges]
    as_of: tuple[str, ...]


def gathered(
    arrival: Arrival, sections: Sections, prepared: Prepared, committed: CommittedFiles,
    layout: Layout, worker: int,
) -> Rows:  # fmt: skip
    """Return the rows that arrive.

    Args:
        arrival: of which hashes.
        sections: what is wanted of each computation.
        prepared: what was read ahead; it has all of these hashes.
        committed: the files as of the step before.
        layout: where files are cut.
        worker: whose the rows are now.

    Raises:
        NotFound: when files are not there any more that what was read ahead goes on with.
    """
    readers = StateReaders(
        committed.store, layout, worker, committed.tail_of(prepared), each=committed.each
    )
    return {
        name: rows_of(prepared.sources(name, readers.sources(name, own)), sections[name], own)
        for name, own in arrival.ranges.items()
    }


class Arriving:
    """Gathers what arrives beside the tasks of a step, for the one that takes it over."""

    def __init__(self) -> None:
        self._arrival: Arrival | None = None
        self._rows: Future[Rows] | None = None

    def begin(self, arrival: Arrival, gather: Callable[[], Rows], reading: Reading) -> None:
        """Begin to gather; what was begun before for another arrival is forgotten."""
        if self._arrival != arrival:
            self.forget()
            self._arrival, self._rows = arrival, reading.soon(gather)

    def take(self, arrival: Arrival) -> Rows | None:
        """Return what was gathered, perhaps after a while; None if there is nothing to wait for."""
        begun, rows = self._arrival, self._rows
        self._arrival = self._rows = None
        if rows is None or rows.cancel() or begun != arrival:
            return None
        try:
            return rows.result()
        except (StorageError, Damaged):
            return None  # whoever gathers it now is told of it

    def forget(self) -> None:
        """Forget what was begun."""
        if self._rows is not None:
            self._rows.cancel()
        self._arrival = self._rows = None
