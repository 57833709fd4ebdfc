"""Event times as they stand in data: strings, numbers, timestamps, dates; turned into microseconds."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TimeUnit = Literal["s", "ms", "us", "ns"]
_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_HAS_OFFSET = r"(Z|[+-]\d\d:?\d\d)$"


class BadTime(ValueError):
    """A value is no time. ``row`` says which."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


def to_micros_column(column: pa.Array, *, zone: str = "UTC", unit: TimeUnit = "us") -> pa.Array:
    """Return a column as int64 microseconds since 1970 UTC.

    Args:
        column: strings (ISO 8601), timestamps, dates, or numbers.
        zone: the time zone of what names none.
        unit: the unit of numbers.

    Raises:
        BadTime: for the first value that is no time, or null.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        raise BadTime(_first(pc.is_null(column)), "it is null")
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _from_strings(column, zone)
    if pa.types.is_timestamp(kind):
        return _from_timestamps(column, zone)
    if pa.types.is_date(kind):
        return _from_timestamps(column.cast(pa.timestamp("us")), zone)
    if pa.types.is_integer(kind):
        numbers = column.cast(pa.int64())
        if unit == "ns":
            return pa.array(numbers.to_numpy() // 1_000)
        return pc.multiply_checked(numbers, _PER_UNIT[unit])
    if pa.types.is_floating(kind) and unit != "ns":
        bad = pc.invert(pc.is_finite(column))
        if pc.any(bad).as_py():
            raise BadTime(_first(bad), "it is not a number")
        return pc.round(pc.multiply(column, float(_PER_UNIT[unit]))).cast(pa.int64())
    raise BadTime(0, f"a column of {kind} holds no times")


def _from_timestamps(column: pa.Array, zone: str) -> pa.Array:
    column = column.cast(
        pa.timestamp("us", tz=column.type.tz), safe=False
    )  # finer parts are cut off
    if column.type.tz is None:
        column = pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="earliest")
    return column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())


def _from_strings(column: pa.Array, zone: str) -> pa.Array:
    with_offset = pc.match_substring_regex(column, _HAS_OFFSET).to_numpy(zero_copy_only=False)
    # A date alone ends like an offset: 2013-01-01. It is one only after a time of day.
    with_offset &= pc.match_substring(column, ":").to_numpy(zero_copy_only=False)
    if with_offset.all():
        return _from_timestamps(_parsed(column, pa.timestamp("us", tz="UTC")), zone)
    if not with_offset.any():
        return _from_timestamps(_parsed(column, pa.timestamp("us")), zone)
    micros = np.empty(len(column), dtype=np.int64)
    for mask in (with_offset, ~with_offset):
        rows = np.flatnonzero(mask)
        try:
            part = _from_strings(column.take(pa.array(rows)), zone)
        except BadTime as error:
            raise BadTime(int(rows[error.row]), str(error)) from None
        micros[rows] = part.to_numpy()
    return pa.array(micros)


def _parsed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        for row, text in enumerate(column):
            try:
                pa.array([text.as_py()]).cast(kind)
            except pa.ArrowInvalid:
                raise BadTime(row, f"{text.as_py()!r} is no time (ISO 8601)") from error
        raise BadTime(0, str(error)) from error


def _first(mask: pa.Array) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])
