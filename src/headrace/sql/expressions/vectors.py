"""Columns as expressions compute with them: values, and which of them are not NULL.

Numbers, times and booleans are NumPy arrays; texts, bytes and arrays are Arrow arrays. A decimal is its
unscaled integer: an ``int64`` as long as all of a column's values fit, whatever its type says, and
Python integers beyond. So decimals are exact, and fast as long as they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schema.row_columns import as_row_type
from headrace.sql.ir.types import SqlType

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]

_DTYPES: Final = {
    "boolean": np.dtype(np.bool_),
    "tinyint": np.dtype(np.int8),
    "smallint": np.dtype(np.int16),
    "int": np.dtype(np.int32),
    "bigint": np.dtype(np.int64),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "decimal": np.dtype(np.int64),
    "date": np.dtype(np.int32),
    "timestamp": np.dtype(np.int64),
    "timestamp_ntz": np.dtype(np.int64),
    "day_time": np.dtype(np.int64),
    "year_month": np.dtype(np.int32),
    "void": np.dtype(np.bool_),
}


def dtype_of(kind: SqlType) -> np.dtype[Any]:
    """Return the NumPy type of a column that is no text."""
    return _DTYPES[kind.name]


class Vector:
    """A column.

    Attributes:
        values: a NumPy array; for texts, bytes and arrays an Arrow array, with its own NULLs.
        valid: which values are not NULL; None if all are. What ``values`` has elsewhere means
            nothing.
    """

    __slots__ = ("valid", "values")

    def __init__(self, values: Any, valid: Mask | None = None) -> None:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            if valid is not None and not valid.all():
                values = pc.if_else(pa.array(valid), values, pa.scalar(None, values.type))
            valid = None
            if values.null_count:
                valid = np.asarray(values.is_valid())
        self.values: Any = values
        self.valid = valid

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_text(self) -> bool:
        """Whether the values are an Arrow array: texts, bytes, or arrays."""
        return isinstance(self.values, pa.Array)

    @property
    def mask(self) -> Mask:
        """Which values are not NULL, as an array."""
        return np.ones(len(self), dtype=np.bool_) if self.valid is None else self.valid

    def take(self, at: Positions | Mask) -> Vector:
        """Return the values at some positions, or where a mask is set."""
        if self.is_text:
            positions = np.flatnonzero(at) if at.dtype == np.bool_ else at
            return Vector(self.values.take(pa.array(positions)))
        return Vector(self.values[at], None if self.valid is None else self.valid[at])

    def is_true(self) -> Mask:
        """Return where a boolean column is true; NULL is not."""
        truth: Mask = self.values if self.valid is None else self.values & self.valid
        return truth

    def is_false(self) -> Mask:
        """Return where a boolean column is false; NULL is not."""
        falsehood: Mask = ~self.values if self.valid is None else ~self.values & self.valid
        return falsehood


class Frame:
    """Columns of equal length, of which an expression reads those that it needs.

    Args:
        columns: the columns.
        length: the number of rows, for a frame without columns.
    """

    def __init__(self, columns: Sequence[Vector], length: int) -> None:
        self._columns = list(columns)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def column(self, index: int) -> Vector:
        """Return a column."""
        return self._columns[index]

    def take(self, at: Positions | Mask) -> Frame:
        """Return a frame of some of the rows. A column is copied when it is first read."""
        length = int(at.sum()) if at.dtype == np.bool_ else len(at)
        return _Part(self, at, length)


class _Part(Frame):
    def __init__(self, whole: Frame, at: Positions | Mask, length: int) -> None:
        super().__init__((), length)
        self._whole = whole
        self._at = at
        self._taken: dict[int, Vector] = {}

    def column(self, index: int) -> Vector:
        if index not in self._taken:
            self._taken[index] = self._whole.column(index).take(self._at)
        return self._taken[index]


def nulls(kind: SqlType, length: int) -> Vector:
    """Return a column of NULLs."""
    if kind.in_arrow:
        return Vector(pa.nulls(length, kind.arrow))
    return Vector(np.zeros(length, dtype_of(kind)), np.zeros(length, dtype=np.bool_))


def constant(value: Any, kind: SqlType, length: int) -> Vector:
    """Return a column of one value, which takes no room but for texts."""
    if value is None:
        return nulls(kind, length)
    if kind.is_text:
        return Vector(pa.repeat(pa.scalar(value, kind.arrow), length))
    dtype = dtype_of(kind)
    if kind.is_decimal and not -(2**63) <= value < 2**63:
        dtype = np.dtype(object)
    return Vector(np.broadcast_to(np.array(value, dtype=dtype), (length,)))


def concatenated(parts: Sequence[Vector], kind: SqlType) -> Vector:
    """Return columns one after the other."""
    if not parts:
        return nulls(kind, 0)
    if kind.in_arrow:
        return Vector(pa.concat_arrays([one.values.cast(kind.arrow) for one in parts]))
    values = np.concatenate([one.values for one in parts])
    if all(one.valid is None for one in parts):
        return Vector(values)
    return Vector(values, np.concatenate([one.mask for one in parts]))


def scattered(parts: Sequence[tuple[Positions, Vector]], kind: SqlType, length: int) -> Vector:
    """Return a column that is given in parts, each with the positions of its values."""
    together = concatenated([vector for _, vector in parts], kind)
    positions = np.concatenate([at for at, _ in parts]) if parts else np.zeros(0, dtype=np.int64)
    back = np.empty(length, dtype=np.int64)
    back[positions] = np.arange(length)
    return together.take(back)


# -- Arrow ------------------------------------------------------------------------------------


def from_arrow(array: pa.Array | pa.ChunkedArray, kind: SqlType) -> Vector:
    """Return an Arrow column as expressions compute with it.

    Args:
        array: the column.
        kind: its type; see :attr:`headrace.sql.ir.types.SqlType.arrow`.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind.is_array:
        return Vector(as_row_type(array, kind.arrow))
    if kind.is_text:
        return Vector(array.cast(kind.arrow))
    if kind.name == "void":
        return nulls(kind, len(array))
    valid = np.asarray(array.is_valid()) if array.null_count else None
    if kind.is_decimal:
        return Vector(_unscaled(array.cast(kind.arrow)), valid)
    return Vector(_numbers(array.cast(kind.arrow), dtype_of(kind)), valid)


