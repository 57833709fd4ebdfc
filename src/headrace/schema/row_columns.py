"""Columns that identify rows: nulls, NaN, floats and decimals are values like others.

In memory each value has one form, so that rows are equal if their columns are: floats are their
bits, with one NaN and one zero, and a null is a value of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.schema import NotExact, exact_cast, whole_decimals
from headrace.schema.buffers import in_memory, nulls_of
from headrace.schema.columns import Column, ColumnType, in_micros
from headrace.schema.row_lists import decoded, encoded, is_list, spans_of

#: The most digits of a decimal in a row.
MOST_DIGITS = 38
_THERE, _VALUE = "there", "value"


class RowColumn(ColumnType):
    """A column of rows that are identified by all their values.

    Args:
        field: its name, Arrow type, and whether it may be null.

    Raises:
        TypeError: for a nested type that is no list.
    """

    def __init__(self, field: pa.Field) -> None:
        self.name, self.arrow = field.name, row_type(field.type)
        self.nullable = field.nullable
        self.added = None
        self._element: RowColumn | None = None
        if is_list(self.arrow):
            self._element = RowColumn(pa.field("", self.arrow.value_type))
        self._plain = np.dtype(object) if self._element else _memory_type(self.arrow)
        self._is_text = self._plain.kind == "O"
        self.dtype = self._plain
        if self.nullable and not self._is_text:
            self.dtype = np.dtype([(_THERE, np.bool_), (_VALUE, self._plain)])
        self.empty: Any = np.zeros((), self.dtype)[()]
        if self._is_text:
            self.empty = None if self.nullable else "" if pa.types.is_string(self.arrow) else b""
        if self._element is not None and not self.nullable:
            (self.empty,) = encoded(pa.array([[]], self.arrow), self._element)

    @classmethod
    def of(cls, field: pa.Field, place: str) -> RowColumn:
        """Return the column of a field.

        Raises:
            PipelineError: for a nested type that is no list.
        """
        try:
            return cls(field)
        except TypeError:
            raise PipelineError(
                f"column {field.name!r} is of type {field.type}, which a row of a Z-set cannot have",
                place=place,
                remedy="use numbers, decimals, texts, bytes, booleans, dates, times, and lists of "
                "these; take other nested values apart, or encode them as bytes",
            ) from None

    def from_arrow(self, column: pa.Array | pa.ChunkedArray) -> Column:
        """Return an Arrow column in its form in memory."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        column = as_row_type(column, self.arrow)
        if self._element is not None:
            return encoded(column, self._element)
        if self._is_text:
            texts: Column = column.to_numpy(zero_copy_only=False)
            return texts if texts.dtype == object else texts.astype(object)
        values = self._values_of(column)
        if not self.nullable:
            return values
        found = np.empty(len(column), dtype=self.dtype)
        found[_THERE] = column.is_valid().to_numpy(zero_copy_only=False)
        found[_VALUE] = values
        return found

    def _values_of(self, column: pa.Array) -> Column:
        """Return the values. A null reads as zero."""
        kind = column.type
        numbers = in_memory(column)
        if numbers is not None and numbers.dtype.kind != "f":
            if column.null_count:
                numbers = numbers.copy()
                numbers[nulls_of(column)] = 0
            return numbers
        if pa.types.is_decimal(kind):
            return whole_decimals.whole_of(column)
        if pa.types.is_boolean(kind):
            flags: Column = column.fill_null(False).to_numpy(zero_copy_only=False)
            return flags
        if column.null_count:
            column = column.fill_null(0)
        values: Column = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind == "f":
            plain = np.where(np.isnan(values), values.dtype.type(np.nan), values + 0)
            return plain.astype(values.dtype).view(self._plain)
        return values

    def to_arrow(self, column: Column) -> pa.Array:
        """Return a column in memory as Arrow."""
        if self._element is not None:
            return decoded(column, self.arrow, self._element)
        if self._is_text:
            return pa.array(column, self.arrow, from_pandas=False)
        if not self.nullable:
            return self._arrow_of(column, None)
        return self._arrow_of(np.ascontiguousarray(column[_VALUE]), column[_THERE])

    def _arrow_of(self, values: Column, there: Column | None) -> pa.Array:
        if pa.types.is_boolean(self.arrow):
            return pa.array(values, self.arrow, mask=None if there is None else ~there)
        if pa.types.is_decimal(self.arrow):
            values = whole_decimals.widened(values)
        data = pa.py_buffer(np.ascontiguousarray(values))
        if there is None or there.all():
            return pa.Array.from_buffers(self.arrow, len(values), [None, data])
        bits = pa.py_buffer(np.packbits(there, bitorder="little"))
        return pa.Array.from_buffers(self.arrow, len(values), [bits, data])


