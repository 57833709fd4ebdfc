"""Dedup: of the records with one id, only the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike
from headrace.eventtime.timestamps import MIN_TIME
from headrace.keyspace.hashing import key_type_problem
from headrace.ops.columns import (
    I64,
    Mask,
    column_type,
    field_of,
    place_of,
    same_schema,
    starts_of,
    values_of,
)
from headrace.ops.windows import positive
from headrace.schema.columns import Column


class Dedup(ColumnarComputation):
    """Passes on the first record of each id, unchanged, and drops others within ``horizon``.

    Records are judged in order of arrival. A record at *t* goes on unless a record of its id at *s*
    has gone on, with *t* ≤ *s* + horizon. An id is forgotten when the watermark is past *s* +
    horizon. That makes no difference to records that are on time. MillWheel §5.2 does this for its
    own deliveries; here it is done for the records of a key.

    Args:
        id: the column or columns that distinguish the records of a key. Without any, the key alone
            counts. A record with a null in one of them has no id, and goes on.
        horizon: how long an id is remembered, in event time.

    Guarantees: two records of one id that go on are more than ``horizon`` apart. Which of them is
    the first depends on the order of arrival.

    State: a row for each key and id, until it is forgotten. Cost: a look-up for each key and id in
    a step, and a write for each record that goes on.

    Example::

        p.compute("once", hr.ops.Dedup(id="order", horizon="1h"), keys={orders: "shop"})

    Raises:
        PipelineError: for a wrong horizon. When the pipeline is built, for wrong columns.
    """

    deterministic = True

    seen: TableHandle

    def __init__(self, *, id: str | Sequence[str] = (), horizon: DurationLike) -> None:
        self._id = (id,) if isinstance(id, str) else tuple(id)
        self._horizon = positive(horizon, "horizon", "ops.Dedup", least=0)

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        place = place_of(self, inputs)
        same_schema(inputs, place)
        fields = [field_of(inputs[0], name, place) for name in self._id]
        self._kinds = [column_type(field, place) for field in fields]
        for kind in self._kinds:
            problem = key_type_problem(kind.arrow)
            if problem:
                raise PipelineError(f"id {kind.name!r}: {problem}", place=place)
        sub = {f"id{number}": kind.arrow for number, kind in enumerate(self._kinds)}
        columns = {"at": pa.int64()}
        return {
            "seen": TableState(columns, sub=sub, ttl=timedelta(microseconds=self._horizon + 1)),
            "out": Output(inputs[0].values),
        }

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        found = [values_of(batch, kind) for kind in self._kinds]
        named = np.ones(len(batch), dtype=np.bool_)
        for _, there in found:
            named &= True if there is None else there
        passes = ~named
        if named.any():
            chosen = np.flatnonzero(named)
            ids = {f"id{number}": values[chosen] for number, (values, _) in enumerate(found)}
            passes[chosen] = self._first(batch.where(named), ids)
        rows = np.flatnonzero(passes)
        ctx.produce("out", batch.row_keys[rows], batch.records.take(rows))

    def _first(self, batch: KeyedBatch, ids: dict[str, Column]) -> Mask:
        """Return for each record whether it goes on, and remember those that do."""
        parts = batch.by(**ids)
        rows = self.seen.at(parts.keys, **parts.sub)
        until = np.where(rows.exists, rows["at"] + self._horizon, MIN_TIME)
        going = _passing(parts.timestamps_us, parts.group_of_row, until, self._horizon)
        last = going[np.diff(parts.group_of_row[going], append=-1) != 0]
        groups = parts.group_of_row[last]
        sub = {name: values[groups] for name, values in parts.sub.items()}
        self.seen.at(parts.row_keys[last], **sub).upsert(at=parts.timestamps_us[last])
        passes = np.zeros(len(batch), dtype=np.bool_)
        passes[parts.positions[going]] = True
        return passes


def _passing(times: I64, groups: I64, until: I64, horizon: int) -> I64:
    """Return the positions of records that go on, ascending.

    A record goes on if it is after the time up to which its group is blocked. It then blocks its
    group for the horizon. Takes as many rounds as records of one group go on.

    Args:
        times: the times of the records, group by group.
        groups: the group of each record.
        until: for each group, the time up to which it is blocked at first.
        horizon: for how long a record that goes on blocks its group.
    """
    until = until.copy()
    left = np.arange(len(times))
    going = []
    while len(left):
        left = left[times[left] > until[groups[left]]]
        first = starts_of(groups[left])
        going.append(left[first])
        until[groups[left[first]]] = times[left[first]] + horizon
        left = np.delete(left, first)
    return np.sort(np.concatenate(going))
