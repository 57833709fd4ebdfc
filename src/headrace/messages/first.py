"""The first message that cannot be read, where several cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from headrace.messages.base import Unreadable

_Rows = TypeVar("_Rows", pa.Array, pa.Table)
_Result = TypeVar("_Result")


def first_refused(work: Callable[[_Rows], _Result], rows: _Rows) -> _Result:
    """Return what some work makes of rows.

    It may go column by column, and so refuse a later row first.

    Raises:
        Unreadable: for the first row that is refused.
    """
    try:
        return work(rows)
    except Unreadable as error:
        first = error
    while first.row:
        try:
            work(rows.slice(0, first.row))
        except Unreadable as earlier:
            first = earlier
            continue
        break
    raise first
