"""Firsts, lasts, lists, distinct values and sketches, against plain Python."""

from __future__ import annotations

import math
import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.ops import (
    ApproxCountDistinct,
    Collect,
    Count,
    CountDistinct,
    First,
    Last,
    Quantiles,
    Running,
    Session,
    Sliding,
    Tumbling,
)
from tests.support.operator_runs import (
    FAULTS,
    ITEMS,
    WAYS,
    Item,
    last_of_each,
    on_time,
    rows_of,
    run,
)

EVERY: dict[str, Any] = {
    "first": First("x"),
    "first_text": First("s"),
    "last": Last("x"),
    "last_n": Last("n"),
    "xs": CountDistinct("x"),
    "texts": CountDistinct("s"),
    "floats": CountDistinct("f"),
    "about": ApproxCountDistinct("s"),
    "all": Collect("x"),
    "few": Collect("s", most=3),
    "middle": Quantiles("n", 0.5),
    "ends": Quantiles("f", [0.0, 1.0]),
}


def expected(items: list[Item]) -> tuple[Any, ...]:
    """Return every aggregate of some items, in the order in which they arrive."""
    by_time = sorted(items, key=lambda item: item.at)
    xs = [item.x for item in by_time if item.x is not None]
    texts = [item.s for item in by_time if item.s is not None]
    floats = [item.f for item in by_time if item.f is not None]
    return (
        xs[0] if xs else None,
        texts[0] if texts else None,
        xs[-1] if xs else None,
        by_time[-1].n,
        len(set(xs)),
        len(set(texts)),
        len(set(floats)),
        len(set(texts)),
        xs,
        texts[:3],
        [min(floats), max(floats)] if floats else None,
    )


def without_middle(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*values[:10], *values[11:])


def by_key(items: list[Item]) -> dict[str, list[Item]]:
    return {item.key: [i for i in items if i.key == item.key] for item in items}


def is_near_the_middle(value: float, numbers: list[int]) -> bool:
    """Return whether a digest of few numbers has a median that is one."""
    low, high = statistics.median_low(numbers), statistics.median_high(numbers)
    neighbours = sorted(numbers)
    at = neighbours.index(low)
    return (
        neighbours[max(at - 1, 0)] <= value <= max(high, neighbours[min(at + 2, len(numbers) - 1)])
    )


@settings(max_examples=20)
@given(ITEMS, WAYS, FAULTS)
def test_what_a_key_last_came_to_is_what_all_its_records_come_to(
    items: list[Item], way: dict[str, Any], faults: list[str]
) -> None:
    steps, _ = run(lambda: Running(**EVERY), items, faults=faults, **way)
    found = last_of_each(steps)
    whole = {key: expected(own) for key, own in by_key(items).items()}
    assert {key: without_middle(values) for key, values in found.items()} == whole
    for key, own in by_key(items).items():
        assert is_near_the_middle(found[key][10], [item.n for item in own])


@settings(max_examples=15)
@given(ITEMS, WAYS)
def test_after_each_record_they_are_of_the_records_so_far(
    items: list[Item], way: dict[str, Any]
) -> None:
    some = {"first": First("n"), "distinct": CountDistinct("x"), "ns": Collect("n")}
    steps, _ = run(lambda: Running(emit="record", **some), items, **way)
    found: dict[str, list[Any]] = {}
    for row in (row for step in steps for row in step):
        found.setdefault(row.key, []).append(row.values)
    for key, own in by_key(items).items():
        for number, values in enumerate(found[key], 1):
            so_far = sorted(own[:number], key=lambda item: item.at)
            xs = {item.x for item in so_far if item.x is not None}
            assert values == (so_far[0].n, len(xs), [item.n for item in so_far])


