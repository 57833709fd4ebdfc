"""Values of Spark's types: as PySpark's code has them, and as state keeps them.

PySpark's state takes and gives tuples. Here each schema becomes a frozen struct, so that state is
typed, can be looked into by name, and cannot be changed in place. A converter goes from one to the
other. It takes what Spark takes without loss, and refuses what Spark would turn into null or into
another number.
"""

from __future__ import annotations

import datetime as dt
import math
import numbers
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache, partial
from operator import itemgetter
from typing import Any

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    Row,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from headrace.errors import PipelineError
from headrace.schema.codecs import SETTLED
from headrace.sources.names import derived_name

#: Up to here a float holds each integer, so that a whole one is what it was made of.
_WHOLE = 2**53
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


class Converter:
    """Converts the values of one type.

    Attributes:
        kind: the Python type that state keeps.
        exact: the Python type whose values are kept as they are; None if there is none.
        settled: whether what ``keep`` returns is the same after it was written and read.
        keep: returns a value of the user's as it is kept.
        give: returns what is kept as PySpark gives it; None if that is the same.
    """

    def __init__(
        self,
        kind: Any,
        exact: type | None,
        keep: Callable[[Any], Any],
        give: Callable[[Any], Any] | None = None,
        *,
        settled: bool = False,
    ) -> None:
        self.kind, self.exact, self.keep, self.give = kind, exact, keep, give
        self.settled = settled

    def kept(self, value: Any) -> Any:
        """Return a value, or None, as it is kept.

        Raises:
            TypeError, ValueError, OverflowError: if it cannot be kept.
        """
        if value is None or type(value) is self.exact:
            return value
        value = plain(value)
        return None if value is None else self.keep(value)

    def given(self, kept: Any) -> Any:
        """Return what is kept, or None, as PySpark gives it."""
        return kept if kept is None or self.give is None else self.give(kept)


def plain(value: Any) -> Any:
    """Return a value of NumPy or pandas as one of Python's. What is missing is None."""
    if type(value).__module__.partition(".")[0] not in ("numpy", "pandas"):
        return value
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    for method in ("to_pydatetime", "to_pytimedelta", "item", "tolist"):
        convert = getattr(value, method, None)
        if convert is not None:
            return plain(convert())
    return value


def _wrong(value: Any, of: str, why: str = "") -> TypeError:
    return TypeError(f"{value!r} is not of Spark's type {of}{why}")


def _integer(bits: int, name: str) -> Converter:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def keep(value: Any) -> int | None:
        if isinstance(value, float) and math.isnan(value):
            return None  # (pandas has missing integers as NaN)
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= _WHOLE
        # (A whole float is what pandas makes of an integer in a column with missing ones.)
        if isinstance(value, bool) or not (isinstance(value, numbers.Integral) or is_whole):
            raise _wrong(value, name, ", for which Spark keeps null without a word")
        if not least <= int(value) <= most:
            raise OverflowError(
                f"{value!r} is beyond Spark's type {name}, which keeps another number without a word"
            )
        return int(value)

    return Converter(int, int if bits == 64 else None, keep, settled=True)


def _floating(*, single: bool) -> Converter:
    def keep(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise _wrong(value, "float" if single else "double")
        found = float(value)
        if not isinstance(value, float) and found != value:
            raise _wrong(value, "double", f": it would become {found!r}")
        return struct.unpack("f", struct.pack("f", found))[0] if single else found

    return Converter(float, None if single else float, keep, settled=True)


def _text() -> Converter:
    def keep(value: Any) -> str:
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float | Decimal):
            return str(value)
        raise _wrong(value, "string")

    return Converter(str, str, keep, settled=True)


def _boolean() -> Converter:
    def keep(value: Any) -> bool:
        raise _wrong(value, "boolean")

    return Converter(bool, bool, keep, settled=True)


def _binary() -> Converter:
    def keep(value: Any) -> bytes:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise _wrong(value, "binary")

    return Converter(bytes, bytes, keep, settled=True)


def _date() -> Converter:
    def keep(value: Any) -> dt.date:
        if isinstance(value, dt.datetime):
            return value.date()
        if isinstance(value, dt.date):
            return dt.date(value.year, value.month, value.day)
        raise _wrong(value, "date")

    return Converter(dt.date, dt.date, keep, settled=True)


