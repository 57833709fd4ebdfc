"""Running aggregates against sums, minima and means in plain Python."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import BadInput, PipelineError
from headrace.ops import Count, Max, Mean, Min, Running, Sum
from tests.support.operator_runs import FAULTS, ITEMS, WAYS, Item, last_of_each, on_time, run

EVERY: dict[str, Any] = {
    "records": Count(),
    "values": Count("x"),
    "total": Sum("x"),
    "least": Min("x"),
    "most": Max("x"),
    "mean": Mean("x"),
    "floats": Sum("f"),
    "low": Min("f"),
    "first": Min("s"),
    "last": Max("s"),
    "numbers": Sum("n"),
    "lowest": Min("n"),
    "highest": Max("n"),
}


def expected(items: list[Item]) -> tuple[Any, ...]:
    """Return every aggregate of some items."""
    xs = [item.x for item in items if item.x is not None]
    fs = [item.f for item in items if item.f is not None]
    ss = [item.s for item in items if item.s is not None]
    return (
        len(items),
        len(xs),
        sum(xs) if xs else None,
        min(xs, default=None),
        max(xs, default=None),
        sum(xs) / len(xs) if xs else None,
        math.fsum(fs) if fs else None,
        min(fs, default=None),
        min(ss, default=None),
        max(ss, default=None),
        sum(item.n for item in items),
        min(item.n for item in items),
        max(item.n for item in items),
    )


def by_key(items: list[Item]) -> dict[str, list[Item]]:
    return {item.key: [i for i in items if i.key == item.key] for item in items}


@settings(max_examples=20)
@given(ITEMS, WAYS, FAULTS)
def test_what_a_key_last_came_to_is_what_all_its_records_come_to(
    items: list[Item], way: dict[str, Any], faults: list[str]
) -> None:
    steps, _ = run(lambda: Running(**EVERY), items, faults=faults, **way)
    assert last_of_each(steps) == {key: expected(own) for key, own in by_key(items).items()}


@settings(max_examples=20)
@given(ITEMS, WAYS)
def test_there_is_one_production_for_each_key_of_a_step(
    items: list[Item], way: dict[str, Any]
) -> None:
    steps, _ = run(lambda: Running(count=Count()), items, **way)
    rows = way["rows"]
    said = [{(row.key, row.at, row.values[0]) for row in step} for step in steps]
    wanted = []
    for first in range(0, len(items), rows):
        step, before = items[first : first + rows], items[: first + rows]
        wanted.append(
            {
                (key, max(item.at for item in own), sum(item.key == key for item in before))
                for key, own in by_key(step).items()
            }
        )
    assert said == wanted


@settings(max_examples=20)
@given(ITEMS, WAYS)
def test_with_emit_record_each_record_says_what_its_key_had_come_to(
    items: list[Item], way: dict[str, Any]
) -> None:
    steps, _ = run(lambda: Running(emit="record", **EVERY), items, **way)
    said: dict[str, list[Any]] = {}
    for step in steps:
        for row in step:
            said.setdefault(row.key, []).append((row.at, row.values))
    wanted = {
        key: [(item.at, expected(own[: number + 1])) for number, item in enumerate(own)]
        for key, own in by_key(items).items()
    }
    assert said == wanted


class Timed(msgspec.Struct):
    key: str
    at: int
    took: timedelta
    good: bool
    raw: bytes


def test_times_booleans_and_bytes_can_be_aggregated_too() -> None:
    items = [
        Timed("a", 1, timedelta(seconds=2), True, b"x"),
        Timed("a", 2, timedelta(seconds=3), False, b"y"),
    ]
    asked = {
        "took": Sum("took"),
        "longest": Max("took"),
        "good": Sum("good"),
        "all": Min("good"),
        "share": Mean("good"),
        "raw": Max("raw"),
    }
    steps, _ = run(lambda: Running(**asked), items, types=(Timed,), rows=1)
    assert last_of_each(steps)["a"] == (
        timedelta(seconds=5),
        timedelta(seconds=3),
        1,
        False,
        0.5,
        b"y",
    )


BIG = 1_700_000_000_000_000_000  # nanoseconds since 1970


@pytest.mark.parametrize("rows", [1, 100])
def test_a_mean_of_integers_is_right_or_says_that_their_sum_is_too_large(rows: int) -> None:
    """(Where many come at once, and where they come to one after another.)"""
    for sign in (1, -1):
        few = [Item("a", at, x=sign * BIG) for at in range(5)]
        steps, _ = run(lambda: Running(mean=Mean("x")), few, rows=rows)
        assert last_of_each(steps)["a"] == (float(sign * BIG),)
        with pytest.raises(BadInput, match=r"sum of column 'x'.* more than 64 bits"):
            run(lambda: Running(mean=Mean("x")), [*few, Item("a", 5, x=sign * BIG)], rows=rows)
    mixed = [Item("a", at, x=BIG * (-1) ** at) for at in range(20)]
    steps, _ = run(lambda: Running(mean=Mean("x")), mixed, rows=rows)
    assert last_of_each(steps)["a"] == (0.0,)


def draw(operator: Any, *types: Any) -> hr.Stream:
    pipeline = hr.Pipeline("test")
    streams = [
        pipeline.inject(f"in{n}", hr.sources.Iterable([], kind, event_time="at"))
        for n, kind in enumerate(types)
    ]
    return pipeline.compute("it", operator, keys=dict.fromkeys(streams, "key"))["out"]


def test_the_columns_of_the_output_follow_from_those_of_the_stream() -> None:
    schema = draw(
        Running(c=Count(), t=Sum("x"), m=Mean("n"), s=Min("s"), n=Sum("n")), Item
    ).values.schema
    assert [f"{f.name} {f.type} {f.nullable}" for f in schema] == [
        "c int64 False",
        "t int64 True",
        "m double False",
        "s string True",
        "n int64 False",
    ]


class Other(msgspec.Struct):
    key: str
    at: int
    x: str


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (Running, "has nothing to aggregate"),
        (lambda: Running(a=Sum("y")), "has no column 'y'"),
        (lambda: Running(a=Sum("s")), "takes a column of numbers"),
        (lambda: Running(a=Count("y")), "has no column 'y'"),
        (lambda: Running(a="x"), "is not an aggregate"),
        (lambda: Running(_a=Count()), "cannot be the name of an aggregate"),
        (lambda: Running(emit="never", a=Count()), "is neither 'step' nor 'record'"),
    ],
)
def test_what_is_asked_wrong_is_refused_when_it_is_drawn(operator: Any, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        draw(operator(), Item)


def test_streams_that_differ_in_the_column_are_refused() -> None:
    with pytest.raises(PipelineError, match="different types in its streams"):
        draw(Running(a=Max("x")), Item, Other)


def test_one_object_can_be_drawn_twice_on_streams_of_other_types() -> None:
    operator = Running(most=Max("x"))
    assert str(draw(operator, Item).values.schema.field("most").type) == "int64"
    assert str(draw(operator, Other).values.schema.field("most").type) == "string"


@settings(max_examples=25)
@given(ITEMS, WAYS, st.sampled_from([1, 3, 16]), st.sampled_from([(), "n", ("x", "s", "f")[:2]]))
def test_two_phases_end_where_running_does(
    items: list[Item], way: dict[str, Any], parts: int, spread: Any
) -> None:
    def draw(p: hr.Pipeline, stream: hr.Stream) -> Any:
        return hr.ops.two_phase(p, "it", stream, key="key", parts=parts, spread=spread, **EVERY)

    steps, _ = run(lambda: draw, items, **way)
    assert last_of_each(steps) == {key: expected(own) for key, own in by_key(items).items()}


def test_the_first_phase_divides_a_hot_key_evenly() -> None:
    items = on_time([("a", 1, 0)] * 400)
    sizes: list[int] = []

    def draw(p: hr.Pipeline, stream: hr.Stream) -> Any:
        node = hr.ops.two_phase(p, "it", stream, key="key", parts=8, count=Count())
        p.sink(
            "parts",
            p.nodes["it-parts"]["out"],
            hr.sinks.Calls(
                lambda step, rows: sizes.extend(rows.column("count_count").to_pylist()),
                idempotent=True,
            ),
        )
        return node

    steps, _ = run(lambda: draw, items, rows=400)
    assert last_of_each(steps) == {"a": (400,)}
    assert len(sizes) == 8
    assert max(sizes) < 80


def test_a_salt_by_a_column_that_is_not_there_is_refused() -> None:
    pipeline = hr.Pipeline("test")
    stream = pipeline.inject("in", hr.sources.Iterable([], Item, event_time="at"))
    with pytest.raises(PipelineError, match="by 'nothing', which it does not have"):
        hr.ops.two_phase(pipeline, "it", stream, key="key", spread="nothing", count=Count())