@settings(max_examples=15)
@given(ITEMS, WAYS)
def test_windows_and_sessions_hold_the_same(items: list[Item], way: dict[str, Any]) -> None:
    some = {"last": Last("n"), "xs": Collect("n"), "texts": CountDistinct("s")}

    def of(own: list[Item]) -> tuple[Any, ...]:
        by_time = sorted(own, key=lambda item: item.at)
        texts = {item.s for item in own if item.s is not None}
        return by_time[-1].n, [item.n for item in by_time], len(texts)

    wanted = []
    for key, own in by_key(items).items():
        for start in range(-60, 220, 20):
            inside = [item for item in own if start <= item.at < start + 60]
            wanted += [(key, start, *of(inside))] if inside else []
    steps, _ = run(lambda: Sliding("60us", "20us", **some), items, **way)
    found = [(row.key, row.values[0], *row.values[2:]) for row in rows_of(steps)]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    steps, _ = run(lambda: Session("1000us", **some), items, **way)
    whole = [(key, *of(own)) for key, own in by_key(items).items()]
    assert sorted(((r.key, *r.values[2:]) for r in rows_of(steps)), key=repr) == sorted(
        whole, key=repr
    )


@pytest.mark.parametrize("rows", [37, 5_000])
def test_sketches_of_many_values_are_within_their_error(rows: int) -> None:
    items = [
        Item("k", n, n, n * 7919 % 4_001 / 8, f"user {n * 31 % 3_000}", n) for n in range(5_000)
    ]
    sketches = {
        "users": ApproxCountDistinct("s"),
        "rough": ApproxCountDistinct("n", lg_k=6),
        "at": Quantiles("f", [0.01, 0.5, 0.99]),
    }
    steps, _ = run(lambda: Running(**sketches), items, rows=rows)
    users, rough, at = last_of_each(steps)["k"]
    assert abs(users - 3_000) < 3_000 * 0.05 and abs(rough - 5_000) < 5_000 * 0.4
    ordered = sorted(item.f for item in items if item.f is not None)
    ranks = [sum(f <= value for f in ordered) / len(ordered) for value in at]
    assert (
        max(abs(rank - wanted) for rank, wanted in zip(ranks, [0.01, 0.5, 0.99], strict=True))
        < 0.02
    )


def test_an_estimate_of_distinct_values_does_not_depend_on_the_steps() -> None:
    items = [Item("k", n, n, None, f"user {n * 31 % 3_000}", n) for n in range(4_000)]
    found = set()
    for rows in (61, 800, 4_000):
        steps, _ = run(lambda: Running(about=ApproxCountDistinct("s")), items, rows=rows)
        found.add(last_of_each(steps)["k"])
    assert len(found) == 1


def test_all_nan_are_one_value_and_so_are_both_zeros() -> None:
    floats = [math.nan, 0.0, -0.0, float("inf"), math.nan, 1.5]
    items = [Item("k", n, None, f, None, n) for n, f in enumerate(floats)]
    some = {
        "exact": CountDistinct("f"),
        "about": ApproxCountDistinct("f"),
        "half": Quantiles("f", 0.5),
    }
    steps, _ = run(lambda: Running(**some), items, rows=2)
    exact, about, half = last_of_each(steps)["k"]
    assert (exact, about) == (4, 4) and 0.0 <= half <= 1.5


# -- hot keys ---------------------------------------------------------------------------------

DIVIDED: dict[str, Any] = {
    "count": Count(),
    "distinct": CountDistinct("x"),
    "ns": Collect("n"),
    "last": Last("n"),
}


def distinct_times(items: list[Item]) -> list[Item]:
    """Return items without those of one key and time: their order is not that of their arrival."""
    return list({(item.key, item.at): item for item in items}.values())


