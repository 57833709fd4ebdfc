"""Rows that come and go with the clock: a filter whose condition depends on the time of the step.

Such a condition is of a row and a time. For each row, the *moments* are known at which it may change:
a row that is five minutes old at most has one, five minutes after its own time. So nothing is looked
at again before its next moment, and a row that no moment can change any more is not kept.

The time is the highest clock reading of any step so far. It is the same when a step is computed
again, it is one for all operators of a step, and it never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headrace.computation.batches import FiredBatch, Keys, StepBatches
from headrace.computation.columnar import BatchContext
from headrace.computation.declarations import Declaration, Timer
from headrace.computation.zset_state import ZSetState
from headrace.errors import PipelineError
from headrace.eventtime.domains import WALL_TIME
from headrace.eventtime.timestamps import LAST_DATE_US, MAX_TIME
from headrace.zsets.linear import NO_STEPS, Linear
from headrace.zsets.operator import OUT, Operator, Side, add, held_by, produce
from headrace.zsets.rows import I64, Mask, Rows, consolidated, joined

#: The column of a kept row that says when it is looked at next.
NEXT = "_next"

#: Returns which rows are in the result, each at a time of its own, in microseconds since 1970.
AtTime = Callable[[Rows, I64], Mask]
#: Returns times at which that may change, in microseconds: arrays with one for each row.
Moments = Callable[[Rows], Sequence[I64]]


class ByClock(Operator):
    """The rows for which a condition holds at the time of the step.

    Args:
        condition: which rows are in the result at a time.
        moments: the times at which that may change, each the first one of what holds from then on.
            They may be too many, and must not be too few. ``2**63 - 1``, and every time behind the
            year 9999, is never.
        sides, then: see :class:`Operator`.

    State: the rows for which it will change, with a timer of the clock for each.

    Example::

        minute = 60_000_000  # how old a row must be, in microseconds

        def is_old(rows, now_us):
            return rows["at"].astype("int64") + minute <= now_us

        def is_old_at(rows):
            return [rows["at"].astype("int64") + minute]

        rows = hr.zsets.table("rows", orders)
        rows.by_clock("old", is_old, is_old_at).view("older_than_a_minute")

    Raises:
        PipelineError: for a column that is called ``_next``.
    """

    def __init__(
        self,
        condition: AtTime,
        moments: Moments,
        *,
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        self._condition, self._moments = condition, moments

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        if NEXT in schema.names:
            raise PipelineError(
                f"column {NEXT!r} is the operator's own",
                place=self._place,
                remedy="give it another name with select()",
            )
        self._names = schema.names
        kept = schema.append(pa.field(NEXT, pa.int64(), nullable=False))
        return {"rows": ZSetState(kept), "due": Timer(WALL_TIME)}, schema

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        keys, now = batches.keys_of_all, ctx.clock_us
        rows = consolidated(self._changes_of(0, batches))
        # What is due of these keys comes first. A timer finds nothing left of it then.
        due = self._settled(keys, now)
        inside, following = self._looked_at(rows, now)
        self._keep(keys, rows, following)
        produce(ctx, OUT, keys, self._then.apply(joined([due, rows.take(inside)])))

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        keys = fired.keys[fired.keys.starts]
        produce(ctx, OUT, keys, self._then.apply(self._settled(keys, ctx.clock_us)))

    def _settled(self, keys: Keys, now: int) -> Rows:
        """Look at the kept rows of some keys that are due. Return what changes of the result."""
        held = held_by(self.rows, keys, np.arange(len(keys)))  # type: ignore[attr-defined]
        held = held.take(held[NEXT] <= now)
        if not len(held):
            return held.select(self._names)
        add(self.rows, keys, held.weighing(-held.weights))  # type: ignore[attr-defined]
        rows = held.select(self._names)
        # Nothing has changed between the time when it was looked at last and its moment.
        before = self._condition(rows, held[NEXT] - 1)
        inside, following = self._looked_at(rows, now)
        self._keep(keys, rows, following)
        turned = inside != before
        signs = np.where(inside[turned], 1, -1)
        changed = rows.take(np.flatnonzero(turned))
        return changed.weighing(changed.weights * signs)

    def _looked_at(self, rows: Rows, now: int) -> tuple[Mask, I64]:
        """Return which rows are in the result now, and when that changes next."""
        inside = self._condition(rows, np.full(len(rows), now, dtype=np.int64))
        following = np.full(len(rows), MAX_TIME, dtype=np.int64)
        moments = self._moments(rows)
        for moment in np.sort(np.stack(moments), axis=0) if len(moments) else ():
            ahead = (moment > now) & (moment <= LAST_DATE_US) & (following == MAX_TIME)
            at = np.flatnonzero(ahead)
            if not len(at):
                continue
            turned = self._condition(rows.take(at), moment[at]) != inside[at]
            following[at[turned]] = moment[at[turned]]
        return inside, following

    def _keep(self, keys: Keys, rows: Rows, following: I64) -> None:
        """Keep the rows that change, each until its next moment."""
        changing = following < MAX_TIME
        if not changing.any():
            return
        rows, following = rows.take(changing), following[changing]
        columns = {**rows.columns, NEXT: pa.array(following)}
        kept = Rows(columns, rows.weights, rows.at)
        change = add(self.rows, keys, kept)  # type: ignore[attr-defined]
        self.due.set(keys[rows.at], following, tags=following)  # type: ignore[attr-defined]
        gone = np.flatnonzero(change.after == 0)
        if len(gone):
            self._forget(keys, rows.at[gone], following[gone])

    def _forget(self, keys: Keys, at: I64, moments: I64) -> None:
        """Cancel the timers of rows that are gone, unless another row of the key waits for them."""
        held = held_by(self.rows, keys, at)  # type: ignore[attr-defined]
        waited_for = set(zip(held.at.tolist(), held[NEXT].tolist(), strict=True))
        pairs = zip(at.tolist(), moments.tolist(), strict=True)
        lone = np.array([pair not in waited_for for pair in pairs], dtype=np.bool_)
        self.due.cancel(keys[at[lone]], tags=moments[lone])  # type: ignore[attr-defined]


__all__ = ["NEXT", "ByClock"]
