"""Columns of tables: how a declared type is kept in NumPy, and how it travels as Arrow.

In memory, times are integers of microseconds, dates are integers of days, and texts and bytes are
objects. Decimals are whole numbers of their last digit; see :mod:`headrace.schema.whole_decimals`. So a
handler can compute with whole columns at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.schema import NotExact, exact_cast, whole_decimals
from headrace.schema.declared import form_of
from headrace.schema.forms import Plain

Column = npt.NDArray[Any]


class ColumnType:
    """One column: its Arrow type, its NumPy type, and the value that an absent row reads as."""

    nullable = False

    def __init__(self, name: str, arrow: pa.DataType) -> None:
        self.name = name
        self.arrow = arrow
        self.dtype = _numpy_type(arrow)
        self.empty: Any = _empty(arrow, self.dtype)
        self.added: Any = None  # the value of rows that were stored before the column was added

    @classmethod
    def declared(cls, name: str, kind: Any, *, place: str) -> ColumnType:
        """Return the column of a declared type.

        Raises:
            PipelineError: when a table cannot have such a column.
        """
        arrow = kind
        if not isinstance(kind, pa.DataType):
            form = form_of(kind, place)
            arrow = form.arrow if isinstance(form, Plain) else pa.null()  # (refused below)
        if not name.isidentifier() or name.startswith("_"):
            raise PipelineError(f"{name!r} cannot be the name of a column", place=place)
        try:
            return cls(name, arrow)
        except TypeError:
            raise PipelineError(
                f"column {name!r} is of type {kind!r}, which a table cannot have",
                place=place,
                remedy="use int, float, bool, str, bytes, date, datetime, timedelta, Decimal, or an "
                "Arrow type of fixed width; for anything else encode it as bytes",
            ) from None

    def new(self, length: int) -> Column:
        """Return a column of absent rows."""
        return np.full(length, self.empty, dtype=self.dtype)

    def from_arrow(self, column: pa.Array | pa.ChunkedArray) -> Column:
        """Return an Arrow column as a NumPy column."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if pa.types.is_decimal(kind):
            return whole_decimals.whole_of(column)
        if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            column = in_micros(column, self.arrow).view(pa.int64())
        elif pa.types.is_date32(kind):
            column = column.view(pa.int32())
        array: Column = column.to_numpy(zero_copy_only=False)
        return array if array.dtype == self.dtype else array.astype(self.dtype)

    def to_arrow(self, column: Column) -> pa.Array:
        """Return a NumPy column as Arrow."""
        if self.dtype == object:
            return pa.array(column, self.arrow, from_pandas=False)
        if pa.types.is_decimal(self.arrow):
            return whole_decimals.decimals_of(column, self.arrow)
        array = pa.array(column)
        return array if array.type == self.arrow else array.view(self.arrow)

    def coerced(self, values: Any, length: int) -> Column:
        """Return a user's values as a column: a copy, of the right type and length.

        Raises:
            TypeError: when the values have another type or length.
        """
        if isinstance(values, pa.Array | pa.ChunkedArray):
            values = self._from_users_arrow(values)
        array = np.asarray(values, dtype=object if self.dtype == object else None)
        if pa.types.is_decimal(self.arrow) and array.dtype == object:
            array = self._from_decimals(array)
        if array.ndim == 0:
            array = np.full(length, array[()], dtype=array.dtype)
        if len(array) != length:
            raise TypeError(f"column {self.name!r} was given {len(array)} values for {length} keys")
        if self.dtype == object:
            self._check_objects(array)
            return array.copy()
        if array.dtype.kind in {"M", "m"}:
            array = self._in_units(array)
        if self.dtype == whole_decimals.WIDE and array.dtype.kind in "iu":
            array = whole_decimals.widened(array)
        if self.dtype == whole_decimals.WIDE and array.dtype == self.dtype:
            return array.copy()
        if not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise TypeError(f"column {self.name!r} is {self.arrow}, and was given {array.dtype}")
        cast: Column = array.astype(self.dtype)
        if cast.dtype != array.dtype and not _same_numbers(cast, array):
            raise TypeError(f"column {self.name!r} was given numbers beyond {self.arrow}")
        return cast

    def _from_decimals(self, array: Column) -> Column:
        """Return Python decimals as the whole numbers that a column keeps.

        Raises:
            TypeError: for a value that is no decimal of the column's digits.
        """
        try:
            found = pa.array(array.reshape(-1).tolist(), self.arrow)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise TypeError(f"column {self.name!r} is {self.arrow}: {error}") from error
        if found.null_count:
            raise TypeError(f"column {self.name!r} was given nulls, and it has none")
        return whole_decimals.whole_of(found).reshape(array.shape)

    def _in_units(self, array: Column) -> Column:
        """Return NumPy times or durations as the integers that a column keeps.

        In points in time, anything finer than a microsecond is cut off.

        Raises:
            TypeError: for NaT, or for a date or duration that the column cannot hold exactly.
        """
        is_time = array.dtype.kind == "M"
        unit = "D" if pa.types.is_date32(self.arrow) else "us"
        found = array.astype(f"{array.dtype.kind}8[{unit}]")
        if np.isnat(array).any():
            raise TypeError(f"column {self.name!r} was given a time that is none")
        if (not is_time or unit == "D") and (found.astype(array.dtype) != array).any():
            raise TypeError(f"column {self.name!r} is {self.arrow}, and was given {array.dtype}")
        return found.view(np.int64)

    def _from_users_arrow(self, values: pa.Array | pa.ChunkedArray) -> Column:
        if values.null_count:
            raise TypeError(f"column {self.name!r} was given nulls, and it has none")
        if _family(values.type) != _family(self.arrow):
            raise TypeError(f"column {self.name!r} is {self.arrow}, and was given {values.type}")
        try:
            return self.from_arrow(exact_cast(values, pa.field(self.name, self.arrow)))
        except NotExact as error:
            raise TypeError(f"column {self.name!r} is {self.arrow}: {error}") from error

    def _check_objects(self, array: Column) -> None:
        wanted = type(self.empty)
        for value in array.tolist():
            if type(value) is not wanted:
                raise TypeError(
                    f"column {self.name!r} is {self.arrow}, and was given {type(value).__name__}"
                )
            if wanted is str and not value.isascii():
                self._check_encodes(value)

    def _check_encodes(self, value: str) -> None:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise TypeError(
                f"column {self.name!r} was given a text that is none: {error}"
            ) from error


