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
    return type(one) is type(other) and one == other


def bag(table: pa.Table, digits: int | None = None) -> list[str]:
    """Return the rows of a table in an order of their own, as texts.

    Args:
        table: the rows.
        digits: significant digits of floats and decimals that count; None for all, exactly.
    """
    columns = [[_shown(one, digits) for one in column.to_pylist()] for column in table.columns]
    return sorted(map(repr, zip(*columns, strict=True)))


def _shown(value: Any, digits: int | None) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        value += 0.0
    if digits is not None and isinstance(value, float | Decimal):
        return f"{float(value):.{digits}g}"
    return value
