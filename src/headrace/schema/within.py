"""Looking for something in a column, however deep its values are nested."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def any_within(
    column: Column, holds: Callable[[pa.DataType], bool], which: Callable[[Column], Column]
) -> bool:
    """Say whether some plain value is one of those that are sought; keys of maps are not looked at.

    Args:
        column: of any type.
        holds: which types of plain columns are looked at.
        which: says of such a column which of its values are sought.
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
        return any(any_within(chunk.items, holds, which) for chunk in chunks)
    return False
