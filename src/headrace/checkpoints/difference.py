"""The difference between two readings of the same rows, at different steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

#: The column that says how a row has changed; and the suffix of columns with its earlier content.
CHANGE, BEFORE = "change", "_before"

_Row = tuple[Any, ...]


def difference(before: pa.Table, after: pa.Table, identity: Sequence[str]) -> pa.Table:
    """Return the rows that were added, removed or changed.

    Args:
        before, after: rows of one section, with the same columns.
        identity: the columns that make two rows the same row.

    Returns:
        ``change``, the identity, and each other column twice: its content after and before.
    """
    rest = [name for name in after.column_names if name not in identity]
    was, is_ = _by_identity(before, identity, rest), _by_identity(after, identity, rest)
    found: list[_Row] = []
    for key in {**was, **is_}:
        old, new = was.get(key), is_.get(key)
        if old is None or new is None or not _same(old, new):
            change = "added" if old is None else "removed" if new is None else "changed"
            pairs = zip(new or [None] * len(rest), old or [None] * len(rest), strict=True)
            found.append((change, *key, *(value for pair in pairs for value in pair)))
    schema = _schema(after.schema, identity, rest)
    columns = list(zip(*found, strict=True)) if found else [()] * len(schema)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _schema(rows: pa.Schema, identity: Sequence[str], rest: Sequence[str]) -> pa.Schema:
    fields = [pa.field(CHANGE, pa.string(), nullable=False), *(rows.field(n) for n in identity)]
    for name in rest:
        kind = rows.field(name).type
        fields += [pa.field(name, kind), pa.field(name + BEFORE, kind)]
    return pa.schema(fields)


def _by_identity(rows: pa.Table, identity: Sequence[str], rest: Sequence[str]) -> dict[_Row, _Row]:
    if not rest:
        return dict.fromkeys(_tuples(rows, identity), ())
    return dict(zip(_tuples(rows, identity), _tuples(rows, rest), strict=True))


def _tuples(rows: pa.Table, names: Sequence[str]) -> list[_Row]:
    return list(zip(*(_values(rows.column(name)) for name in names), strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values. Times become microseconds: not every one is a ``datetime``."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _same(old: _Row, new: _Row) -> bool:
    """Return whether two contents are equal. NaN is equal to NaN."""
    return all(a == b or repr(a) == repr(b) == "nan" for a, b in zip(old, new, strict=True))
