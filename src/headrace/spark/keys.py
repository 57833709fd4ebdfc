"""Grouping keys: which of Spark's values can be a key here, and how those that cannot are kept.

A key here is an integer, a text, bytes, a boolean, a date or a timestamp, and never null. Spark
groups by nulls, floats, decimals, arrays and structs, too. So a grouping column that may be null, or
has such a type, gets a column beside it that says the same in a type that can be a key: an ordinary
value stays as it is, and a null becomes a value that no other has.
"""

from __future__ import annotations

import datetime as dt
import math
import zoneinfo
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.errors import BadInput, PipelineError
from headrace.sources.names import derived_name
from headrace.spark.values import converter_of

#: What stands for null, by kind of key. For integers it is one that no narrower type has.
_NO_INT = -(2**63)
_NO_DATE = dt.date.max
_NO_TIME = dt.datetime.max.replace(tzinfo=dt.UTC)
_NO_TIME_US = (_NO_TIME - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
_ESCAPE = "\0"

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)


class KeyPart:
    """One column of a grouping key.

    Attributes:
        name: the column, as Spark calls it.
        arrow: the type of the column that is kept.
    """

    def __init__(self, name: str, kind: DataType, *, as_it_is: bool = False) -> None:
        self.name = name
        self._kind = kind
        self._as_it_is = as_it_is
        self.arrow, self._encode, self._decode = _coding(name, kind)
        if as_it_is:
            self._decode = _same

    def __reduce__(self) -> Any:
        return partial(KeyPart, as_it_is=self._as_it_is), (self.name, self._kind)

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a grouping column as it is kept.

        Raises:
            BadInput: for a value that stands for null here.
        """
        return self._encode(column)

    def decode(self, kept: Any, aware: str | None) -> Any:
        """Return a part of a key as PySpark has it.

        Args:
            kept: what is kept.
            aware: the time zone of timestamps; None for local times without a zone.
        """
        found = self._decode(kept)
        if isinstance(self._kind, ArrayType | StructType):
            return found if aware is None else _as_in_rows(found, self._kind, aware)
        if not isinstance(found, dt.datetime) or isinstance(self._kind, TimestampNTZType):
            return found
        if aware is None:
            return found.astimezone().replace(tzinfo=None)
        return found.astimezone(zoneinfo.ZoneInfo(aware))


class GroupingKey:
    """The columns by which a DataFrame is grouped.

    Args:
        names: the columns.
        schema: the schema of the DataFrame.
        as_it_is: whether the columns are keys as they are, without nulls.

    Attributes:
        names: the columns.
        fields: the columns that are kept in their places, by the names that they have here.
    """

    def __init__(self, names: Sequence[str], schema: StructType, *, as_it_is: bool = False) -> None:
        self.names = list(names)
        self._parts = [KeyPart(name, schema[name].dataType, as_it_is=as_it_is) for name in names]
        self._columns = [derived_name(name) for name in names]  # (as sources call them)
        taken = {derived_name(name) for name in schema.names}
        self.fields: list[pa.Field] = []
        for number, part in enumerate(self._parts):
            name = f"grouping_{number}"
            while name in taken:
                name += "_"
            self.fields.append(pa.field(name, part.arrow, nullable=False))

    def original(self, key: Any, *, aware: str | None) -> tuple[Any, ...]:
        """Return a key as PySpark has it: a tuple."""
        if len(self._parts) == 1:
            return (self._parts[0].decode(key, aware),)
        return tuple([p.decode(of, aware) for p, of in zip(self._parts, key, strict=True)])

    def to(self, records: pa.Table) -> pa.Table:
        """Return records with the columns that are kept behind their own.

        Raises:
            BadInput: for a value that stands for null here.
        """
        for field, part, name in zip(self.fields, self._parts, self._columns, strict=True):
            column = records.column(name).combine_chunks()
            records = records.append_column(field, part.encode(column))
        return records


_Coding = tuple[pa.DataType, Callable[[pa.Array], pa.Array], Callable[[Any], Any]]


def _coding(name: str, kind: DataType) -> _Coding:
    """Return how values of a type are kept as a part of a key: type, there, and back.

    Raises:
        PipelineError: for a type by which nothing can be grouped here.
    """
    match kind:
        case ByteType() | ShortType() | IntegerType() | LongType():
            return _ints(name)
        case StringType():
            return pa.string(), _escaped, _unescaped
        case BooleanType():
            return (
                pa.int64(),
                lambda c: c.cast(pa.int64()).fill_null(2),
                (False, True, None).__getitem__,
            )
        case BinaryType():
            return pa.binary(), _escaped_bytes, _unescaped_bytes
        case DateType():
            return pa.date32(), _filled(name, _NO_DATE, pa.date32()), _unless(_NO_DATE)
        case TimestampType() | TimestampNTZType():
            return _times(name, is_local=isinstance(kind, TimestampNTZType))
        case FloatType() | DoubleType():
            return pa.string(), _floats, lambda text: None if text == _ESCAPE else float(text)
        case DecimalType():
            return (
                pa.string(),
                lambda c: _escaped(c.cast(pa.string())),
                lambda text: None if text == _ESCAPE else Decimal(text),
            )
        case ArrayType() | StructType():
            return _nested(name, kind)
    raise PipelineError(
        f"column {name!r} is of type {kind.simpleString()}, by which nothing can be grouped here",
        remedy="group by numbers, strings, binary, booleans, dates, timestamps, or arrays and structs of "
        "these: make such a column first, with withColumn()",
    )


def _same(kept: Any) -> Any:
    return kept


def _unless(null: Any) -> Callable[[Any], Any]:
    return lambda kept: None if kept == null else kept


def _filled(name: str, null: Any, kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    scalar = pa.scalar(null, kind)

    def encode(column: pa.Array) -> pa.Array:
        column = column.cast(kind)
        if pc.any(pc.equal(column, scalar)).as_py():
            raise BadInput(
                f"column {name!r} holds {null}, which stands for null in keys here",
                place="a grouping key",
                remedy="group by another value in its place",
            )
        return column.fill_null(scalar)

    return encode


def _ints(name: str) -> _Coding:
    return pa.int64(), _filled(name, _NO_INT, pa.int64()), _unless(_NO_INT)


def _times(name: str, *, is_local: bool) -> _Coding:
    kind = pa.timestamp("us", tz="UTC")
    fill = _filled(name, _NO_TIME, kind)

    def encode(column: pa.Array) -> pa.Array:
        return fill(column.cast(pa.timestamp("us")).cast(kind) if is_local else column)

    def decode(kept: dt.datetime) -> Any:
        if kept == _NO_TIME:
            return None
        return kept.replace(tzinfo=None) if is_local else kept

    return kind, encode, decode


def _escaped(column: pa.Array) -> pa.Array:
    column = column.cast(pa.string())
    starts = pc.starts_with(column, _ESCAPE)
    if pc.any(starts).as_py():
        column = pc.if_else(starts, pc.binary_join_element_wise(_ESCAPE, column, ""), column)
    return column.fill_null(_ESCAPE)


def _unescaped(text: str) -> str | None:
    if text.startswith(_ESCAPE):
        return None if text == _ESCAPE else text[1:]
    return text


def _escaped_bytes(column: pa.Array) -> pa.Array:
    found = [
        b"\0" if value is None else b"\0" + value if value.startswith(b"\0") else value
        for value in column.to_pylist()
    ]
    return pa.array(found, pa.binary())


def _unescaped_bytes(data: bytes) -> bytes | None:
    if data.startswith(b"\0"):
        return None if data == b"\0" else data[1:]
    return data


def _floats(column: pa.Array) -> pa.Array:
    """Return floats as texts. Spark groups -0.0 with 0.0, and all NaNs together."""
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    texts = ["nan" if np.isnan(value) else repr(value) for value in values.tolist()]
    found = pa.array(texts, pa.string())
    return pc.if_else(column.is_null(), _ESCAPE, found)


def _nested(name: str, kind: DataType) -> _Coding:
    """Return how arrays and structs are kept: as the bytes of what state keeps of them.

    Raises:
        PipelineError: if there is a map in them, by which Spark cannot group either.
    """
    _check_no_map(name, kind)
    converter = converter_of(kind, f"column {name!r}")
    encoder = msgspec.msgpack.Encoder(order="deterministic")
    decoder: Any = msgspec.msgpack.Decoder(converter.kind | None)

    def encode(column: pa.Array) -> pa.Array:
        values = map(_with_one_zero, column.to_pylist())
        return pa.array([encoder.encode(converter.kept(value)) for value in values], pa.binary())

    return pa.binary(), encode, lambda kept: converter.given(decoder.decode(kept))


def _check_no_map(name: str, kind: DataType) -> None:
    match kind:
        case ArrayType():
            _check_no_map(name, kind.elementType)
        case StructType():
            for field in kind.fields:
                _check_no_map(name, field.dataType)
        case MapType():
            raise PipelineError(
                f"column {name!r} has a map in it, by which nothing can be grouped",
                remedy="group by an array of its sorted entries: make such a column first",
            )


def _with_one_zero(value: Any) -> Any:
    """Return a value in which -0.0 is 0.0 and each NaN is the same, as Spark groups them."""
    match value:
        case float():
            return math.nan if math.isnan(value) else value + 0.0
        case list():
            return [_with_one_zero(item) for item in value]
        case dict():
            return {field: _with_one_zero(item) for field, item in value.items()}
    return value


def _as_in_rows(value: Any, kind: DataType, zone: str) -> Any:
    """Return a part of a key as rows have it: with dicts for structs, and aware times."""
    if value is None:
        return None
    match kind:
        case ArrayType():
            return [_as_in_rows(item, kind.elementType, zone) for item in value]
        case StructType():
            return {
                field.name: _as_in_rows(item, field.dataType, zone)
                for field, item in zip(kind.fields, value, strict=True)
            }
        case TimestampType():  # (without a zone it is in this process's)
            return value.astimezone(zoneinfo.ZoneInfo(zone))
    return value
