"""The types in which Spark keeps the columns of retained streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: The most digits that a decimal of Spark has.
_MOST_DIGITS = 38
_CHANGED: list[tuple[Callable[[Any], bool], Callable[[Any], pa.DataType]]] = [
    # Spark has no unsigned integers: they become wider ones.
    (pa.types.is_uint8, lambda _: pa.int16()),
    (pa.types.is_uint16, lambda _: pa.int32()),
    (pa.types.is_uint32, lambda _: pa.int64()),
    (pa.types.is_uint64, lambda _: pa.decimal128(20, 0)),
    (pa.types.is_float16, lambda _: pa.float32()),
    (pa.types.is_date64, lambda _: pa.date32()),
    (pa.types.is_time, lambda _: pa.time64("us")),
    (pa.types.is_duration, lambda _: pa.duration("us")),
    (pa.types.is_timestamp, lambda kind: pa.timestamp("us", tz="UTC" if kind.tz else None)),
    (pa.types.is_list, lambda kind: pa.list_(_inner(kind.value_field))),
    (pa.types.is_large_list, lambda kind: pa.list_(_inner(kind.value_field))),
    (pa.types.is_struct, lambda kind: pa.struct([_inner(field) for field in kind])),
    (pa.types.is_map, lambda kind: pa.map_(_of(kind.key_type), _inner(kind.item_field))),
]


def spark_schema(columns: pa.Schema, place: str) -> StructType:
    """Return the columns in types of Spark that hold all of their values.

    Unsigned integers become wider ones, or a decimal. Times become microseconds; a value with finer
    digits is refused when it is read.

    Raises:
        PipelineError: for a column whose type Spark does not have.
    """
    fields = [_checked(field, place) for field in columns]
    return from_arrow_schema(pa.schema(fields))


def _checked(field: pa.Field, place: str) -> pa.Field:
    try:
        found = _inner(field)
        from_arrow_schema(pa.schema([found]))
    except (PySparkException, ValueError) as error:
        raise PipelineError(
            f"column {field.name!r} is of type {field.type}, which Spark does not have",
            place=place,
            remedy="give the output's field another type, or read the stream's values in a sink",
        ) from error
    return found


def _inner(field: pa.Field) -> pa.Field:
    return field.with_type(_of(field.type))


def _of(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        if kind.precision > _MOST_DIGITS or not 0 <= kind.scale <= kind.precision:
            raise ValueError(f"decimals of Spark are not {kind}")
        return pa.decimal128(kind.precision, kind.scale)
    return next((changed(kind) for is_it, changed in _CHANGED if is_it(kind)), kind)
