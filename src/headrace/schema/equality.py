"""Equality of rows by value. Unlike in Arrow and Python, NaN equals NaN."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.schema.exact import entries_of, items_of, present_rows


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two tables have the same columns with the same values. NaN equals NaN."""
    if one.equals(other):
        return True
    if not one.schema.equals(other.schema) or one.num_rows != other.num_rows:
        return False
    return all(
        _same(mine.combine_chunks(), its.combine_chunks())
        for mine, its in zip(one.columns, other.columns, strict=True)
    )


def _same(one: pa.Array, other: pa.Array) -> bool:
    if one.equals(other):
        return True
    if len(one) != len(other) or not one.is_null().equals(other.is_null()):
        return False
    kind = one.type
    if pa.types.is_floating(kind):
        numbers, others = (
            values.fill_null(0).to_numpy(zero_copy_only=False) for values in (one, other)
        )
        return bool(np.array_equal(numbers, others, equal_nan=True))
    if pa.types.is_struct(kind):
        (_, mine), (_, its) = present_rows(one), present_rows(other)
        return all(map(_same, mine.flatten(), its.flatten()))
    if pa.types.is_map(kind):
        starts, *mine_ = entries_of(one)
        ends, *its_ = entries_of(other)
        return bool(np.array_equal(starts, ends)) and all(map(_same, mine_, its_))
    if pa.types.is_nested(kind):
        (starts, mine), (ends, its) = items_of(one), items_of(other)
        return bool(np.array_equal(starts, ends)) and _same(mine, its)
    return False
