"""Frames of windows at the limits of 64 bits, beside plain Python, whose integers have none."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.zsets import Frame, Order, Rows
from headrace.zsets.ordering import in_order
from headrace.zsets.window import Partitions

_MOST = 2**63 - 1
_INT64 = st.sampled_from([-_MOST - 1, -_MOST, -2, -1, 0, 1, 2, _MOST - 1, _MOST])
_UINT64 = st.sampled_from([0, 1, _MOST, _MOST + 1, 2**64 - 2, 2**64 - 1])
_ROWS = st.lists(st.tuples(st.integers(0, 1), st.none() | _INT64), max_size=8)
_UNSIGNED = st.lists(st.tuples(st.integers(0, 1), st.none() | _UINT64), max_size=8)
_DISTANCE = st.none() | _INT64
Unit = Literal["rows", "range"]
Given = list[tuple[int, int | None]]


def frames(
    given: Given, kind: pa.DataType, order: Order, frame: Frame
) -> tuple[Given, list[range]]:
    """Return the rows in order, and the positions of the frame of each."""
    group = np.array([of for of, _ in given], dtype=np.int64)
    numbers = np.arange(len(given))
    columns = {"x": pa.array([x for _, x in given], kind), "n": pa.array(numbers)}
    rows = Rows(columns, np.ones_like(numbers), np.zeros_like(numbers))
    ordered = in_order(rows, group, [order])
    words = [word[ordered.at] for word in ordered.words]
    partitions = Partitions(rows.take(ordered.at), group[ordered.at], words, [order])
    low, high = partitions.bounds(frame)
    found = [range(*of) for of in zip(low.tolist(), high.tolist(), strict=True)]
    return [given[at] for at in ordered.at], found


def held(rows: Given, order: Order, frame: Frame, at: int) -> list[int]:
    """Return the positions of the frame of a row."""
    lower = -math.inf if frame.lower is None else frame.lower
    upper = math.inf if frame.upper is None else frame.upper
    found = []
    for other in range(len(rows)):
        by_rows = frame.unit == "rows"
        far = other - at if by_rows else apart(rows[at][1], rows[other][1], order)
        if rows[other][0] == rows[at][0] and (far is None or lower <= far <= upper):
            found.append(other)
    return found


def apart(one: int | None, other: int | None, order: Order) -> float | None:
    """Return how far a value is behind another one; None for two nulls, which are equals."""
    if one is None and other is None:
        return None
    if one is None or other is None:  # (nulls come first, or in a descending order last)
        return math.inf if (one is None) != order.descending else -math.inf
    return one - other if order.descending else other - one


@settings(max_examples=150)
@example([(0, _MOST)], False, "range", 2, None)
@example([(0, 1), (0, 2)], False, "rows", -1, _MOST)
@given(_ROWS, st.booleans(), st.sampled_from(["rows", "range"]), _DISTANCE, _DISTANCE)
def test_a_frame_holds_what_is_so_far_from_its_row(
    given: Given, descending: bool, unit: Unit, lower: int | None, upper: int | None
) -> None:
    order, frame = Order("x", descending), Frame(lower, upper, unit)
    rows, found = frames(given, pa.int64(), order, frame)
    assert [list(of) for of in found] == [held(rows, order, frame, at) for at in range(len(rows))]


@settings(max_examples=100)
@given(_UNSIGNED, st.booleans(), _DISTANCE, _DISTANCE)
def test_a_range_over_unsigned_integers_holds_what_is_so_far_from_its_row(
    given: Given, descending: bool, lower: int | None, upper: int | None
) -> None:
    order, frame = Order("x", descending), Frame(lower, upper)
    rows, found = frames(given, pa.uint64(), order, frame)
    assert [list(of) for of in found] == [held(rows, order, frame, at) for at in range(len(rows))]
