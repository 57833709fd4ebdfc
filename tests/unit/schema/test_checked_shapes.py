"""A shape from storage is compared only if it has all parts: whatever is spoilt in it is told at once."""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.state_compatibility import check_stored
from headrace.errors import Damaged
from headrace.schema.compatibility import check_shape, differences, shape_of_type


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: float
    colour: Colour = Colour.RED


class Pair(NamedTuple):
    one: Point
    other: Point | None


class Row(msgspec.Struct, array_like=True):
    pairs: list[Pair]
    by_name: dict[str, tuple[int, Point]]
    kind: Literal["a", "b"] | int = 1


TYPES = [int, Point, Pair, Row, list[Row], dict[str, Row | None], tuple[int, ...], frozenset[str]]


def inner(shape: Any) -> Iterator[Any]:
    """Yield every dict and list within a shape."""
    if isinstance(shape, dict | list):
        yield shape
        for part in shape.values() if isinstance(shape, dict) else shape:
            yield from inner(part)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_the_shape_of_a_type_passes(kind: Any) -> None:
    check_shape(shape_of_type(kind))


@given(
    kind=st.sampled_from(TYPES),
    at=st.integers(0, 200),
    which=st.integers(0, 20),
    junk=st.sampled_from([None, 3, "x", [], {}, {"runs/": "int"}, ["x"]]),
    is_removed=st.booleans(),
)
def test_a_spoilt_shape_is_refused_or_can_be_compared(
    kind: Any, at: int, which: int, junk: Any, is_removed: bool
) -> None:
    shape = copy.deepcopy(shape_of_type(kind))
    places = list(inner([shape]))
    place = places[at % len(places)]
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    if not keys:
        return
    key = keys[which % len(keys)]
    if is_removed:
        del place[key]
    else:
        place[key] = junk
    holder = {"last": {"kind": "value", "type": shape}}
    try:
        check_stored("visits", holder)
    except Damaged:
        return
    if not isinstance(shape, str) or shape in ("int", "float", "str"):
        differences(shape, shape_of_type(kind))
        differences(shape_of_type(kind), shape)


@pytest.mark.parametrize(
    "shape",
    [{}, {"kind": 3, "type": "int"}, {"kind": "value"}, {"kind": "table", "columns": {"n": {}}}],
)
def test_a_state_without_what_it_needs_is_damaged(shape: Any) -> None:
    with pytest.raises(Damaged, match="stored schema of state 'last'"):
        check_stored("visits", {"last": shape})