def _numbers(array: pa.Array, dtype: np.dtype[Any]) -> Any:
    if pa.types.is_boolean(array.type):
        return array.fill_null(False).to_numpy(zero_copy_only=False)
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array) + array.offset)[array.offset :]


def _unscaled(array: pa.Array) -> Any:
    """Return the unscaled integers of a decimal column."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), np.int64)
    words = np.frombuffer(buffer, np.int64, 2 * (len(array) + array.offset))
    low, high = words[2 * array.offset :: 2], words[2 * array.offset + 1 :: 2]
    if array.null_count:
        present = np.asarray(array.is_valid())
        low, high = np.where(present, low, 0), np.where(present, high, 0)
    if np.array_equal(high, low >> 63):
        return np.ascontiguousarray(low)
    return high.astype(object) * 2**64 + low.view(np.uint64).astype(object)


def to_arrow(vector: Vector, kind: SqlType) -> pa.Array:
    """Return a column as Arrow."""
    if vector.is_text:
        return vector.values
    if kind.name == "void":
        return pa.nulls(len(vector))
    absent = None if vector.valid is None else ~vector.valid
    if kind.is_decimal:
        return _decimals(vector.values, absent, kind)
    array = pa.array(np.ascontiguousarray(vector.values), mask=absent)
    return array if array.type == kind.arrow else array.view(kind.arrow)


def _decimals(values: Any, absent: Mask | None, kind: SqlType) -> pa.Array:
    if values.dtype == object:
        values = values if absent is None else np.where(absent, 0, values)
        low = (values & (2**64 - 1)).astype(np.uint64).view(np.int64)
        high = (values >> 64).astype(np.int64)
    else:
        low, high = values, values >> 63
    words = np.empty(2 * len(values), np.int64)
    words[::2], words[1::2] = low, high
    bits = None
    if absent is not None:
        bits = pa.py_buffer(np.packbits(~absent, bitorder="little").tobytes())
    return pa.Array.from_buffers(kind.arrow, len(values), [bits, pa.py_buffer(words.tobytes())])


def python_rows(vector: Vector, kind: SqlType) -> list[Any]:
    """Return the values as Python's; for tests and messages, not for speed."""
    rows: list[Any] = to_arrow(vector, kind).to_pylist()
    return rows


def mapped(function: Callable[..., Any], kind: SqlType, *vectors: Vector) -> Vector:
    """Return a Python function of each row; NULL if an argument is NULL. For texts.

    Equal arguments are computed once.
    """
    columns = [one.values.to_pylist() if one.is_text else one.values.tolist() for one in vectors]
    valid = all_valid(*vectors)
    known: dict[Any, Any] = {}
    has_floats = any(not one.is_text and one.values.dtype.kind == "f" for one in vectors)
    out: list[Any] = []
    for at, row in enumerate(zip(*columns, strict=True)):
        if valid is not None and not valid[at]:
            out.append(None)
            continue
        # (-0.0 equals 0.0, but is not the same)
        key = repr(row) if has_floats else row
        if key not in known:
            known[key] = function(*row)
        out.append(known[key])
    if kind.in_arrow:
        return Vector(pa.array(out, kind.arrow))
    present = np.array([one is not None for one in out], dtype=np.bool_)
    dtype = dtype_of(kind)
    values = np.zeros(len(out), dtype=dtype)
    if kind.is_decimal:
        values = narrowed(np.array([one or 0 for one in out], dtype=object))
    else:
        values[present] = np.array([one for one in out if one is not None], dtype=dtype)
    return Vector(values, None if present.all() else present)


def narrowed(values: Any) -> Any:
    """Return Python integers as ``int64`` if all of them fit."""
    try:
        return values.astype(np.int64)
    except OverflowError:
        return values


def all_valid(*vectors: Vector) -> Mask | None:
    """Return where no column is NULL; None if none has any."""
    valid = None
    for one in vectors:
        if one.valid is not None:
            valid = one.valid if valid is None else valid & one.valid
    return valid
