"""Field names for columns whose own names are not valid identifiers."""

from __future__ import annotations

import keyword
import re

import pyarrow as pa

from headrace.errors import PipelineError


def derived_name(column: str) -> str:
    """Return the field name for a column; empty if none can be derived.

    Characters that an identifier cannot contain become ``_``: ``Origin State`` becomes
    ``Origin_State``, ``a.b`` becomes ``a_b``. A keyword gets a trailing ``_``, and a leading digit
    is preceded by one.

    >>> derived_name("2nd class"), derived_name("class"), derived_name("__x")
    ('_2nd_class', 'class_', '_x')
    """
    name = re.sub(r"\W+", "_", column)
    if re.fullmatch(r"_*", name):
        return ""
    if name.startswith("__"):
        name = "_" + name.lstrip("_")
    if name[0].isdigit():
        name = "_" + name
    if keyword.iskeyword(name):
        name += "_"
    return name if name.isidentifier() else ""


def derived_fields(columns: pa.Schema, place: str) -> tuple[pa.Schema, dict[str, str]]:
    """Return the columns under valid field names, and a mapping of field → original column name.

    Raises:
        PipelineError: for a column for which no name can be derived, or one that is already taken.
    """
    names: dict[str, str] = {}
    fields = []
    for column in columns:
        name = derived_name(column.name)
        if not name or name in names:
            why = f"{name!r} as {names[name]!r} has" if name else "no field"
            raise PipelineError(
                f"column {column.name!r} would have {why}",
                place=place,
                remedy="select the column under another name (`alias`, `withColumnRenamed`)",
            )
        names[name] = column.name
        fields.append(column.with_name(name))
    return pa.schema(fields), names