def _family(kind: pa.DataType) -> str:
    """Return the family of a type. Values are converted only within a family."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    families: list[tuple[str, Any]] = [
        ("integer", pa.types.is_integer),
        ("float", pa.types.is_floating),
        ("time", pa.types.is_timestamp),
        ("duration", pa.types.is_duration),
        ("decimal", pa.types.is_decimal),
        ("text", lambda k: pa.types.is_string(k) or pa.types.is_large_string(k)),
        ("bytes", lambda k: pa.types.is_binary(k) or pa.types.is_large_binary(k)),
    ]
    return next((name for name, holds in families if holds(kind)), str(kind))


def _same_numbers(cast: Column, array: Column) -> bool:
    """Return whether numbers are the same after a cast. NaN counts as the same as NaN."""
    if cast.dtype.kind in "iu":
        return bool((cast == array).all())
    if cast.dtype.kind == "f" and array.dtype.kind in "iu":
        most = _EXACT_IN_FLOATS[cast.dtype.itemsize]
        return bool((np.abs(array.astype(np.float64)) < most).all()) or all(
            int(one) == int(other) for one, other in zip(cast, array, strict=True)
        )
    return bool(np.array_equal(cast.astype(array.dtype), array, equal_nan=array.dtype.kind == "f"))


#: Size of a float in bytes → the bound below which it represents every integer.
_EXACT_IN_FLOATS = {4: 2**24, 8: 2**53}


def own(array: Column) -> Column:
    """Return an array, made read-only: a handler may read it while the engine goes on using it."""
    if array.flags.writeable:
        array.flags.writeable = False
    return array


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.dtype(object)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        if kind.unit != "us":
            raise TypeError(kind)
        return np.dtype(np.int64)
    if pa.types.is_date32(kind):
        return np.dtype(np.int32)
    if pa.types.is_boolean(kind):
        return np.dtype(np.bool_)
    if pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    if pa.types.is_decimal128(kind):
        return whole_decimals.numpy_type(kind)
    raise TypeError(kind)


def _empty(kind: pa.DataType, dtype: np.dtype[Any]) -> Any:
    if pa.types.is_string(kind):
        return ""
    if pa.types.is_binary(kind):
        return b""
    return np.zeros((), dtype)[()]


def in_micros(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return times or durations in the unit of a type. Nanoseconds are cut to that unit."""
    if column.type.unit != "ns" or kind.unit != "us":
        return column.cast(kind, safe=column.type.unit != "ns")
    there = column.is_valid().to_numpy(zero_copy_only=False)
    nanos = column.cast(pa.int64()).fill_null(0).to_numpy()
    return pa.array(nanos // 1_000, pa.int64(), mask=~there).view(kind)  # (Arrow cuts towards 1970)
