"""Columns of streams as operators keep them, with types checked and nulls kept separately."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.computation import InputStream
from headrace.errors import PipelineError
from headrace.keyspace.spans import positions
from headrace.schema.columns import Column, ColumnType

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which tables keep values of a type."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    return kind


def field_of(stream: InputStream, name: str, place: str) -> pa.Field:
    """Return a column of a stream.

    Raises:
        PipelineError: if the stream does not have it.
    """
    schema = stream.values.schema
    if name not in schema.names:
        raise PipelineError(
            f"stream {stream.name!r} has no column {name!r}",
            place=place,
            remedy=f"its columns are: {', '.join(schema.names)}",
        )
    return schema.field(name)


def column_type(field: pa.Field, place: str) -> ColumnType:
    """Return how a table keeps a column of a stream.

    Raises:
        PipelineError: if a table cannot keep it.
    """
    try:
        if pa.types.is_decimal(field.type):
            raise TypeError(field.type)
        return ColumnType(field.name, stored_type(field.type))
    except TypeError:
        raise PipelineError(
            f"column {field.name!r} is of type {field.type}, which an operator cannot keep",
            place=place,
            remedy="choose columns of numbers, texts, bytes, booleans, dates, times and durations; "
            "encode others as bytes",
        ) from None


def values_of(batch: KeyedBatch, kind: ColumnType) -> tuple[Column, Mask | None]:
    """Return a column of a batch's records, and a mask of the records that have a value.

    The mask is None if all have one. Missing values read as zero or empty.
    """
    values = batch[kind.name]
    if not batch.arrow(kind.name).null_count:
        return values, None
    there = ~batch.nulls(kind.name)
    if kind.dtype == object:
        values = np.where(there, values, kind.empty)
    return values, there


def with_nulls(array: pa.Array, there: Mask) -> pa.Array:
    """Return an Arrow array with nulls where the mask is false."""
    if there.all():
        return array
    return array.take(pa.array(np.arange(len(array)), mask=~there))


def spread(counts: I64) -> tuple[I64, I64]:
    """Expand counts: return, for each item, the position of its count and its number there.

    >>> [found.tolist() for found in spread(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    at = np.repeat(np.arange(len(counts)), counts)
    return at, positions(np.zeros_like(counts), counts)


def starts_of(groups: I64) -> I64:
    """Return the position at which each group starts. Groups ascend.

    >>> starts_of(np.array([3, 3, 5])).tolist()
    [0, 2]
    """
    if not len(groups):
        return np.empty(0, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(groups[1:] != groups[:-1]) + 1])


def place_of(operator: object, inputs: Sequence[InputStream]) -> str:
    """Return the place to name in an error of an operator."""
    names = ", ".join(repr(stream.name) for stream in inputs)
    return f"ops.{type(operator).__name__} on {names}"


def expect_inputs(inputs: Sequence[InputStream], count: int, place: str) -> None:
    """Check the number of streams that an operator reads.

    Raises:
        PipelineError: if it is wrong.
    """
    if len(inputs) != count:
        raise PipelineError(
            f"it reads {len(inputs)} streams, and works on {count}",
            place=place,
            remedy="name as many in keys={...}",
        )


def same_schema(inputs: Sequence[InputStream], place: str) -> pa.Schema:
    """Return the columns that all inputs have in common.

    Raises:
        PipelineError: if their columns differ.
    """
    first = inputs[0].values.schema
    for stream in inputs[1:]:
        if not stream.values.schema.equals(first):
            raise PipelineError(
                f"streams {inputs[0].name!r} and {stream.name!r} have different columns",
                place=place,
                remedy="bring them to the same type with ops.Map first",
            )
    return first


def distinct_names(names: Iterable[str], place: str) -> None:
    """Check that the columns of an output have distinct names.

    Raises:
        PipelineError: if two have the same name.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PipelineError(
                f"its output would have two columns {name!r}",
                place=place,
                remedy="rename one, or choose columns",
            )
        seen.add(name)
