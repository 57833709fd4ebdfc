"""Rows that come too late, and rows that are final: tables and results with a watermark.

A table of rows that are only inserted may have a *watermark column*. A row is late if its value there
is behind the input watermark of the step before, by more than the table allows. Late rows are not part
of the table: they are counted, and go to a stream of their own. So of all others it is known that no
row will come any more whose time is far enough behind the watermark. Operators let go of what they
keep for such rows (``until``), and a result can wait until it is final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import FiredBatch, StepBatches
from headrace.computation.columnar import BatchContext
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output, Timer
from headrace.computation.zset_state import ZSetState
from headrace.errors import BadInput, PipelineError
from headrace.eventtime.domains import EVENT_TIME
from headrace.eventtime.durations import duration_micros
from headrace.eventtime.timestamps import MIN_TIME
from headrace.schema.row_times import due_times, is_time, micros_of
from headrace.zsets.linear import NO_STEPS, Linear, field_of
from headrace.zsets.operator import OUT, Operator, Side, Until, add, held_by, produce, with_weight
from headrace.zsets.rows import I64, Rows, consolidated

#: The output of late rows.
LATE = "late"


class OnTime(Operator):
    """A table of rows that are only inserted, without those that come too late.

    Late rows are counted as late records of the computation, and are produced on ``late``.

    Args:
        column: the column of each row's time: a timestamp, a date, or an integer of microseconds
            since 1970. None if no row is ever late, and it is only checked that rows are inserted.
        lateness: how far a row may be behind the input watermark of the step before.
        what: what the table is, for messages.
        sides, then: see :class:`Operator`.

    Example::

        rows = hr.zsets.table("rows", orders, watermark="at", lateness="10s")
        rows.group("shops", "shop", n=hr.zsets.Count())

    Raises:
        PipelineError: if the column is not there, or is no time.
        BadInput: in the step, for a row that is deleted, and for one without a time.
    """

    def __init__(
        self,
        column: str | None,
        lateness: timedelta | str = "0s",
        *,
        what: str = "a table",
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        self._column, self._what = column, what
        self._lateness_us = duration_micros(lateness, "lateness", place=what)
        if self._lateness_us < 0:
            raise PipelineError(f"lateness={lateness!r} is below 0", place=what)

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        declared = super().declare(inputs)
        return {**declared, LATE: Output(with_weight(self._made))}

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        if self._column is None:
            return {}, schema
        field = field_of(schema, self._column, self._what)
        if not is_time(field.type):
            raise PipelineError(
                f"watermark={self._column!r}: the column is of type {field.type}",
                place=self._what,
                remedy="name a column of timestamps, dates, or integers of microseconds",
            )
        # A row without a time is refused.
        at = schema.get_field_index(self._column)
        return {}, schema.set(at, field.with_nullable(False))

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        rows = self._changes_of(0, batches)
        self._check_inserted(rows)
        late = self._late(rows, ctx.low_watermark_before_us)
        keys = batches.keys_of_all
        if late is not None and late.any():
            ctx.drop_late(int(late.sum()))
            produce(ctx, LATE, keys, rows.take(late))
            rows = rows.take(~late)
        produce(ctx, OUT, keys, self._then.apply(rows))

    def _late(self, rows: Rows, before: int) -> Any:
        """Return which rows are late, or None if none can be."""
        if self._column is None:
            return None
        if rows.columns[self._column].null_count:
            raise BadInput(
                f"{self._what}: a row has no time: {self._column!r} is null",
                remedy="give it a time, or filter such rows before they become a table; nothing of "
                "this step was committed",
            )
        if before <= MIN_TIME + self._lateness_us:
            return None
        return micros_of(rows.columns[self._column]) < before - self._lateness_us

    def _check_inserted(self, rows: Rows) -> None:
        deleted = np.flatnonzero(rows.weights < 0)
        if len(deleted):
            (row,) = rows.take(deleted[:1]).to_pylist()
            shown = ", ".join(f"{name}={value!r}" for name, value in row.items())
            raise BadInput(
                f"{self._what}: a row is deleted ({shown}), and it was declared that none is",
                remedy="declare the table without append_only= and watermark=; nothing of this step "
                "was committed",
            )


class Final(Operator):
    """Rows that are held until they are final: each comes once, and is never taken back.

    Args:
        until: when a row is final; see :data:`headrace.zsets.operator.Until`.
        sides, then: see :class:`Operator`.

    A change of a row that was final already is not made. It is counted as a late record. None comes
    as long as the input is not taken up again after its end.

    State: the rows that are not final, with a timer for each key and time.

    Example::

        rows = hr.zsets.table("rows", orders, watermark="at")
        rows.final("in_order", {"at": "0s"})

    Raises:
        PipelineError: if no column says when rows are final.
        BadInput: in the step, for a row whose columns of ``until`` are all null, and if a row is final
            that is deleted more often than inserted.
    """

    def __init__(
        self, until: Until, *, sides: Sequence[Side] | None = None, then: Linear = NO_STEPS
    ) -> None:
        super().__init__(sides, then)
        self._until_us = {
            name: duration_micros(after, f"until={{{name!r}}}") for name, after in until.items()
        }

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        fields = [field_of(schema, name, self._place) for name in self._until_us]
        wrong = [of.name for of in fields if not is_time(of.type)]
        if wrong or not fields:
            named = ", ".join(self._until_us) or "none"
            raise PipelineError(
                f"nothing says when a row is final: the columns are {named}",
                place=self._place,
                remedy="name a timestamp, a date, or an integer of microseconds",
            )
        return {"rows": ZSetState(schema), "due": Timer(EVENT_TIME)}, schema

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        rows = consolidated(self._changes_of(0, batches))
        if not len(rows):
            return
        self._check_times(rows)
        due = self._due(rows)
        late = due <= ctx.low_watermark_before_us
        if late.any():
            ctx.drop_late(int(late.sum()))
            rows, due = rows.take(~late), due[~late]
        keys = batches.keys_of_all
        add(self.rows, keys, rows)  # type: ignore[attr-defined]
        first = _first_of_pairs(rows.at, due)
        self.due.set(keys[rows.at[first]], due[first], tags=due[first])  # type: ignore[attr-defined]

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        keys = fired.keys[fired.keys.starts]
        rows = held_by(self.rows, keys, np.arange(len(keys)))  # type: ignore[attr-defined]
        rows = rows.take(self._due(rows) <= ctx.low_watermark_us)
        add(self.rows, keys, rows.weighing(-rows.weights))  # type: ignore[attr-defined]
        if (rows.weights < 0).any():
            (row,) = rows.take(np.flatnonzero(rows.weights < 0)[:1]).to_pylist()
            raise BadInput(f"{self._place}: a row is final that is deleted more often: {row}")
        produce(ctx, OUT, keys, self._then.apply(rows))

    def _check_times(self, rows: Rows) -> None:
        missing = np.ones(len(rows), dtype=np.bool_)
        for name in self._until_us:
            missing &= rows.nulls(name)
        if missing.any():
            (row,) = rows.take(np.flatnonzero(missing)[:1]).to_pylist()
            raise BadInput(
                f"{self._place}: nothing says when a row is final: {row}",
                remedy="leave out rows without a time by a filter before; nothing of this step was "
                "committed",
            )

    def _due(self, rows: Rows) -> I64:
        found: I64 = np.minimum.reduce(
            [due_times(rows.columns[name], after) for name, after in self._until_us.items()]
        )
        return found


def _first_of_pairs(one: I64, other: I64) -> Any:
    """Return the position of one of each pair of numbers."""
    order = np.lexsort((other, one))
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (one[order][1:] != one[order][:-1]) | (other[order][1:] != other[order][:-1])
    return order[new]


__all__ = ["LATE", "Final", "OnTime"]
