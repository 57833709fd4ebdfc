"""Dedup: of records with one id, the first."""

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
from headrace.eventtime.timestamps import MIN_TIME, DurationLike
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
    """Of the records of a key with one id the first goes on, as it is; others within ``horizon`` do not.

    In the order in which they arrive: a record at *t* goes on unless one of its id at *s* has gone on,
    with *t* ≤ *s* + horizon. An id is forgotten when the watermark is past *s* + horizon, which
    makes no difference to any record on time. (The records of a key, as MillWheel §5.2 does for its
    own deliveries.)

    Args:
        id: the column or columns that tell records of a key apart; none: the key alone.
            A record with a null there has no id, and goes on.
        horizon: how long an id is remembered, in event time.

    Guarantees: two records of one id that go on are more than ``horizon`` apart. Which one is first
    follows the order of arrival. State: a row for each key and id, until it is forgotten.
    Cost: a look-up for each key and id of a step, a write for each that goes on.

    Example::

        p.compute("once", hr.ops.Dedup(id="order", horizon="1h"), keys={orders: "shop"})

    Raises:
        PipelineError: for a wrong horizon; when drawn, for wrong columns.
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
            "seen": TableState(columns, sub=sub, ttl=self._horizon + 1),
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
        """Say for each record whether it goes on, and remember those that do."""
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
    """Return the records, ascending, that are after what stands in their group's way.

    Each that goes on stands in the way from then on. In as many rounds as records of one group go on.

    Args:
        times: of the records, group by group.
        groups: which group each is of.
        until: up to when a record of a group does not go on, at first.
        horizon: how long one that goes on is in the way.
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
