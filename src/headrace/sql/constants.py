"""The one row that is there from the first step on.

A query may have rows that come from no table: ``VALUES``, a ``SELECT`` without ``FROM``, and the row of
an aggregate over nothing. They are made from this one.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from headrace.pipeline.source import Limit, Offer, Position, Source, Split
from headrace.schema import ValueType, value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN

#: The name of the injector.
ONE_ROW: Final = "sql_one_row"
#: Its column, which is always true.
THERE: Final = "there"


class OneRow(Source):
    """One record, which comes with the first step. It is as old as a record can be said to be.

    Example::

        one = p.inject("sql_one_row", OneRow())
    """

    source_kind = "one row"
    bounded = True
    is_constant = True

    def values(self) -> ValueType:
        return value_type_of(pa.schema([pa.field(THERE, pa.bool_(), nullable=False)]))

    def start(self) -> Position:
        return 0

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        rows = 1 - int(position)
        return Offer(1, rows, rows, final=True, empty=rows == 0)

    def splits(self, start: Position, end: Position) -> list[Split]:
        return [Split([start, end])]

    def read(self, split: Split) -> pa.Table:
        start, end = split.spec
        rows = end - start
        return pa.table(
            {
                TIMESTAMP_COLUMN: pa.array([0] * rows, pa.int64()),
                THERE: pa.array([True] * rows, pa.bool_()),
            }
        )

    def reads_the_same(self, other: Any) -> bool:
        return isinstance(other, OneRow)
