"""Searches a column for values, however deeply they are nested."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.schema.exact import entries_of

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def any_within(
    column: Column, holds: Callable[[pa.DataType], bool], which: Callable[[Column], Column]
) -> bool:
    """Return whether a column contains a plain value that is searched for.

    Keys of maps are not searched.

    Args:
        column: of any type.
        holds: returns whether plain columns of a type are searched.
        which: returns which values of such a column are searched for.
    """
    kind = column.type
    if holds(kind):
        return pc.any(which(column)).as_py() is True
    if pa.types.is_struct(kind):
        return any(any_within(of, holds, which) for of in column.flatten())
    if pa.types.is_list(kind):
        return any_within(pc.list_flatten(column), holds, which)
    if pa.types.is_map(kind):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return any(any_within(entries_of(chunk)[2], holds, which) for chunk in chunks)
    return False