def _timestamp() -> Converter:
    def keep(value: Any) -> dt.datetime:
        if not isinstance(value, dt.datetime):
            raise _wrong(value, "timestamp")
        found = value.astimezone(dt.UTC)  # (one without a zone is in this process's)
        if type(found) is dt.datetime:
            return found
        return dt.datetime.combine(found.date(), found.time(), dt.UTC)

    def give(kept: dt.datetime) -> dt.datetime:
        return kept.astimezone().replace(tzinfo=None)

    return Converter(dt.datetime, None, keep, give, settled=True)


def _local_time() -> Converter:
    def keep(value: Any) -> dt.datetime:
        if not isinstance(value, dt.datetime) or value.tzinfo is not None:
            raise _wrong(value, "timestamp_ntz")
        return value

    return Converter(dt.datetime, None, keep)


def _interval() -> Converter:
    def keep(value: Any) -> dt.timedelta:
        if isinstance(value, dt.timedelta):
            return dt.timedelta(value.days, value.seconds, value.microseconds)
        raise _wrong(value, "interval day to second")

    return Converter(dt.timedelta, dt.timedelta, keep)


def _decimal(kind: DecimalType) -> Converter:
    unit = Decimal(1).scaleb(-kind.scale)

    def keep(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            raise _wrong(value, kind.simpleString())
        found = Decimal(value)
        if not found.is_finite() or abs(found) >= Decimal(10) ** (kind.precision - kind.scale):
            raise _wrong(value, kind.simpleString(), ": it has too many digits")
        return found.quantize(unit)

    return Converter(Decimal, None, keep)


def _array(kind: ArrayType, place: str) -> Converter:
    item = converter_of(kind.elementType, f"{place}.element")

    def keep(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | dict) or not hasattr(value, "__iter__"):
            raise _wrong(value, "array")
        return tuple(map(item.kept, value))

    return Converter(
        tuple[item.kind | None, ...],  # type: ignore[name-defined]
        None,
        keep,
        lambda kept: list(map(item.given, kept)),
        settled=item.settled,
    )


def _map(kind: MapType, place: str) -> Converter:
    key = converter_of(kind.keyType, f"{place}.key")
    item = converter_of(kind.valueType, f"{place}.value")

    def keep(value: Any) -> tuple[tuple[Any, Any], ...]:
        if not isinstance(value, Mapping):
            raise _wrong(value, "map")
        return tuple((key.kept(k), item.kept(v)) for k, v in value.items())

    def give(kept: Any) -> dict[Any, Any]:
        return {key.given(k): item.given(v) for k, v in kept}

    pair = tuple[key.kind, item.kind | None]  # type: ignore[name-defined]
    settled = key.settled and item.settled
    return Converter(tuple[pair, ...], None, keep, give, settled=settled)


_SIMPLE: dict[type[DataType], Callable[[], Converter]] = {
    FloatType: lambda: _floating(single=True),
    DoubleType: lambda: _floating(single=False),
    StringType: _text,
    VarcharType: _text,
    CharType: _text,
    BooleanType: _boolean,
    BinaryType: _binary,
    TimestampType: _timestamp,
    TimestampNTZType: _local_time,
    DateType: _date,
    DayTimeIntervalType: _interval,
}


def converter_of(kind: DataType, place: str) -> Converter:
    """Return the converter of a Spark type.

    Raises:
        PipelineError: for a type that state cannot have here.
    """
    if type(kind) in _BITS:
        return _integer(_BITS[type(kind)], kind.simpleString())
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]()
    match kind:
        case DecimalType():
            return _decimal(kind)
        case ArrayType():
            return _array(kind, place)
        case MapType():
            return _map(kind, place)
        case StructType():
            return StructConverter(kind, place)
    raise PipelineError(
        f"{place} has the type {kind.simpleString()}, which state cannot have here",
        remedy="use numbers, strings, binary, booleans, dates, timestamps, intervals of days, and "
        "arrays, maps and structs of these",
    )


def row_maker(names: Sequence[str]) -> Callable[[Any], Row]:
    """Return a function that makes a ``Row`` with these names of its values."""
    return partial(tuple.__new__, _row_class(tuple(names)))