def row_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which rows hold values of a type: one for all of its spellings.

    Raises:
        TypeError: for decimals of more than 38 digits.
    """
    if pa.types.is_dictionary(kind):
        return row_type(kind.value_type)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_decimal(kind) and kind.precision > MOST_DIGITS:
        raise TypeError(kind)
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if is_list(kind):
        return pa.list_(row_type(kind.value_type))
    return kind


def as_row_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the type in which rows hold it."""
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return in_micros(column, kind)
    if is_list(kind):
        return _as_row_lists(column, kind)
    return column.cast(kind)


def _as_row_lists(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return lists whose elements are of the type in which rows hold them."""
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    starts, flat = spans_of(column)
    mask = column.is_null() if column.null_count else None
    offsets = pa.array(starts, pa.int32())
    elements = as_row_type(flat, kind.value_type)
    return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=mask)


def _memory_type(kind: pa.DataType) -> np.dtype[Any]:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.dtype(object)
    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_)
    if pa.types.is_decimal(kind):
        return whole_decimals.numpy_type(kind)
    if pa.types.is_float32(kind) or pa.types.is_date32(kind):
        return np.dtype(np.int32)
    if pa.types.is_float64(kind) or pa.types.is_temporal(kind):
        return np.dtype(np.int64)
    if pa.types.is_integer(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    raise TypeError(kind)


def arrow_of(field: pa.Field, values: Any, length: int) -> pa.Array:
    """Return values, as a handler gives them, as a column of rows.

    Args:
        field: the column.
        values: an Arrow or NumPy array, or one value for all rows.
        length: the number of rows.

    Raises:
        TypeError: for values of another type or number, or nulls where there are none.
    """
    kind = row_type(field.type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Scalar) or not isinstance(values, pa.Array):
        values = _of_numpy(kind, values, length)
    if row_type(values.type) == kind:
        values = as_row_type(values, kind)
    elif values.type != kind:
        try:
            values = exact_cast(values, pa.field(field.name, kind, nullable=field.nullable))
        except NotExact as error:
            raise TypeError(f"column {field.name!r} is {kind}: {error}") from error
    if len(values) != length:
        raise TypeError(f"column {field.name!r} was given {len(values)} values for {length} rows")
    if values.null_count and not field.nullable:
        raise TypeError(f"column {field.name!r} was given nulls, and it has none")
    return values


def _of_numpy(kind: pa.DataType, values: Any, length: int) -> pa.Array:
    if values is None or isinstance(values, str | bytes | pa.Scalar):
        return pa.repeat(pa.scalar(values, kind), length)
    array = np.asarray(values)
    if array.ndim == 0:
        array = np.full(length, array[()], dtype=array.dtype)
    if pa.types.is_decimal(kind) and array.dtype in (np.dtype(np.int64), whole_decimals.WIDE):
        return whole_decimals.decimals_of(array, kind)
    if array.dtype == object or is_list(kind):
        return pa.array(array.tolist(), kind)
    found = pa.array(array.copy())
    if pa.types.is_temporal(kind) and pa.types.is_integer(found.type):
        return found.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return found
