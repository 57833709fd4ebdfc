"""Names of fields for columns whose names cannot be fields."""

from __future__ import annotations

import keyword
import re

import pyarrow as pa

from headrace.errors import PipelineError


def derived_name(column: str) -> str:
    """Return the name of the field for a column that was found; empty where there can be none.

    What may not be in a name becomes ``_``: ``Origin State`` is ``Origin_State``, ``a.b`` is ``a_b``; a
    keyword has one behind it, and a digit at the beginning one before it.

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
    """Return columns with names that fields may have; and field → the column's own name.

    Raises:
        PipelineError: for a column that can have no name, or that of another one.
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