@cache
def _row_class(names: tuple[str, ...]) -> type[Row]:
    """Return a class of rows with these names.

    A ``Row`` of PySpark has its names in a dict of its own, and searches them at each access. Here
    the class has them. Pickled, a row is one of PySpark's.
    """
    fields = {
        name: property(itemgetter(at))
        for at, name in reversed(list(enumerate(names)))
        if not hasattr(Row, name)
    }
    return type("Row", (Row,), {"__fields__": list(names), **fields})


class StructConverter(Converter):
    """Converts structs, which state keeps as frozen structs of msgspec.

    Attributes:
        names: the names of the fields, as Spark has them.
        row: makes a ``Row`` of values.
    """

    def __init__(self, schema: StructType, place: str) -> None:
        self._place = place
        self.names = list(schema.names)
        self.fields = [converter_of(f.dataType, f"{place}.{f.name}") for f in schema.fields]
        self.row = row_maker(self.names)
        self._exact = tuple(field.exact or _NONE for field in self.fields)
        self._gives = any(field.give is not None for field in self.fields)
        kinds = [field.kind for field in self.fields]
        settled = all(field.settled for field in self.fields)
        self._make = _struct_type(_class_name(place), self.names, kinds, settled=settled)
        super().__init__(self._make, None, self.keep_struct, self.give_row, settled=settled)

    def keep_struct(self, value: Any) -> Any:
        """Return a struct, by the places of its fields, as it is kept.

        Raises:
            TypeError, ValueError, OverflowError: if it cannot be kept, with the place of the field.
        """
        if isinstance(value, dict):
            value = [value.get(name) for name in self.names]
        try:
            if tuple(map(type, value)) == self._exact:
                return self._make(*value)
            values = value if isinstance(value, tuple | list) else tuple(value)
        except TypeError as error:
            raise _placed(error, self._place) from None
        if len(values) != len(self.names):
            wrong = ValueError(
                f"{values!r} has {len(values)} fields, and the schema has {len(self.names)}: "
                f"{', '.join(self.names)}"
            )
            raise _placed(wrong, self._place)
        try:
            kept = [f.kept(item) for f, item in zip(self.fields, values, strict=True)]
        except (TypeError, ValueError, OverflowError) as error:
            raise _placed(error, f"{self._place}.{self._first_misfit(values)}") from None
        return self._make(*kept)

    def _first_misfit(self, values: Sequence[Any]) -> str:
        """Return the first field that cannot keep its value."""
        for name, field, item in zip(self.names, self.fields, values, strict=True):
            try:
                field.kept(item)
            except (TypeError, ValueError, OverflowError):
                return str(name)
        return "?"

    def values(self, kept: Any) -> tuple[Any, ...]:
        """Return the values of what is kept, as PySpark gives them."""
        found: tuple[Any, ...] = msgspec.structs.astuple(kept)
        if not self._gives:
            return found
        return tuple([f.given(item) for f, item in zip(self.fields, found, strict=True)])

    def give_row(self, kept: Any) -> Row:
        """Return what is kept as a ``Row``."""
        return self.row(self.values(kept))


def _placed(error: Exception, place: str) -> Exception:
    """Return an error with the state and the field in its text, once."""
    if getattr(error, "headrace_place", ""):
        return error
    placed: Exception = type(error)(f"{place}: {error}")
    placed.headrace_place = place  # type: ignore[attr-defined]
    return placed


class _NONE:
    """The type of no value."""


def _class_name(place: str) -> str:
    """Return the name of the class for a struct in some place: no two in a state have the same."""
    return "Of_" + re.sub(r"\W+", "_", place).strip("_")


def _struct_type(
    class_name: str, names: Sequence[str], kinds: Sequence[Any], *, settled: bool
) -> Any:
    """Return a frozen struct with these fields, each of which may be None.

    Nothing but a converter makes one. If its values are settled, state need not read them again.
    """
    fields: list[tuple[str, Any, Any]] = []
    taken: set[str] = set()
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        field = derived_name(name)
        if not field or field in taken:
            field = f"field{number}"
        taken.add(field)
        fields.append((field, kind | None, None))
    return msgspec.defstruct(class_name, fields, frozen=True, namespace={SETTLED: settled})
