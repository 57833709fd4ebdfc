"""Rows in memory that can be read like a run file.

They come from files, and will be read once more. Nothing is encoded. Rows of some bins are found by
their hashes, at a cost that does not depend on the number of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.keyspace.ranges import Ranges
from headrace.runfiles.batches import Rows, pieces
from headrace.runfiles.format import FileRef, RunPart, RunReader, Section, inside


class RowsInMemory(RunReader):
    """A reader of rows of state that are in memory.

    Args:
        parts: the rows, each part sorted by hash.
        step: the step that they are of.
        name: tells it from other rows in memory of this step.
    """

    def __init__(self, parts: Sequence[RunPart], step: int, name: str = "in memory") -> None:
        self._rows = {(part.owner, part.kind): _own(part.batch) for part in parts}
        owners = list(dict.fromkeys(part.owner for part in parts))
        length = sum(rows.nbytes for batches in self._rows.values() for rows in batches)
        ref = FileRef(f"{name}, step {step}", length, "", step, 0, 0, owners, "")
        super().__init__(_nothing, ref)
        self._opened = {
            at: Section(*at, batches[0].schema.serialize().to_pybytes(), [], None)
            for at, batches in self._rows.items()
        }

    @property
    def is_in_memory(self) -> bool:
        return True

    def rows_in(self, owner: str, kind: str, ranges: Ranges) -> pa.Table | None:
        batches = self._rows.get((owner, kind), [])
        found = [part for rows in batches for part in inside(rows, ranges)]
        return pa.Table.from_batches(found) if found else None


def _own(rows: Rows) -> list[pa.RecordBatch]:
    """Return the rows. Copy them if they keep much other memory alive."""
    batches = list(pieces(rows))
    if rows.get_total_buffer_size() <= 2 * rows.nbytes:
        return batches
    return [batch.take(pa.array(np.arange(batch.num_rows))) for batch in batches]


def _nothing(name: str, offset: int, length: int) -> bytes:
    raise AssertionError("there is no file")
