"""The low watermark bin by bin: the oldest pending work of each bin of a computation.

MillWheel's central authority aggregates the watermarks of key intervals. Here the coordinator
records only the lowest watermark with each step. The detail is read from the files of the state on
request. That costs reading the computation's pending work.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.checkpoints.state_files import StateReaders, state_files
from headrace.computation.declarations import hold_cell
from headrace.errors import PipelineError
from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import MAX_TIME, show_time
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.ledger.stored_schema import groups_of
from headrace.runfiles.sections import due_rows, table_section
from headrace.schema.reserved import HASH
from headrace.storage.base import Store

_EVENT_TIMER, _HOLDING = f"timer {TimeDomain.EVENT_TIME}", "with holds"


class BinMark(msgspec.Struct, frozen=True):
    """A bin with pending work in event time.

    Attributes:
        bin: its name: prefix and depth, with its group if the pipeline has groups.
        worker: its owner.
        watermark: the time up to which it is complete: the computation's input watermark, or its
            oldest work if that is earlier.
        oldest: the time of its oldest work: a pending timer, a hold, a post, or a record that waits
            for its turn.
        pending: number of such items.
    """

    bin: str
    worker: int
    watermark: str
    oldest: str
    pending: int


def bin_marks(store: Store, head: Head, name: str, most: int | None = None) -> list[BinMark]:
    """Return the bins of a computation with pending work in event time, oldest work first.

    Args:
        store: the pipeline's storage.
        head: the pipeline as of a committed step.
        name: the computation.
        most: largest number of bins to return; None for all.

    Raises:
        PipelineError: if the pipeline has no computation of that name.
    """
    computations = head.stored_schema["computations"]
    if name not in computations:
        raise PipelineError(
            f"the pipeline has no computation {name!r}", remedy=f"it has: {', '.join(computations)}"
        )
    layout, groups = Layout.from_wire(head.layout), groups_of(head.stored_schema)
    lowest = np.full(len(layout), MAX_TIME, dtype=np.int64)
    pending = np.zeros(len(layout), dtype=np.int64)
    dated = _dated(computations[name]["cells"])
    for worker in range(layout.workers):
        sources = StateReaders(store, layout, worker, state_files(head)).sources(name)
        for section in sources.sections:
            if section.startswith(table_section("")):
                continue  # expiring rows are not pending work
            rows = sources.rows(section, layout.ranges_of(worker))
            if rows is not None:
                _note(rows, dated, layout, lowest, pending)
    oldest_first = np.argsort(lowest, kind="stable")[: np.count_nonzero(pending)]
    before, _ = head.watermark_of(name)
    return [
        BinMark(
            bin=groups.name(layout.bin(at)),
            worker=int(layout.owners[at]),
            watermark=show_time(min(before, int(lowest[at]))),
            oldest=show_time(int(lowest[at])),
            pending=int(pending[at]),
        )
        for at in oldest_first[:most].tolist()
    ]


def _dated(cells: dict[str, str]) -> dict[str, TimeDomain]:
    """Return the cells of a per-record computation that hold event times."""
    timers = [name for name, kind in cells.items() if kind.startswith(_EVENT_TIMER)]
    holds = [hold_cell(name) for name, kind in cells.items() if kind.endswith(_HOLDING)]
    return dict.fromkeys([*timers, *holds], TimeDomain.EVENT_TIME)


def _note(
    rows: pa.Table,
    dated: dict[str, TimeDomain],
    layout: Layout,
    lowest: npt.NDArray[np.int64],
    pending: npt.NDArray[np.int64],
) -> None:
    """Add the rows of a section that are due in event time to their bins."""
    for batch in rows.combine_chunks().to_batches():
        found = due_rows(batch, dated, expiring=False)
        if found is None:
            continue
        numbers, times, is_wall = found
        bins = layout.bins_of(batch.column(HASH).to_numpy()[numbers[~is_wall]])
        np.minimum.at(lowest, bins, times[~is_wall])
        np.add.at(pending, bins, 1)
