"""State that is a Z-set: rows with weights, any number of them for each key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, overload

import numpy as np
import pyarrow as pa

from headrace.computation.columnar import TableState
from headrace.computation.declarations import Declares
from headrace.computation.table_handles import ZSetHandle
from headrace.errors import PipelineError
from headrace.eventtime.domains import EVENT_TIME
from headrace.eventtime.durations import duration_micros
from headrace.schema import ValueType, value_type_of
from headrace.schema.columns import ColumnType
from headrace.schema.row_columns import RowColumn
from headrace.schema.row_times import is_time
from headrace.schema.whole_decimals import WIDE

#: The column that holds the weight of a row.
WEIGHT = "weight"
#: The column of a sum, before its name.
SUM = "sum_"


class ZSetState(TableState):
    """A Z-set for each key: rows, each with a *weight*, which says how often it is there.

    A multimap with counts. Adding a row with weight 1 inserts it, adding it with -1 deletes it, and
    a row whose weight is 0 is gone. A weight may be below zero, such as between a deletion and the
    insertion that it belongs to.

    A row is identified by all of its columns. Nulls, NaN, floats and decimals are values like
    others, as in SQL's GROUP BY: null is null, NaN is NaN, and -0.0 is 0.0. (So a -0.0 comes back as
    0.0.)

    Besides its weight a row may carry *sums*, which are added up in the same way. A row is gone when
    its weight and all its sums are 0. A table of totals by group is a Z-set of groups with sums.

    Like all state, a Z-set is committed with the step, moves with its bin, and is listed by
    ``headrace state``. A step pays for the rows that it touches.

    Args:
        columns: the columns of the rows: name → type, or an Arrow schema. Types are those of a
            stream, of nested ones only lists; ``int | None`` may be null.
        sums: name → type of the sums: ``int`` for 64 bits, or a decimal for a sum of up to 38
            digits.
        until: column → duration, for rows that nothing will touch any more: a row is let go when the
            input watermark has got to the value of the column and this long behind it; with several
            columns, to the first of these times. The columns are timestamps, dates, or integers of
            microseconds since 1970. A row with a null there stays. The end of the input lets nothing
            go, since it may be taken back.
        renamed_from: the state's name when it was first stored, if it has been renamed since.
        keeps: which rows of all that came are kept, in words, if not all are. Code that keeps others
            cannot go on with what was stored.

    Example::

        class Users(hr.ColumnarComputation):
            users = hr.ZSetState({"user": str})
            out = hr.Output(int)

            def process_batch(self, ctx, batch):
                by_user = batch.by(user=batch["user"])
                rows = {"user": by_user.sub["user"]}
                self.users.add(by_user.keys, rows, by_user.counts)
                held = self.users.of_keys(batch.keys)
                different = np.bincount(held.at, minlength=len(batch.keys))
                ctx.produce("out", batch.keys, different)

    Raises:
        PipelineError: for a nested column that has no lists, or a sum of another type.
    """

    def __init__(
        self,
        columns: Mapping[str, Any] | pa.Schema,
        *,
        sums: Mapping[str, Any] | None = None,
        until: Mapping[str, timedelta | str] | None = None,
        renamed_from: str = "",
        keeps: str = "",
    ) -> None:
        super().__init__({WEIGHT: int}, renamed_from=renamed_from)
        self.keeps = keeps
        given = columns if isinstance(columns, pa.Schema | ValueType) else dict(columns)
        self.schema = value_type_of(given, place="ZSetState").schema
        self.sums = dict(sums or {})
        if not len(self.schema):
            raise PipelineError("a row of a Z-set has at least one column", place="ZSetState")
        self.until_us = {
            name: duration_micros(after, f"until={{{name!r}}}", place="ZSetState")
            for name, after in (until or {}).items()
        }
        for name in self.until_us:
            self._check_time(name)

    def _check_time(self, name: str) -> None:
        """Check that a column says when its rows may go.

        Raises:
            PipelineError: if it does not.
        """
        kind = self.schema.field(name).type if name in self.schema.names else None
        if kind is None or not is_time(kind):
            what = "is not there" if kind is None else f"is of type {kind}"
            raise PipelineError(
                f"until={{{name!r}: …}}: the column {what}",
                place="ZSetState",
                remedy="name a timestamp, a date, or an integer of microseconds",
            )

    def column_types(self, *, place: str) -> tuple[list[ColumnType], list[ColumnType]]:
        """Return the columns of the rows, and those of weights and sums.

        Raises:
            PipelineError: for a nested column, or a sum of another type.
        """
        rows: list[ColumnType] = [RowColumn.of(field, place) for field in self.schema]
        sums = [ColumnType.declared(SUM + name, kind, place=place) for name, kind in self._sums()]
        for kind in sums:
            if kind.dtype not in (np.dtype(np.int64), WIDE):
                raise PipelineError(
                    f"sum {kind.name.removeprefix(SUM)!r} is of type {kind.arrow}",
                    place=place,
                    remedy="declare it as int, or as a decimal",
                )
        return rows, [ColumnType(WEIGHT, pa.int64()), *sums]

    def _sums(self) -> list[tuple[str, Any]]:
        return [*self.sums.items()]

    def describe(self, *, place: str) -> str:
        """Return a stable description of the type. The storage keeps it to detect changes."""
        rows, columns = self.column_types(place=place)
        names = [f"{kind.name}:{kind.arrow}{'?' * kind.nullable}" for kind in rows]
        kept = [f"{kind.name}:{kind.arrow}" for kind in columns]
        until = f" ttl in {EVENT_TIME}" if self.until_us else ""
        return f"table [{', '.join(names)}] {', '.join(kept)}{until}"

    def shape(self, *, place: str) -> dict[str, Any]:
        """Return the stored form of the columns; see :mod:`headrace.pipeline.state_schemas`."""
        shape = super().shape(place=place)
        if self.until_us:
            shape["ttl"] = EVENT_TIME.value
        if self.keeps:
            shape["keeps"] = self.keeps
        return shape

    # A Z-set is stored as a table is, and its handle is another.
    @overload  # type: ignore[override]
    def __get__(self, instance: None, owner: type) -> ZSetState: ...
    @overload
    def __get__(self, instance: Declares, owner: type) -> ZSetHandle: ...
    def __get__(self, instance: Declares | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)
