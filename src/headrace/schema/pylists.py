"""Columns as lists of Python values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POINT_IN_TIME = pa.timestamp("us", "UTC")


def pylist(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return what ``column.to_pylist()`` returns, and faster for points in time.

    PyArrow makes a ``datetime`` with a zone in 3.4 µs, which is most of what a row costs. Here it
    takes 0.1 µs.

    Raises:
        OverflowError, ValueError: for a time that Python cannot hold.
    """
    if column.type != _POINT_IN_TIME or column.null_count:
        found: list[Any] = column.to_pylist()
        return found
    since = column.cast(pa.int64()).to_numpy().view("m8[us]").tolist()
    return list(map(_EPOCH.__add__, since))
