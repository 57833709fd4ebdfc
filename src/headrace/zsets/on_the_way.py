"""Linear operators that run where rows are sent: what no reader needs is not routed to it.

A filter leaves rows out before they are hashed and sent, a projection leaves out columns, and a key
may be computed. So an operator receives the rows and columns that it works on, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.runfiles.batches import one_array
from headrace.schema import ValueType, value_type_of
from headrace.schema.row_columns import as_row_type
from headrace.zsets.columns import Columns, LazyColumn
from headrace.zsets.linear import Linear, rows_schema
from headrace.zsets.rows import I64, WEIGHT, Rows


@dataclass(frozen=True)
class OnTheWay:
    """Linear operators as a change of records on their way to a reader.

    Attributes:
        linear: the operators.
        before: the columns of the rows before them.
        weighted: whether the records have a column of weights.
    """

    linear: Linear
    before: pa.Schema
    weighted: bool

    @classmethod
    def of(cls, stream: pa.Schema, linear: Linear, place: str) -> OnTheWay:
        """Return operators behind a stream of some columns."""
        return cls(linear, rows_schema(stream, place), WEIGHT in stream.names)

    @property
    def _weighs(self) -> bool:
        return self.weighted or any(step.weighs for step in self.linear.steps)

    def values(self) -> ValueType:
        """Return the type of the records behind the operators."""
        schema = self.linear.schema(self.before, "zsets")
        if self._weighs:
            schema = schema.append(pa.field(WEIGHT, pa.int64(), nullable=False))
        return value_type_of(schema, place="zsets")

    def apply(self, batch: pa.RecordBatch | pa.Table) -> tuple[I64 | None, Mapping[str, pa.Array]]:
        """Return the records behind the operators; see :class:`headrace.pipeline.streams.Rewrite`."""
        at = np.arange(batch.num_rows)
        weights = np.ones(batch.num_rows, dtype=np.int64)
        if self.weighted:
            weights = one_array(batch.column(WEIGHT)).to_numpy(zero_copy_only=False)
        columns = Columns({field.name: _lazy(batch, field) for field in self.before})
        rows = self.linear.apply(Rows(columns, weights, at))
        found = dict(rows.columns)
        if self._weighs:
            found[WEIGHT] = pa.array(rows.weights)
        return None if rows.at is at else rows.at, found


def _lazy(batch: pa.RecordBatch | pa.Table, field: pa.Field) -> LazyColumn:
    return LazyColumn(lambda: as_row_type(one_array(batch.column(field.name)), field.type), None)
