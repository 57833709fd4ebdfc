"""Avro schemas of columns, for streams that are written without a schema of their own."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.schema.exact import stored

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WHOLE: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.int64(): "long",
    pa.uint32(): "long",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.binary_view(): "bytes",
    pa.null(): "null",
}
_LOGICAL: dict[pa.DataType, tuple[str, str]] = {
    pa.date32(): ("int", "date"),
    pa.time32("ms"): ("int", "time-millis"),
    pa.time64("us"): ("long", "time-micros"),
}
_UNITS = {"ms": "millis", "us": "micros", "ns": "nanos"}


def derived(columns: pa.Schema, name: str) -> dict[str, Any]:
    """Return the schema of a record with certain columns, as in JSON.

    Args:
        columns: the columns.
        name: what the record is called.

    Raises:
        PipelineError: for a column that Avro cannot hold.
    """
    return _record(list(columns), re.sub(r"[^A-Za-z0-9_]|^(?=\d)", "_", name), "")


def can_hold(kind: pa.DataType) -> bool:
    """Return whether Avro has a type for values of a type."""
    try:
        _type(kind, "it", "it")
    except PipelineError:
        return False
    return True


def _record(fields: list[pa.Field], name: str, path: str) -> dict[str, Any]:
    found = []
    for field in fields:
        where = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            raise PipelineError(
                f"column {where!r} has a name that Avro does not allow",
                remedy="names are letters, digits and underscores; rename the field",
            )
        found.append(
            {"name": field.name, **_with_null(field, where, f"{name}_{field.name}", default=True)}
        )
    if not found:
        raise _no_type(path, "a struct without fields")
    return {"type": "record", "name": name, "fields": found}


def _with_null(field: pa.Field, path: str, name: str, *, default: bool = False) -> dict[str, Any]:
    kind = _type(field.type, path, name)
    if not field.nullable or kind == "null":
        return {"type": kind}
    return {"type": ["null", kind], **({"default": None} if default else {})}


def _type(kind: pa.DataType, path: str, name: str) -> Any:
    kind = stored(kind)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _type(kind.value_type, path, name)
    if kind in _WHOLE:
        return _WHOLE[kind]
    if kind in _LOGICAL:
        of, logical = _LOGICAL[kind]
        return {"type": of, "logicalType": logical}
    if pa.types.is_timestamp(kind) and kind.unit in _UNITS:
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-{_UNITS[kind.unit]}"}
    if pa.types.is_timestamp(kind):  # (of seconds)
        return _type(pa.timestamp("ms", kind.tz), path, name)
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision:
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": name, "size": kind.byte_width}
    if pa.types.is_struct(kind):
        return _record(list(kind), name, path)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _with_null(kind.item_field, f"{path}[]", name)["type"]}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return {"type": "array", "items": _with_null(kind.value_field, f"{path}[]", name)["type"]}
    raise _no_type(path, str(kind))


def _no_type(path: str, kind: str) -> PipelineError:
    remedy = "emit a value that it can hold, or use another format"
    if kind.startswith("duration"):
        remedy = "emit a number of microseconds, or use another format"
    return PipelineError(
        f"column {path!r} is of type {kind}, which Avro cannot hold", remedy=remedy
    )
