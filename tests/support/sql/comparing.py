"""Whether two answers are the same."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa


def same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Return whether two values are the same; NaN is NaN, and -0.0 is 0.0."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other or math.isclose(one, other, rel_tol=tolerance)
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(a, b, tolerance) for a, b in pairs)
    return type(one) is type(other) and one == other


def values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values; times as integers, since Python has fewer years than SQL."""
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        return column.cast(pa.int64()).to_pylist()
    return column.to_pylist()


def bag(table: pa.Table, digits: int | None = None) -> list[str]:
    """Return the rows of a table in an order of their own, as texts.

    Args:
        table: the rows.
        digits: significant digits of floats and decimals that count; None for all, exactly.
    """
    columns = [[_shown(one, digits) for one in values(column)] for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True)))


def _shown(value: Any, digits: int | None) -> Any:
    if isinstance(value, list | tuple):
        return [_shown(one, digits) for one in value]
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        value += 0.0
    if digits is not None and isinstance(value, float | Decimal):
        return f"{float(value):.{digits}g}"
    return value