@settings(max_examples=20)
@given(
    ITEMS.map(distinct_times),
    WAYS,
    FAULTS,
    st.sampled_from([("60us", None), ("60us", "20us"), ("10us", "10us")]),
    st.sampled_from(["0us", "15us"]),
    st.integers(0, 40),
)
def test_hot_keys_have_the_windows_that_others_have(
    items: list[Item],
    way: dict[str, Any],
    faults: list[str],
    bounds: tuple[str, str | None],
    lateness: str,
    delay: int,
) -> None:
    """Also of records that are late: both drop the same."""
    size, every = bounds
    how = {"offset": "3us", "allowed_lateness": lateness}

    def hot(p: hr.Pipeline, stream: hr.Stream) -> hr.Node:
        return hr.ops.two_phase(
            p,
            "it",
            stream,
            key="key",
            parts=3,
            spread="n",
            size=size,
            every=every,
            **how,
            **DIVIDED,
        )

    def plain() -> Sliding:
        return Sliding(size, every or size, **how, **DIVIDED)  # type: ignore[arg-type]

    one, _ = run(lambda: hot, items, faults=faults, delay=delay, **way)
    other, _ = run(plain, items, delay=delay, **way)
    assert sorted(rows_of(one), key=repr) == sorted(rows_of(other), key=repr)


def test_hot_keys_take_what_other_operators_take() -> None:
    items = on_time([("a", n, 0) for n in range(30)])
    behind = [*items, Item("a", 1, 5, n=99), *on_time([("b", 1, 0)])]
    late: list[Any] = []

    def hot(p: hr.Pipeline, stream: hr.Stream) -> hr.Node:
        node = hr.ops.two_phase(
            p,
            "it",
            stream,
            key="key",
            late="side",
            on_error="dead_letter",
            count=Count(),
        )
        first = p.nodes["it-parts"]
        p.sink(
            "late", first["late"], hr.sinks.Calls(lambda step, rows: late.extend(rows.to_pylist()))
        )
        assert first.on_error == node.on_error == "dead_letter" and node["dead_letter"]
        return node

    steps, _ = run(lambda: hot, behind, delay=0, rows=10)
    assert last_of_each(steps)["a"] == (30,)
    assert sorted(row["n"] for row in late) == [0, 99]


def test_hot_keys_of_a_group_move_with_it() -> None:
    p = hr.Pipeline("grouped", groups=["calm", "busy"])
    stream = p.inject("in", hr.sources.Iterable([], Item, event_time="at"))
    node = hr.ops.two_phase(p, "it", stream, key="key", size="1s", group="busy", count=Count())
    assert p.nodes["it-parts"].group == node.group == p.groups.group("busy")


def test_what_does_not_fit_is_refused() -> None:
    p = hr.Pipeline("refused")
    stream = p.inject("in", hr.sources.Iterable([], Item, event_time="at"))
    with pytest.raises(PipelineError, match=r"every= and offset= are for windows"):
        hr.ops.two_phase(p, "it", stream, key="key", every="1s", count=Count())
    for wrong in (
        lambda: Collect("x", most=0),
        lambda: ApproxCountDistinct("x", lg_k=3),
        lambda: Quantiles("x", [1.5]),
        lambda: Quantiles("x", []),
    ):
        with pytest.raises(PipelineError):
            wrong()
    with pytest.raises(PipelineError, match="takes a column of numbers"):
        p.compute("it", Tumbling("1s", q=Quantiles("s", 0.5)), keys={stream: "key"})


class _Texts(msgspec.Struct):
    key: str
    at: int
    s: str
    raw: bytes


def test_a_sketch_counts_an_empty_text_as_a_value() -> None:
    items = [_Texts("a", at, text, text.encode()) for at, text in enumerate(["", "b", "", "c"])]
    asked = {"texts": ApproxCountDistinct("s"), "raw": ApproxCountDistinct("raw")}
    for rows in (1, 100):
        steps, _ = run(lambda: Running(**asked), items, types=(_Texts,), rows=rows)
        assert last_of_each(steps) == {"a": (3, 3)}
    steps, _ = run(lambda: Running(**asked), items[:1], types=(_Texts,))
    assert last_of_each(steps) == {"a": (1, 1)}
