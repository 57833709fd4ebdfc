"""Whole records kept in tables: their columns and, since tables have no nulls, a mask of nulls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.computation import InputStream
from headrace.errors import PipelineError
from headrace.ops.columns import I64, column_type, field_of, values_of, with_nulls
from headrace.schema.columns import Column, in_micros

_NULLS = "nulls"
_MOST_NULLABLE = 63

#: Columns of stored records, by their names in the table.
Stored = dict[str, Column]


class Payload:
    """Some columns of a stream's records, in the form in which a table keeps and returns them.

    Args:
        stream: the stream that has the columns.
        chosen: the columns; None for all.
        place: the place to name in an error.

    Raises:
        PipelineError: for a column that does not exist, or that a table cannot keep.
    """

    def __init__(self, stream: InputStream, chosen: Sequence[str] | None, place: str) -> None:
        names = stream.values.schema.names if chosen is None else list(chosen)
        fields = [field_of(stream, name, place) for name in names]
        self._kinds = [column_type(field, place) for field in fields]
        self._nullable = [field.name for field in fields if field.nullable]
        self.fields = [
            pa.field(field.name, kind.arrow, nullable=field.nullable)
            for field, kind in zip(fields, self._kinds, strict=True)
        ]
        if len(self._nullable) > _MOST_NULLABLE:
            raise PipelineError(
                f"stream {stream.name!r} has {len(self._nullable)} columns that may be null, and at most "
                f"{_MOST_NULLABLE} can be kept",
                place=place,
                remedy="choose columns",
            )

    @property
    def columns(self) -> dict[str, Any]:
        """The table's columns, by name."""
        nulls = {_NULLS: pa.int64()} if self._nullable else {}
        return {**{f"v_{kind.name}": kind.arrow for kind in self._kinds}, **nulls}

    def of(self, batch: KeyedBatch) -> Stored:
        """Return the records of a batch as the table keeps them."""
        stored = {}
        nulls: I64 = np.zeros(len(batch), dtype=np.int64)
        for kind in self._kinds:
            values, there = values_of(batch, kind)
            stored[f"v_{kind.name}"] = values
            if there is not None:
                nulls |= (~there).astype(np.int64) << self._nullable.index(kind.name)
        return {**stored, _NULLS: nulls} if self._nullable else stored

    def shown(self, batch: KeyedBatch) -> dict[str, pa.Array]:
        """Return the records of a batch as columns of a production, without storing them."""
        return {kind.name: _as_kept(batch.arrow(kind.name), kind.arrow) for kind in self._kinds}

    def read(self, rows: Any) -> Stored:
        """Return the records in table rows."""
        return {name: rows[name] for name in self.columns}

    def arrow(self, stored: Stored) -> dict[str, pa.Array]:
        """Return stored records as columns of a production."""
        found = {}
        for kind in self._kinds:
            array = kind.to_arrow(stored[f"v_{kind.name}"])
            if kind.name in self._nullable:
                bit = np.int64(1 << self._nullable.index(kind.name))
                array = with_nulls(array, (stored[_NULLS] & bit) == 0)
            found[kind.name] = array
        return found


def _as_kept(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the type in which tables keep it."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return in_micros(column, kind)
    return column.cast(kind)


def taken(stored: Stored, at: Any) -> Stored:
    """Return some of the records."""
    return {name: values[at] for name, values in stored.items()}


def joined(one: Stored, other: Stored) -> Stored:
    """Return two sets of records, one after the other."""
    return {name: np.concatenate([one[name], other[name]]) for name in one}
