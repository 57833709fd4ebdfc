"""Rows as lines of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schema.encodings import decoded_chunks
from headrace.schema.pylists import pylist

_NAMED = {math.inf: "Infinity", -math.inf: "-Infinity"}


def json_lines(rows: pa.Table) -> bytes:
    """Return rows as JSON lines.

    Maps are objects. Numbers that JSON cannot express are the strings ``NaN``, ``Infinity`` and
    ``-Infinity``, as Spark writes them. Bytes are Base64. A column with a time after the year 9999,
    which Python cannot hold, is written as strings in Arrow's notation.
    """
    columns = [_values(column) for column in rows.columns]
    row = _row_class(tuple(rows.column_names))
    return msgspec.json.Encoder(enc_hook=str).encode_lines(list(map(row, *columns)))


@lru_cache(maxsize=64)
def _row_class(names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a class of rows with these names in JSON. Its objects cost less than dicts."""
    fields = [f"f{number}" for number in range(len(names))]
    renamed = dict(zip(fields, names, strict=True))
    return msgspec.defstruct("Row", fields, rename=renamed, gc=False)


def _values(column: pa.ChunkedArray) -> list[Any]:
    column = decoded_chunks(column)
    try:
        values = pylist(column)
    except (OverflowError, ValueError):
        values = column.cast(_with_texts(column.type)).to_pylist()
    if pa.types.is_nested(column.type) or _is_json(column.type) or _is_odd(column):
        return [_shown(value, column.type) for value in values]
    return values


def _is_odd(column: pa.ChunkedArray) -> bool:
    """Return whether a column has numbers that JSON cannot express."""
    return pa.types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is False


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type with strings in the place of dates and times, and integers for durations."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in kind])
    if pa.types.is_nested(kind):  # lists of all kinds
        return pa.list_(_with_texts(kind.value_type))
    return kind


def _name(key: Any, kind: pa.DataType) -> str:
    """Return a map's key as a name in JSON: the text that its value would be, without quotes."""
    if isinstance(key, str):
        return key
    text = msgspec.json.encode(_shown(key, kind), enc_hook=str).decode()
    return text if pa.types.is_nested(kind) else text.strip('"')


def _is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.JsonType)


def _shown(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if _is_json(kind):
        return msgspec.Raw(value.encode())
    if pa.types.is_floating(kind):
        return value if math.isfinite(value) else _NAMED.get(value, "NaN")
    if pa.types.is_map(kind):
        return {_name(k, kind.key_type): _shown(v, kind.item_type) for k, v in value}
    if pa.types.is_struct(kind):
        return {field.name: _shown(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_shown(item, kind.value_type) for item in value]
    return value
