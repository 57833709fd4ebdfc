"""Exact arithmetic on unscaled integers: ``int64`` while everything fits, Python's integers beyond."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.sql.expressions.vectors import Mask, narrowed

_LIMIT = 2**63 - 1


def bound(values: Any) -> int:
    """Return a number that no absolute value exceeds."""
    if len(values) == 0:
        return 0
    return max(abs(int(values.max())), abs(int(values.min())))


def wide(values: Any) -> Any:
    """Return values as Python's integers."""
    return values if values.dtype == object else values.astype(object)


def are_small(one: Any, other: Any) -> bool:
    """Return whether two columns are ``int64``."""
    return "O" not in {one.dtype.kind, other.dtype.kind}


def times(one: Any, other: Any) -> Any:
    """Return products."""
    if are_small(one, other) and bound(one) * bound(other) <= _LIMIT:
        return one * other
    return narrowed(wide(one) * wide(other))


def plus(one: Any, other: Any) -> Any:
    """Return sums."""
    if are_small(one, other) and bound(one) + bound(other) <= _LIMIT:
        return one + other
    return narrowed(wide(one) + wide(other))


def rescaled(values: Any, by: int, *, even: bool = False) -> Any:
    """Return values with more or fewer digits after the point.

    Args:
        values: unscaled integers.
        by: how many digits more; if negative, the last digits are rounded away, half up, which is
            away from zero.
        even: whether a half is rounded to the even neighbour.
    """
    if by == 0:
        return values
    if by > 0:
        return _raised(values, 10**by)
    return divided(values, 10**-by, even=even)


def _raised(values: Any, factor: int) -> Any:
    if values.dtype != object and bound(values) * factor <= _LIMIT:
        return values * factor
    return narrowed(wide(values) * factor)


def divided(values: Any, by: Any, *, even: bool = False) -> Any:
    """Return quotients, rounded half up.

    Args:
        values: integers.
        by: a positive integer, or an array of integers other than 0.
        even: whether a half is rounded to the even neighbour.
    """
    is_small = values.dtype != object and bound(values) <= _LIMIT // 4
    if isinstance(by, int):
        is_small = is_small and by <= _LIMIT // 4
    else:
        is_small = is_small and by.dtype != object and bound(by) <= _LIMIT // 4
    if not is_small:
        values, by = wide(values), by if isinstance(by, int) else wide(by)
    negative = (values < 0) != (by < 0)
    size, divisor = abs(values), abs(by)
    whole = size // divisor
    twice = 2 * (size - whole * divisor)
    up = (twice > divisor) | ((twice == divisor) & (whole % 2 == 1)) if even else twice >= divisor
    whole = whole + up.astype(bool)
    result = np.where(negative.astype(bool), -whole, whole)
    return result if is_small else narrowed(result)


def truncated(values: Any, by: int) -> Any:
    """Return quotients without their digits after the point."""
    if by > _LIMIT or values.dtype == object:
        values = wide(values)
        return narrowed(np.where(values < 0, -(-values // by), values // by))
    return np.where(values < 0, -(-values // by), values // by)


def too_large(values: Any, digits: int) -> Mask:
    """Return where values have more digits than a decimal has."""
    limit = 10**digits
    if values.dtype != object and limit > _LIMIT:
        return np.zeros(len(values), dtype=np.bool_)
    large: Mask = ((values >= limit) | (values <= -limit)).astype(bool)
    return large


def as_floats(values: Any, scale: int) -> Any:
    """Return the nearest doubles."""
    if values.dtype != object and bound(values) <= 2**53 and scale <= 22:
        return values / 10.0**scale
    power = 10**scale
    return np.array([int(one) / power for one in values.tolist()], dtype=np.float64)
