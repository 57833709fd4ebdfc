"""Short lists for each key: its best records by a column, or its newest records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError
from headrace.ops.columns import (
    I64,
    Mask,
    column_type,
    distinct_names,
    expect_inputs,
    field_of,
    place_of,
    spread,
    starts_of,
    values_of,
)
from headrace.ops.payload import Payload, Stored, joined, taken
from headrace.schema.columns import Column, ColumnType

RANK = "rank"


class _Ranked(ColumnarComputation):
    """Base of operators that keep an ordered list of at most ``n`` records for each key.

    A list is produced when it changes. A list of one record is only produced if that record is of
    this step. So for ``n=1`` only the value that decides the order is kept, not the record.
    """

    deterministic = True

    heads: TableHandle
    rows: TableHandle
    best: TableHandle

    def __init__(self, n: int, columns: Sequence[str] | None) -> None:
        self._place = f"ops.{type(self).__name__}"
        if not isinstance(n, int) or n < 1:
            raise PipelineError(f"n={n!r} is not a number of records", place=self._place)
        self._n = n
        self._chosen = columns

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        place = place_of(self, inputs)
        expect_inputs(inputs, 1, place)
        self._payload = Payload(inputs[0], self._chosen, place)
        self._by = self._ordered_by(inputs[0], place)
        fields = [pa.field(RANK, pa.int64(), nullable=False), *self._payload.fields]
        distinct_names((field.name for field in fields), place)
        if self._n == 1:
            return {
                "best": TableState({"by": self._by.arrow}),
                "out": Output(pa.schema(fields)),
            }
        return {
            "heads": TableState({"count": int}),
            "rows": TableState({"by": self._by.arrow, **self._payload.columns}, sub={"place": int}),
            "out": Output(pa.schema(fields)),
        }

    def _ordered_by(self, stream: InputStream, place: str) -> ColumnType:
        raise NotImplementedError

    def _values(self, batch: KeyedBatch) -> tuple[Column, Mask | None]:
        """Return the values by which records are ordered, and a mask of records that have one."""
        raise NotImplementedError

    def _order(self, groups: I64, by: Column, ages: I64) -> I64:
        """Return the positions in the order of the lists.

        Of equal values, lower ages came first.
        """
        raise NotImplementedError

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        by, there = self._values(batch)
        if there is not None and not there.all():
            if not there.any():
                return
            batch, by = batch.where(there), by[there]
        if self._n == 1:
            self._show_best(ctx, batch, by)
            return
        keys = batch.keys
        counts = self.heads.at(keys)["count"]
        at, places = spread(counts)
        known = self.rows.at(keys[at], place=places)
        groups = np.concatenate([at, batch.group_of_row])
        both: Stored = joined(
            {"by": known["by"], **self._payload.read(known)},
            {"by": by, **self._payload.of(batch)},
        )
        new = np.arange(len(groups)) >= len(at)
        ages = np.concatenate([self._ages(places), np.arange(len(batch))])
        order = self._order(groups, both["by"], ages)
        firsts = starts_of(groups[order])
        lengths = np.diff(firsts, append=len(order))
        rank = np.arange(len(order)) - np.repeat(firsts, lengths)
        kept = order[rank < self._n]
        self._show(ctx, batch, groups[kept], rank[rank < self._n], taken(both, kept), new[kept])

    def _ages(self, places: I64) -> I64:
        """Return the ages of the kept records, by their places.

        All are before those of the batch.
        """
        raise NotImplementedError

    def _show(
        self, ctx: BatchContext, batch: KeyedBatch, groups: I64, rank: I64, lists: Stored, new: Mask
    ) -> None:
        """Store and produce the lists that contain a new record."""
        changed = np.zeros(len(batch.keys), dtype=np.bool_)
        changed[groups[new]] = True
        rows = np.flatnonzero(changed[groups])
        groups, rank, lists = groups[rows], rank[rows], taken(lists, rows)
        keys = batch.keys[groups]
        self.rows.at(keys, place=rank).upsert(**lists)
        lengths = np.bincount(groups, minlength=len(batch.keys))
        self.heads.at(batch.keys[changed]).upsert(count=lengths[changed])
        ctx.produce("out", keys, {RANK: rank + 1, **self._payload.arrow(lists)})

    def _show_best(self, ctx: BatchContext, batch: KeyedBatch, by: Column) -> None:
        """Store and produce the best new record of each key, if it is better than the kept one."""
        keys = batch.keys
        found = self._best_rows(batch, by)
        rows, values = self.best.at(keys), by[found]
        better = ~rows.exists | self._better(values, rows["by"])
        if not better.all():
            if not better.any():
                return
            keys, found, values = keys[better], found[better], values[better]
            rows = self.best.at(keys)
        rows.upsert(by=values)
        chosen = np.zeros(len(batch), dtype=np.bool_)
        chosen[found] = True
        best = self._payload.shown(batch.where(chosen))
        ctx.produce("out", keys, {RANK: np.ones(len(keys), dtype=np.int64), **best})

    def _best_rows(self, batch: KeyedBatch, by: Column) -> I64:
        """Return the position of the best record of each key."""
        raise NotImplementedError

    def _better(self, by: Column, known: Column) -> Mask:
        """Return which of some records come before the kept ones."""
        raise NotImplementedError


class TopN(_Ranked):
    """The ``n`` records of a key with the greatest (or least) values of a column.

    If a step's records change the list of a key, the whole list is produced on ``out``: one record
    (rank, columns…) for each place, starting with rank 1. Their event time is the highest one of
    the key's records in the step.

    Args:
        n: the length of a list.
        by: the column that decides. Records with a null or NaN there are left out.
        columns: the columns that are kept and produced; by default all.
        least: whether the least values win.

    Ties: of equal values, the one that arrived first comes first.

    Guarantees: the last list of a key covers all its on-time records.

    State: ``n`` rows for each key, which are never removed. With ``n=1`` only the value that
    decides is kept, not the other columns. For one list in each window, make the window a part of
    the key. Cost: ``n`` rows for each key that has records in a step.

    Example::

        p.compute("dearest", hr.ops.TopN(3, by="cents"), keys={bids: "auction"})

    Raises:
        PipelineError: for a wrong number. When the pipeline is built, for wrong columns.
    """

    def __init__(
        self, n: int, *, by: str, columns: Sequence[str] | None = None, least: bool = False
    ) -> None:
        super().__init__(n, columns)
        self._column = by
        self._least = least

    def _ordered_by(self, stream: InputStream, place: str) -> ColumnType:
        return column_type(field_of(stream, self._column, place), place)

    def _values(self, batch: KeyedBatch) -> tuple[Column, Mask | None]:
        values, there = values_of(batch, self._by)
        if values.dtype.kind == "f":
            number = ~np.isnan(values)
            there = number if there is None else there & number
        return values, there

    def _ages(self, places: I64) -> I64:
        return places - self._n  # of records that tie, the one in the lower place came first

    def _order(self, groups: I64, by: Column, ages: I64) -> I64:
        _, codes = np.unique(by, return_inverse=True)
        order: I64 = np.lexsort((ages, codes if self._least else -codes, groups))
        return order

    def _best_rows(self, batch: KeyedBatch, by: Column) -> I64:
        best = batch.min(by) if self._least else batch.max(by)
        rows = np.flatnonzero(by == best[batch.group_of_row])
        return rows[starts_of(batch.group_of_row[rows])]

    def _better(self, by: Column, known: Column) -> Mask:
        better: Mask = by < known if self._least else by > known
        return better


class LastN(_Ranked):
    """The ``n`` newest records of a key, by event time.

    If a step's records change the list of a key, the whole list is produced on ``out``: one record
    (rank, columns…) for each place, the newest first with rank 1. Their event time is the highest
    one of the key's records in the step.

    Args:
        n: the length of a list.
        columns: the columns that are kept and produced; by default all.

    Ties: of two records of one time, the one that arrived later is newer.

    Guarantees, state and cost are those of :class:`TopN`.

    Example::

        p.compute("latest", hr.ops.LastN(1), keys={readings: "sensor"})

    Raises:
        PipelineError: for a wrong number. When the pipeline is built, for wrong columns.
    """

    def __init__(self, n: int, *, columns: Sequence[str] | None = None) -> None:
        super().__init__(n, columns)

    def _ordered_by(self, stream: InputStream, place: str) -> ColumnType:
        return ColumnType("by", pa.int64())

    def _values(self, batch: KeyedBatch) -> tuple[Column, Mask | None]:
        return batch.timestamps_us, None

    def _ages(self, places: I64) -> I64:
        return -1 - places  # of records that tie, the one in the lower place came last

    def _order(self, groups: I64, by: Column, ages: I64) -> I64:
        order: I64 = np.lexsort((-ages, ~by, groups))
        return order

    def _best_rows(self, batch: KeyedBatch, by: Column) -> I64:
        rows = np.flatnonzero(by == batch.max(by)[batch.group_of_row])
        last: I64 = np.append(starts_of(batch.group_of_row[rows])[1:], len(rows)) - 1
        return rows[last]

    def _better(self, by: Column, known: Column) -> Mask:
        better: Mask = by >= known
        return better
