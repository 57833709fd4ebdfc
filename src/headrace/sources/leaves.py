"""Conversion of the leaves of nested columns: one traversal for every kind of conversion."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from headrace.schema.exact import (
    Misfit,
    entries_of,
    family_of,
    in_item,
    items_of,
    list_of,
    map_of,
    present_rows,
    spread,
)


class Leaves(Protocol):
    """How plain columns are converted, at whatever depth they are."""

    def plain(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return a plain column converted so that it can be stored as ``kind``, or unchanged.

        Raises:
            Misfit: for the first value that cannot be converted.
        """
        ...

    def keys(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return the keys of maps, converted as :meth:`plain` converts columns."""
        ...


def convert_leaves(column: pa.Array, kind: pa.DataType, leaves: Leaves) -> pa.Array:
    """Return a column with its plain parts converted, at all depths.

    Args:
        column: a column with the names and nesting of ``kind``. Parts that differ are left as they
            are.
        kind: the type that is wanted in the end.

    Raises:
        Misfit: for the first value that cannot be converted, with the path to it.
    """
    family, source = family_of(kind), family_of(column.type)
    if not pa.types.is_nested(kind):
        return column if pa.types.is_nested(column.type) else leaves.plain(column, kind)
    if source != family or family not in _NESTED:
        return column
    return _NESTED[family](column, kind, leaves)


def _list(column: pa.Array, kind: pa.DataType, leaves: Leaves) -> pa.Array:
    offsets, items = items_of(column)
    try:
        made = convert_leaves(items, kind.value_type, leaves)
    except Misfit as error:
        raise in_item(error, offsets) from None
    return column if made is items else list_of(pa.list_(made.type), offsets, made, column)


def _map(column: pa.Array, kind: pa.DataType, leaves: Leaves) -> pa.Array:
    offsets, keys, items = entries_of(column)
    try:
        new_keys = leaves.keys(keys, kind.key_type)
        new_items = convert_leaves(items, kind.item_type, leaves)
    except Misfit as error:
        raise in_item(error, offsets, str(keys[error.row])[:80]) from None
    return map_of(pa.map_(new_keys.type, new_items.type), offsets, new_keys, new_items, column)


def _struct(column: pa.Array, kind: pa.DataType, leaves: Leaves) -> pa.Array:
    there, present = present_rows(column)
    made, names = [], [field.name for field in column.type]
    for name, part in zip(names, present.flatten(), strict=True):
        at = kind.get_field_index(name)
        try:
            made.append(part if at < 0 else convert_leaves(part, kind.field(at).type, leaves))
        except Misfit as error:
            raise Misfit(int(there[error.row]), error.why, f".{name}{error.path}") from None
    if not made:
        return column
    return spread(pa.StructArray.from_arrays(made, names), there, len(column))


_NESTED = {"list": _list, "map": _map, "struct": _struct}
