"""Set operations: INTERSECT and EXCEPT, with ALL and without. Null equals null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.computation.declarations import Declaration
from headrace.computation.zset_state import ZSetState
from headrace.errors import PipelineError
from headrace.zsets.linear import NO_STEPS, Linear
from headrace.zsets.operator import OUT, Operator, Side, add, common_schema
from headrace.zsets.rows import I64, Groups, Rows, joined, no_rows, summed_weights

Kind = Literal["intersect", "except"]


class SetOperation(Operator):
    """The rows that two Z-sets have in common, or those that only the first has.

    Both inputs must have the same columns, and be keyed by :class:`headrace.Hashed` of all of them.

    Args:
        kind: ``"intersect"`` or ``"except"``.
        all: whether rows count as often as they are there: as in both, or as often as the first has
            them more. If not, a row comes once.
        sides, then: see :class:`Operator`.

    State: each row of both inputs, with two numbers.

    Example::

        rows = hr.zsets.table("rows", hits)
        slow = rows.filter(lambda r: r["ms"] > 100).select("page")
        rows.select("page").except_rows("never_slow", slow)
    """

    inputs = 2

    def __init__(
        self,
        kind: Kind,
        *,
        all: bool = False,
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        if kind not in ("intersect", "except"):
            raise PipelineError(f"{kind!r} is neither 'intersect' nor 'except'", place="zsets")
        self._kind, self._all = kind, all

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        schema = common_schema(schemas, self._place)
        self.recomputes = (OUT,)
        return {"rows": ZSetState(schema, sums={"second": int})}, schema

    def contents(self, keys: Keys) -> Rows:
        held = self.rows.of_keys(keys)  # type: ignore[attr-defined]
        columns = {name: held.arrow(name) for name in held.names}
        return Rows(columns, self._times(held.weights, held["second"]), held.at)

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        one, other = sides
        both = joined([one, other])
        if not len(both):
            return no_rows(self._made)
        groups = Groups(both, list(both))
        from_other = np.arange(len(both)) >= len(one)
        weights = both.weights[groups.order]
        of_other = from_other[groups.order]
        rows = both.take(groups.order[groups.starts])
        first = summed_weights(np.where(of_other, 0, weights), groups.starts)
        second = summed_weights(np.where(of_other, weights, 0), groups.starts)
        changed = rows.weighing(first)
        change = add(self.rows, keys, changed, {"second": second})  # type: ignore[attr-defined]
        old = self._times(change.before, change.sums_before["second"])
        return rows.weighing(self._times(change.after, change.sums_after["second"]) - old)

    def _times(self, first: I64, second: I64) -> I64:
        """Return how often rows are in the result."""
        first, second = np.maximum(first, 0), np.maximum(second, 0)
        if self._kind == "intersect":
            found = np.minimum(first, second)
        elif self._all:
            found = np.maximum(first - second, 0)
        else:
            found = np.where(second > 0, 0, first)
        return found if self._all else (found > 0).astype(np.int64)
