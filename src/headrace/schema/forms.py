"""Forms: how values of each Python type are kept as an Arrow column, and which values are refused.

A form takes values of its own type only. A column refuses what state would refuse: 2.9 for an
``int``, a ``bool`` for a ``float``, a ``datetime`` for a ``date``. Plain columns are checked by the
set of their values' types, which usually has one element. Other values are looked at one by one.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.eventtime.parsing import to_micros_column
from headrace.eventtime.timestamps import from_micros
from headrace.eventtime.zones import Ambiguous
from headrace.schema.decimals import decimals_of_values
from headrace.schema.exact import Misfit, cast_exactly, check_point_in_time
from headrace.schema.numbers import plain_number

TIMESTAMP = pa.timestamp("us", tz="UTC")
DECIMAL = pa.decimal128(38, 18)
_NONE = type(None)
_ARROW_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


class Form:
    """How values of one Python type are kept as an Arrow column.

    Attributes:
        arrow: the type of the column.
        outside: the same type, with the names that fields have outside of Python.
        type_name: the name of the Python type in messages.
    """

    arrow: pa.DataType
    type_name: str

    @property
    def outside(self) -> pa.DataType:
        return self.arrow

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        """Return values as a column; None becomes null.

        Args:
            values: values of the type, or None.
            zone: the time zone of times that name none. Without it, such times are refused.

        Raises:
            Misfit: for the first value that is not of the type.
        """
        raise NotImplementedError

    def to_python(self, column: pa.Array) -> list[Any]:
        """Return a column of :attr:`arrow` as values.

        Raises:
            Misfit: for the first entry that is not a value of the type.
        """
        raise NotImplementedError

    def read(self, column: pa.Array) -> pa.Array:
        """Return a column of any Arrow type, with the names from outside, as one of :attr:`arrow`.

        Raises:
            Misfit: for the first entry that cannot be kept exactly, or is not a value of the type.
        """
        return cast_exactly(column, self.arrow, nullable=True)


def refused(row: int, value: Any, type_name: str, why: str = "") -> Misfit:
    """Return the error for a value that is not of the declared type."""
    return Misfit(
        row, why or f"{shortened(value)} is of type {type(value).__name__}, not {type_name}"
    )


def shortened(value: Any) -> str:
    """Return a short text for a value, for a message."""
    try:
        shown = repr(value)
    except Exception:  # (for integers with too many digits, and for users' classes)
        shown = f"<{type(value).__name__}>"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


class Plain(Form):
    """Values of a type that Arrow has as well.

    Attributes:
        exact: the Python types whose values Arrow takes as they are. Others are looked at one by
            one.
    """

    exact: frozenset[type]

    def __init__(self, arrow: pa.DataType | None = None) -> None:
        if arrow is not None:
            self.arrow = arrow

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        if self.exact.issuperset(map(type, values)):
            try:
                return self._column(values)
            except _ARROW_ERRORS:
                pass
        return self._one_by_one(values)

    def _column(self, values: Sequence[Any]) -> pa.Array:
        array = pa.array(values, self.arrow)
        if isinstance(array, pa.ChunkedArray):
            raise Misfit(0, "the texts of one batch come to more than 2 GiB")
        return array

    def _one_by_one(self, values: Sequence[Any]) -> pa.Array:
        plain: list[Any] = []
        for row, value in enumerate(values):
            if value is None:
                plain.append(None)
                continue
            try:
                plain.append(self._plain(value))
            except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
                raise refused(row, value, self.type_name, str(error)) from None
        try:
            return self._column(plain)
        except _ARROW_ERRORS as error:
            raise self._first_refused(plain, error) from None

    def _first_refused(self, plain: list[Any], error: Exception) -> Misfit:
        for row, value in enumerate(plain):
            try:
                self._column([value])
            except _ARROW_ERRORS as one:
                return Misfit(row, f"{value!r} cannot be kept as {self.arrow}: {one}")
        return Misfit(0, f"the column cannot be kept as {self.arrow}: {error}")

    def _plain(self, value: Any) -> Any:
        """Return a value as one of the types in :attr:`exact`.

        Raises:
            TypeError: for any other value. Its text may be empty if there is nothing to add.
        """
        if type(value) in self.exact:
            return value
        raise TypeError

    def to_python(self, column: pa.Array) -> list[Any]:
        found: list[Any] = column.to_pylist()
        return found


class Int(Plain):
    """Integers, of 64 bits by default."""

    arrow, type_name, exact = pa.int64(), "int", frozenset((int, _NONE))

    def _column(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, self.arrow)

    def _plain(self, value: Any) -> int:
        if isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
            return int(value)
        raise TypeError


class Float(Plain):
    """Floats, of 64 bits by default. Integers are accepted if a float can represent them."""

    arrow, type_name, exact = pa.float64(), "float", frozenset((float, _NONE))

    def _column(self, values: Sequence[Any]) -> pa.Array:
        if self.arrow == pa.float64():
            return pa.array(values, self.arrow)
        return cast_exactly(pa.array(values, pa.float64()), self.arrow, nullable=True)

    def _plain(self, value: Any) -> float:
        if isinstance(value, bool | np.timedelta64) or not isinstance(
            value, int | float | np.integer | np.floating
        ):
            raise TypeError
        found = float(value)
        if found != value and not math.isnan(found):
            raise ValueError(f"{value!r} cannot be kept as a float: it would become {found!r}")
        return found


class Bool(Plain):
    """True and False."""

    arrow, type_name, exact = pa.bool_(), "bool", frozenset((bool, _NONE))

    def _plain(self, value: Any) -> bool:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise TypeError


class TextForm(Plain):
    """Texts."""

    arrow, type_name, exact = pa.string(), "str", frozenset((str, _NONE))

    def _plain(self, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        text = str.__str__(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{text[:60]!r} is not text that UTF-8 can write: {error.reason}"
            ) from None
        return text


class Bytes(Plain):
    """Bytes."""

    arrow, type_name, exact = pa.binary(), "bytes", frozenset((bytes, _NONE))

    def _plain(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise TypeError


class Date(Plain):
    """Dates."""

    arrow, type_name, exact = pa.date32(), "date", frozenset((date, _NONE))

    def to_python(self, column: pa.Array) -> list[Any]:
        return super().to_python(cast_exactly(column, pa.date32(), nullable=True))


class PointInTime(Plain):
    """Points in time: ``datetime`` with a time zone. They come back in UTC."""

    arrow, type_name, exact = TIMESTAMP, "datetime", frozenset((datetime, _NONE))

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        if not self.exact.issuperset(map(type, values)):
            self._one_by_one(values)
        try:
            values = in_zone(values, zone)
        except NaiveTime as error:
            raise Misfit(error.row, str(error)) from None
        column = pa.array(values, TIMESTAMP)
        check_point_in_time(column)
        return (
            column if self.arrow == TIMESTAMP else cast_exactly(column, self.arrow, nullable=True)
        )

    def _plain(self, value: Any) -> datetime:
        if not isinstance(value, datetime) or _is_nat(value):
            raise TypeError
        if getattr(value, "nanosecond", 0):
            raise ValueError(f"{value!r} has nanoseconds, which a datetime has not")
        return value

    def _column(self, values: Sequence[Any]) -> pa.Array:
        return pa.nulls(len(values))  # (the values were only checked: zones come later)

    def to_python(self, column: pa.Array) -> list[Any]:
        column = cast_exactly(column, TIMESTAMP, nullable=True)
        micros = column.cast(pa.int64()).to_pylist()
        return [None if at is None else from_micros(at) for at in micros]


class LocalTime(Plain):
    """Local times: ``datetime`` without a time zone."""

    arrow, type_name, exact = (
        pa.timestamp("us"),
        "datetime without a time zone",
        frozenset((datetime, _NONE)),
    )

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        for row, value in enumerate(values):
            if isinstance(value, datetime) and value.tzinfo is not None:
                raise Misfit(row, f"{value!r} has a time zone, which the column has not")
        return super().to_arrow(values, zone)

    def to_python(self, column: pa.Array) -> list[Any]:
        return super().to_python(cast_exactly(column, self.arrow, nullable=True))


class DurationForm(Plain):
    """Durations, in microseconds."""

    arrow, type_name, exact = pa.duration("us"), "timedelta", frozenset((timedelta, _NONE))

    def _plain(self, value: Any) -> timedelta:
        if not isinstance(value, timedelta) or _is_nat(value):
            raise TypeError
        if getattr(value, "nanoseconds", 0):
            raise ValueError(f"{value!r} has nanoseconds, which a timedelta has not")
        return value


class TimeOfDay(Plain):
    """Times of day, without a time zone."""

    arrow, type_name, exact = pa.time64("us"), "time", frozenset((time, _NONE))

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        for row, value in enumerate(values):
            if isinstance(value, time) and value.tzinfo is not None:
                raise Misfit(
                    row, f"{value!r} has a time zone, which a column of times of day has not"
                )
        return super().to_arrow(values, zone)

    def to_python(self, column: pa.Array) -> list[Any]:
        return super().to_python(cast_exactly(column, self.arrow, nullable=True))


class Number(Plain):
    """Decimals, by default of 38 digits, 18 of them behind the point."""

    arrow, type_name, exact = DECIMAL, "Decimal", frozenset((Decimal, _NONE))

    def _plain(self, value: Any) -> Decimal:
        if isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64):
            return Decimal(int(value))
        if not isinstance(value, Decimal):
            raise TypeError
        return value

    def _column(self, values: Sequence[Any]) -> pa.Array:
        return decimals_of_values(values, self.arrow)


def _is_nat(value: Any) -> bool:
    """Return whether a value is the ``NaT`` of pandas."""
    return type(value).__name__ == "NaTType"


class NaiveTime(TypeError):
    """A time names no zone, and none was given. ``row`` is its position."""

    def __init__(self, row: int, value: datetime) -> None:
        super().__init__(f"{value!r} has no time zone; use datetime(..., tzinfo=timezone.utc)")
        self.row = row


def is_without_zone(at: datetime) -> bool:
    """Return whether a time names no zone, or a zone without an offset."""
    return at.tzinfo is None or (at.tzinfo is not UTC and at.utcoffset() is None)


def in_zone(values: Sequence[Any], zone: str | None) -> Sequence[Any]:
    """Return times that all name a point in time: those without a zone are read in the given one.

    Raises:
        NaiveTime: for the first time without a zone, when no zone is given.
    """
    naive = [
        row for row, at in enumerate(values) if isinstance(at, datetime) and is_without_zone(at)
    ]
    if not naive:
        return values
    if zone is None:
        raise NaiveTime(naive[0], values[naive[0]])
    found = list(values)
    shown: tuple[tuple[Ambiguous, int], ...] = (("earliest", 0), ("latest", 1))
    for which, fold in shown:  # (``fold`` says which, if a clock showed a time twice)
        rows = [row for row in naive if values[row].fold == fold]
        local = pa.array([values[row].replace(tzinfo=None) for row in rows], pa.timestamp("us"))
        micros = to_micros_column(local, zone=zone, ambiguous=which).to_pylist()
        for row, at in zip(rows, micros, strict=True):
            found[row] = from_micros(at)
    return found


# -- values that are kept as other values -----------------------------------------------------


class Mapped(Form):
    """Values that are kept as values of another form, such as a UUID as its text."""

    inner: Form

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        plain: list[Any] = []
        for row, value in enumerate(values):
            try:
                plain.append(None if value is None else self._inward(value))
            except (TypeError, ValueError) as error:
                raise refused(row, value, self.type_name, str(error)) from None
        return self.inner.to_arrow(plain, zone)

    def to_python(self, column: pa.Array) -> list[Any]:
        return self._outward(self.inner.to_python(column))

    def read(self, column: pa.Array) -> pa.Array:
        column = self.inner.read(column)
        codes = column.dictionary_encode()
        distinct = codes.dictionary.to_pylist()
        try:
            kept = [self._inward(value) for value in self._outward(distinct)]
        except Misfit as error:
            row = column.to_pylist().index(distinct[error.row])
            raise Misfit(row, error.why, error.path) from None
        if kept == distinct:
            return column
        return pa.array(kept, column.type).take(
            codes.indices
        )  # (one value may have been written in several ways)

    def _outward(self, values: list[Any]) -> list[Any]:
        found: list[Any] = []
        for row, value in enumerate(values):
            try:
                found.append(None if value is None else self._value(value))
            except (TypeError, ValueError) as error:
                why = str(error) or f"{value!r} is not of type {self.type_name}"
                raise Misfit(row, why) from None
        return found

    def _inward(self, value: Any) -> Any:
        """Return what is kept for a value."""
        raise NotImplementedError

    def _value(self, plain: Any) -> Any:
        """Return the value for what was kept."""
        raise NotImplementedError


class Member(Mapped):
    """Members of an enum, kept as their values."""

    inner: Plain

    def __init__(self, kind: type[Enum], inner: Plain) -> None:
        self.inner, self.arrow, self.type_name = inner, inner.arrow, kind.__name__
        self._kind = kind

    def _inward(self, value: Any) -> Any:
        if isinstance(value, self._kind):
            return value.value
        plain = plain_number(value, strict=False)
        if type(plain) not in self.inner.exact:  # (True and 1.0 equal 1, but are of other types)
            raise TypeError
        return self._kind(plain).value

    def _value(self, plain: Any) -> Any:
        return self._kind(plain)


class OneOf(Mapped):
    """Values of a ``Literal``, which are all integers or all texts."""

    def __init__(self, values: Sequence[Any], inner: Form) -> None:
        self.inner, self.arrow = inner, inner.arrow
        self.type_name = f"Literal[{', '.join(map(repr, values))}]"
        self._values = tuple(values)

    def _inward(self, value: Any) -> Any:
        if type(value) is not type(self._values[0]) or value not in self._values:
            raise ValueError(f"{value!r} is not one of {self.type_name}")
        return value

    def _value(self, plain: Any) -> Any:
        return self._inward(plain)


class Uuid(Mapped):
    """UUIDs, kept as texts of 36 characters, as JSON, CSV, Spark and DuckDB have them."""

    arrow, type_name, inner = pa.string(), "UUID", TextForm()

    def _inward(self, value: Any) -> str:
        if not isinstance(value, uuid.UUID | str):
            raise TypeError
        return str(value if isinstance(value, uuid.UUID) else uuid.UUID(value))

    def _value(self, plain: str) -> uuid.UUID:
        return uuid.UUID(plain)

    def read(self, column: pa.Array) -> pa.Array:
        if column.type == pa.binary(16):  # (as Parquet keeps UUIDs)
            texts = [None if v is None else str(uuid.UUID(bytes=v)) for v in column.to_pylist()]
            return pa.array(texts, pa.string())
        return super().read(column)
