"""Keys of a map that are equal are one: to who remembers, and to who reads it back from storage."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.schema.map_keys import MapKeyCodec
from headrace.testing import drive


class Point(msgspec.Struct, frozen=True):
    x: float
    y: int | float = 0


@dataclasses.dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str = "EUR"


class Pair(NamedTuple):
    x: int | float
    y: str = ""


@dataclasses.dataclass(frozen=True)
class Chained:
    n: float
    kind: ClassVar[Any] = None
    before: Chained | None = None


class CommandRequest(msgspec.Struct):
    key: str
    op: str
    which: int
    at: int


#: By type: keys of which some are equal, and written differently.
ALIKE: dict[Any, list[Any]] = {
    float: [0.0, -0.0, 1, 1.0, 2.5, float("inf")],
    int | float: [0, -0.0, 1, 1.0, 2.5, 2**60, float(2**60), 1e300],
    Decimal: [
        Decimal(text)
        for text in (
            "0",
            "-0",
            "0.00",
            "100",
            "1E+2",
            "100.00",
            "7.25",
            "1E+1000000",
            "10E+999999",
            "-3.10",
            "12345678901234567890123456789011",
            "12345678901234567890123456789012.0",
        )
    ],
    tuple[float, str]: [(1, "a"), (1.0, "a"), (-0.0, "a"), (0.0, "a"), (0.0, "b")],
    frozenset[float]: [
        frozenset({1}),
        frozenset({1.0}),
        frozenset({0.0, 1.0}),
        frozenset({-0.0, 1}),
    ],
    Point: [
        Point(1),
        Point(1.0, 0.0),
        Point(0.0, -0.0),
        Point(-0.0, 0),
        Point(1.0, 2),
        Point(1, 2.0),
    ],
    Money: [Money(Decimal("1.50")), Money(Decimal("1.5")), Money(Decimal("1.5"), "USD")],
    Pair: [Pair(1), Pair(1.0), Pair(-0.0), Pair(0, ""), Pair(1, "z")],
    Chained: [Chained(0.0), Chained(-0.0), Chained(1, Chained(0.0)), Chained(1, Chained(-0.0))],
    str: ["a", "b", "ä"],
}


def computation(kind: Any) -> hr.Computation:
    class Remembers(hr.Computation):
        known = hr.MapState(kind, int)
        out = hr.Output(str)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            key = ALIKE[kind][record.value.which % len(ALIKE[kind])]
            if record.value.op == "set":
                self.known[key] = record.value.at
            elif record.value.op == "delete" and key in self.known:
                del self.known[key]
            elif record.value.op == "look":
                ctx.produce("out", repr(sorted(map(repr, self.known.items()))))

    return Remembers()


def told(kind: Any, asked: list[tuple[str, int]], *, crashes: bool) -> list[str]:
    pipeline = hr.Pipeline("maps")
    stream = pipeline.inject("asked", hr.sources.Iterable([], CommandRequest, event_time="at"))
    pipeline.compute("it", computation(kind), keys={stream: "key"})
    with drive(pipeline, workers=1, bins=1) as driven:
        for at, (op, which) in enumerate(asked):
            driven.push("asked", CommandRequest("a", op, which, at))
            driven.push("asked", CommandRequest("b", "look", 0, at))
            driven.step()
            if crashes:
                driven.crash()
            driven.push("asked", CommandRequest("a", "look", 0, at))
            driven.step()
        return [one.value for one in driven.outputs("it", everything=True)]


ASKED = st.lists(
    st.tuples(st.sampled_from(["set", "set", "delete"]), st.integers(0, 11)), max_size=8
)


@pytest.mark.parametrize("kind", ALIKE)
@settings(max_examples=15)
@given(asked=ASKED)
@pytest.mark.drawn(4)
def test_equal_keys_are_one_whether_they_are_remembered_or_read_back(
    kind: Any, asked: list[tuple[str, int]]
) -> None:
    assert told(kind, asked, crashes=True) == told(kind, asked, crashes=False)


@pytest.mark.parametrize(
    "kind",
    [int | bool, Decimal | int, Decimal | float, tuple[int | bool, str], tuple[Any, int], tuple],
)
def test_numbers_of_types_that_cannot_be_told_apart_are_refused_as_keys(kind: Any) -> None:
    with pytest.raises(PipelineError, match="cannot be the key of a map"):
        pipeline = hr.Pipeline("refused")
        stream = pipeline.inject("asked", hr.sources.Iterable([], CommandRequest, event_time="at"))
        pipeline.compute("it", computation(kind), keys={stream: "key"}).state_types()


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (float, math.nan),
        (Decimal, Decimal("nan")),
        (tuple[float, str], (math.nan, "a")),
        (int | float, -math.nan),
        (Point, Point(math.nan)),
        (Pair, Pair(math.nan)),
        (float | None, math.nan),
    ],
)
def test_what_is_not_equal_to_itself_is_no_key(kind: Any, key: Any) -> None:
    """In memory each would be another entry, and in storage all of them one."""
    with pytest.raises(ValueError, match="NaN cannot be the key"):
        MapKeyCodec(kind, place="here").keep(key)


@given(
    a=st.decimals(allow_nan=False),
    b=st.decimals(allow_nan=False, places=3),
    zeros=st.integers(0, 40),
)
def test_decimals_are_written_alike_exactly_if_they_are_equal(
    a: Decimal, b: Decimal, zeros: int
) -> None:
    codec = MapKeyCodec(Decimal, place="here")
    assert (codec.keep(a)[0] == codec.keep(b)[0]) == (a == b)
    if b.is_finite():
        sign, digits, exponent = b.as_tuple()
        assert isinstance(exponent, int)
        longer = Decimal((sign, (*digits, *[0] * zeros), exponent - zeros))
        assert codec.keep(longer)[0] == codec.keep(b)[0]
        assert codec.keep(b)[1] == b


def test_a_key_that_is_written_otherwise_is_set_and_deleted_as_the_same() -> None:
    for kind, alike in ALIKE.items():
        for one, first in enumerate(alike):
            same = [at for at, other in enumerate(alike) if other == first]
            for other in same:
                found = told(kind, [("set", one), ("delete", other)], crashes=True)
                assert found[-1] == "[]", (first, alike[other])
