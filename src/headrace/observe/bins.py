"""Where the state of a pipeline is, bin by bin: owners, loads, and what a migration moves.

Pure: made from the pipeline as of a committed step and the newest measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.keyspace.layout import HASH_BITS, Layout
from headrace.ledger.head import Head
from headrace.ledger.measurements import Published
from headrace.ledger.migrations import RecordedRound
from headrace.ledger.stored_schema import groups_of

#: At most this many bins are listed. Of more, those with the most records are.
MOST_BINS = 4_096


class BinsPicture(msgspec.Struct, frozen=True):
    """The bins of a pipeline, in hash order. Lists have one value for each bin.

    Attributes:
        step: the step that they are of.
        total: how many bins there are.
        names: their prefixes.
        owners: the worker that owns each.
        moves_to: the worker to which the migration under way will move each; -1 for none.
        moves_now: whether the published round moves it.
        records: records of each in a step; None if not measured.
        busy_us: microseconds of work for each in a step; None if not measured.
        state_bytes: bytes of state of each; None if not measured.
    """

    step: int
    total: int
    names: list[str]
    owners: list[int]
    moves_to: list[int]
    moves_now: list[bool]
    records: list[float] | None
    busy_us: list[float] | None
    state_bytes: list[int] | None


def bins_of(head: Head, measurements: Published | None) -> BinsPicture:
    """Return the bins of a pipeline.

    Args:
        head: the pipeline as of a step.
        measurements: the newest measurements. They are left out if they are of another layout.
    """
    layout, groups = Layout.from_wire(head.layout), groups_of(head.stored_schema)
    m = measurements if _fits(measurements, layout) else None
    records = None if m is None or not m.known else m.records
    shown = _shown(len(layout), records)
    moves_to, moves_now = _moves(head, layout)
    return BinsPicture(
        step=head.step,
        total=len(layout),
        names=[groups.name(layout.bin(at)) for at in shown.tolist()],
        owners=layout.owners[shown].tolist(),
        moves_to=moves_to[shown].tolist(),
        moves_now=moves_now[shown].tolist(),
        records=_listed(records, shown),
        busy_us=_listed(None if records is None or m is None else m.busy_us, shown),
        state_bytes=_listed(None if m is None else m.sizes, shown),
    )


class HottestBin(msgspec.Struct, frozen=True):
    """The bin with the most records.

    Attributes:
        name: its prefix; empty if there is one bin.
        worker: its owner.
    """

    name: str
    worker: int


def hottest_bin(head: Head, measurements: Published | None) -> HottestBin | None:
    """Return the bin with the most records; None if that is not known."""
    layout, groups = Layout.from_wire(head.layout), groups_of(head.stored_schema)
    if measurements is None or not measurements.known or not _fits(measurements, layout):
        return None
    at = int(np.argmax(measurements.records))
    return HottestBin(groups.name(layout.bin(at)), int(layout.owners[at]))


def _fits(measurements: Published | None, layout: Layout) -> bool:
    return measurements is not None and len(Layout.from_wire(measurements.layout)) == len(layout)


def _shown(count: int, records: list[float] | None) -> npt.NDArray[np.int64]:
    if count <= MOST_BINS or records is None:
        return np.arange(min(count, MOST_BINS))
    return np.sort(np.argsort(-np.array(records), kind="stable")[:MOST_BINS])


def _moves(head: Head, layout: Layout) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return where the rounds that are left move each bin, and whether the published one does."""
    moves_to = np.full(len(layout), -1, dtype=np.int64)
    moves_now = np.zeros(len(layout), dtype=np.bool_)
    migration = head.migration
    for number, one in enumerate([] if migration is None else migration.left):
        for mask, worker in _moved(one, layout):
            moves_to[mask] = worker
            if number == 0 and migration is not None and migration.effective > head.step:
                moves_now[mask] = True
    moves_to[moves_to == layout.owners] = -1
    return moves_to, moves_now


def _moved(one: RecordedRound, layout: Layout) -> list[tuple[npt.NDArray[np.bool_], int]]:
    found = []
    for start, bits, count, worker in one.moves:
        last = start + (count << (HASH_BITS - bits)) - 1
        mask = (layout.starts >= np.uint64(start)) & (layout.starts <= np.uint64(last))
        found.append((mask, worker))
    return found


def _listed(values: Sequence[float] | None, shown: npt.NDArray[np.int64]) -> list[Any] | None:
    return None if not values else [values[at] for at in shown.tolist()]
