"""Operators without state: linear operators in a place of their own, and what sinks want to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.computation.batches import Keys, StepBatches
from headrace.computation.columnar import BatchContext
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.zsets.linear import NO_STEPS, Linear
from headrace.zsets.operator import OUT, Operator, Side, check_columns
from headrace.zsets.rows import Groups, Rows, consolidated

#: The column of upserts that says which rows delete their key.
DELETED = "_deleted"


class Apply(Operator):
    """Linear operators that run by themselves, where the rows cannot be read by their key before.

    Example::

        p.compute("rows", hr.zsets.Apply(), keys={hits: "page"})

    Args:
        sides, then: see :class:`Operator`.
    """

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        return {}, schemas[0]

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        return sides[0]


class AsUpserts(Operator):
    """Changes of a view with a key, as rows that replace the row of their key, or delete it.

    It reads the changes of a :class:`headrace.zsets.KeyedView`, by the same key. Each row has the
    columns of the view and ``_deleted``. A deletion has the columns of the row that is gone.

    Args:
        key: the columns of the key.
        sides, then: see :class:`Operator`.

    Example::

        counts = hr.zsets.table("rows", hits).group("counts", "page", n=hr.zsets.Count())
        by_page = {counts.stream: "key"}
        p.compute("changed", hr.zsets.AsUpserts(["page"]), keys=by_page)
    """

    def __init__(
        self,
        key: Sequence[str],
        *,
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        self._key = tuple(key)

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        super().declare(inputs)
        deleted = pa.field(DELETED, pa.bool_(), nullable=False)
        return {OUT: Output(self._out.append(deleted))}

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        check_columns(schemas[0], self._key, self._place)
        return {}, schemas[0]

    def process_step(self, ctx: BatchContext, batches: StepBatches) -> None:
        rows = consolidated(self._changes_of(0, batches))
        if not len(rows):
            return
        groups = Groups(rows, self._key)
        gone = rows.weights[groups.order] < 0
        # Of each key's rows the new one, or else the old one.
        number = np.where(gone, -1, np.arange(len(rows)))
        new = np.maximum.reduceat(number, groups.starts)
        at = groups.order[np.where(new >= 0, new, groups.starts)]
        chosen = rows.take(at)
        values = {**chosen.columns, DELETED: pa.array(new < 0)}
        ctx.produce(OUT, batches.keys_of_all[chosen.at], values)
