"""Spark's data types, as its JSON spells them, as types of the IR."""

from __future__ import annotations

import re
from typing import Any

from headrace.errors import PipelineError
from headrace.sql.ir.types import SqlType, array_of

_NAMES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "boolean": "boolean",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "void": "void",
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def type_of(kind: Any, place: str) -> SqlType:
    """Return the IR's type.

    Args:
        kind: Spark's type, as JSON that has been parsed.
        place: where it occurs, for the error.

    Raises:
        PipelineError: if a view can have no such type.
    """
    if isinstance(kind, dict) and kind.get("type") == "struct":
        return SqlType(
            "struct",
            fields=tuple((one["name"], type_of(one["type"], place)) for one in kind["fields"]),
        )
    if isinstance(kind, dict) and kind.get("type") == "array":
        element = type_of(kind["elementType"], place)
        if element.name != "struct":
            return array_of(element)
        kind = {"type": "array of structs"}
    if isinstance(kind, str):
        if kind in _NAMES:
            return SqlType(_NAMES[kind])
        if found := _DECIMAL.fullmatch(kind):
            return SqlType("decimal", int(found[1]), int(found[2]))
        if kind.startswith("interval "):
            months = re.search(r"year|month", kind) is not None
            return SqlType("year_month" if months else "day_time")
        if kind == "decimal":
            return SqlType("decimal", 10, 0)
    raise PipelineError(
        f"a view cannot have a column or expression of the type {_shown(kind)}",
        place=place,
        remedy="use numbers, texts, bytes, booleans, dates, timestamps, intervals, arrays of these, "
        "and structs of them",
    )


def _shown(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)
