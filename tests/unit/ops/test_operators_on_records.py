"""Operators on records as they are: without state, without doubles, reduced, listed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from operator import ge, gt, lt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError, UserCodeError
from headrace.ops import Dedup, Filter, FlatMap, LastN, Map, Reduce, TopN
from headrace.schema import value_type_of_schema
from tests.support.durations import us
from tests.support.operator_runs import (
    DISORDER,
    FAULTS,
    ITEMS,
    WAYS,
    Item,
    Row,
    last_of_each,
    late_count,
    ordered,
    rows_of,
    run,
    watermarks,
)
from tests.unit.ops.test_aggregates import by_key, draw


def whole(item: Item) -> Row:
    return Row(item.key, item.at, (item.key, item.at, item.x, item.f, item.s, item.n))


# -- without state --------------------------------------------------------------------------------


@settings(max_examples=20)
@given(ITEMS, WAYS)
def test_map_makes_another_record_of_each(items: list[Item], way: dict[str, Any]) -> None:
    def double(batch: Any) -> dict[str, Any]:
        return {"twice": batch["n"] * 2, "x": batch.arrow("x")}

    steps, _ = run(lambda: Map(double, {"twice": int, "x": int | None}), items, **way)
    assert rows_of(steps) == ordered([Row(i.key, i.at, (2 * i.n, i.x)) for i in items])


@settings(max_examples=20)
@given(ITEMS, WAYS)
def test_filter_lets_some_records_go_on_as_they_are(items: list[Item], way: dict[str, Any]) -> None:
    def even(batch: Any) -> Any:
        return (batch["x"] % 2 == 0) & ~batch.nulls("x")

    steps, _ = run(lambda: Filter(even), items, **way)
    assert rows_of(steps) == ordered([whole(i) for i in items if i.x is not None and i.x % 2 == 0])


@settings(max_examples=20)
@given(ITEMS, WAYS)
def test_flat_map_makes_any_number_of_records_of_each(
    items: list[Item], way: dict[str, Any]
) -> None:
    def some(batch: Any) -> Any:
        at = np.repeat(np.arange(len(batch)), batch["n"] % 3)
        return at, batch["n"][at]

    steps, _ = run(lambda: FlatMap(some, int), items, **way)
    wanted = [Row(i.key, i.at, (i.n,)) for i in items for _ in range(i.n % 3)]
    assert rows_of(steps) == ordered(wanted)


def test_records_behind_the_watermark_are_passed_on() -> None:
    items = [Item("a", 100), Item("a", 1)]
    steps, driver = run(lambda: Filter(lambda b: b["at"] >= 0), items, delay=0, rows=1)
    assert len(rows_of(steps)) == 2
    assert late_count(driver) == 0


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (lambda: Filter(lambda b: b["n"]), "wants a boolean for each of 1 records"),
        (lambda: FlatMap(lambda b: (np.array([1]), [1]), int), "wants ascending positions below 1"),
        (lambda: Map(lambda b: {"y": b["n"]}, {"x": int}), "it was given y"),
        (lambda: Reduce(lambda a, b: {}, columns=["n"]), "must return a dict of the columns n"),
    ],
)
def test_a_function_that_returns_something_else_is_told_so(operator: Any, says: str) -> None:
    with pytest.raises(UserCodeError, match=says):
        run(operator, [Item("a", 1), Item("a", 2)], rows=1)


# -- doubles --------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    ITEMS,
    WAYS,
    FAULTS,
    st.sampled_from([0, 5, 30, 1000]),
    st.sampled_from(["s", ("x", "s"), ()]),
    st.sampled_from([5, 20, DISORDER]),
)
def test_of_records_with_one_id_the_first_goes_on_until_the_horizon_is_over(
    items: list[Item], way: dict[str, Any], faults: list[str], horizon: int, id_: Any, delay: int
) -> None:
    """And records behind the watermark, of whose ids nobody can know, are dropped."""
    before = watermarks(items, way["rows"], delay)
    timely = [item for item, watermark in zip(items, before, strict=True) if item.at >= watermark]
    steps, driver = run(
        lambda: Dedup(id=id_, horizon=us(horizon)), items, delay=delay, faults=faults, **way
    )
    seen: dict[Any, int] = {}
    wanted = []
    for item in timely:
        columns = (id_,) if isinstance(id_, str) else id_
        name = tuple(getattr(item, column) for column in columns)
        if None in name:
            wanted.append(item)
        elif (item.key, name) not in seen or item.at > seen[item.key, name] + horizon:
            seen[item.key, name] = item.at
            wanted.append(item)
    assert rows_of(steps) == ordered([whole(item) for item in wanted])
    assert late_count(driver) == len(items) - len(timely)


def test_an_id_is_known_until_its_horizon_is_over_and_not_after() -> None:
    items = [Item("a", at, s=id_) for at, id_ in ((0, "x"), (9, "y"), (10, "x"), (11, "x"))]
    steps, _ = run(lambda: Dedup(id="s", horizon=us(10)), items, delay=1, rows=1)
    assert [row.at for step in steps for row in step] == [0, 9, 11]


# -- reduced --------------------------------------------------------------------------------------


def later(so_far: dict[str, Any], next_: dict[str, Any]) -> dict[str, Any]:
    """A function that looks at both, and is associative: what is longer wins, then what comes later."""
    wins = np.abs(next_["x"]) >= np.abs(so_far["x"])
    return {name: np.where(wins, next_[name], so_far[name]) for name in next_}


def less(so_far: dict[str, Any], next_: dict[str, Any]) -> dict[str, Any]:
    """A function that is not associative."""
    return {"x": 2 * so_far["x"] - next_["x"] % 5, "s": next_["s"] + np.array(".", dtype=object)}


@settings(max_examples=20)
@given(ITEMS, WAYS, FAULTS, st.booleans())
def test_reduce_is_the_function_applied_to_one_record_after_another(
    items: list[Item], way: dict[str, Any], faults: list[str], associative: bool
) -> None:
    function = later if associative else less
    steps, _ = run(
        lambda: Reduce(function, columns=["x", "s"], associative=associative),
        items,
        faults=faults,
        **way,
    )

    def one(so_far: Any, item: Item) -> Any:
        if associative:
            return (item.x, item.s) if abs(item.x or 0) >= abs(so_far[0]) else so_far
        wrapped = (2 * so_far[0] - (item.x or 0) % 5 + 2**63) % 2**64 - 2**63
        return (wrapped, f"{item.s}.")

    wanted = {}
    for key, own in by_key(items).items():
        there = [item for item in own if item.x is not None]
        if there:
            *_, wanted[key] = itertools.accumulate(there[1:], one, initial=(there[0].x, there[0].s))
    assert last_of_each(steps) == wanted


# -- lists ----------------------------------------------------------------------------------------


def lists(steps: list[list[Row]]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the last list of each key."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for step in steps:
        new: dict[str, list[tuple[Any, ...]]] = {}
        for row in step:
            new.setdefault(row.key, []).append(row.values)
        for values in new.values():
            assert [value[0] for value in values] == list(range(1, len(values) + 1))
        found |= {key: [value[1:] for value in values] for key, values in new.items()}
    return found


@settings(max_examples=20)
@given(ITEMS, WAYS, FAULTS, st.integers(1, 5), st.sampled_from(["x", "f", "s", "n"]), st.booleans())
def test_top_n_lists_the_best_records_and_of_equals_the_first_that_came(
    items: list[Item], way: dict[str, Any], faults: list[str], n: int, by: str, least: bool
) -> None:
    steps, _ = run(
        lambda: (
            TopN(n, by=by, columns=["n", by], least=least)
            if by != "n"
            else TopN(n, by="n", columns=["n"], least=least)
        ),
        items,
        faults=faults,
        **way,
    )
    wanted = {}
    for key, own in by_key(items).items():
        there = [item for item in own if getattr(item, by) is not None]
        # sorted keeps equals in their order, with reverse too
        best = sorted(there, key=lambda item: getattr(item, by), reverse=not least)
        if best:
            wanted[key] = [
                (item.n, getattr(item, by)) if by != "n" else (item.n,) for item in best[:n]
            ]
    assert lists(steps) == wanted


@settings(max_examples=20)
@given(ITEMS, WAYS, FAULTS, st.integers(1, 5))
def test_last_n_lists_the_newest_records_by_event_time(
    items: list[Item], way: dict[str, Any], faults: list[str], n: int
) -> None:
    steps, _ = run(lambda: LastN(n), items, faults=faults, **way)
    wanted = {}
    for key, own in by_key(items).items():
        newest = sorted(enumerate(own), key=lambda pair: (pair[1].at, pair[0]), reverse=True)
        wanted[key] = [whole(item).values for _, item in newest[:n]]
    assert lists(steps) == wanted


def test_equals_stay_in_the_order_in_which_they_came_from_step_to_step() -> None:
    items = [Item("a", at, x=1, n=at) for at in (3, 1, 2, 4)]
    steps, _ = run(lambda: TopN(3, by="x", columns=["n"]), items, rows=1)
    assert [[row.values[1] for row in step] for step in steps] == [[3], [3, 1], [3, 1, 2]]
    steps, _ = run(lambda: LastN(2, columns=["n"]), [Item("a", 5, n=n) for n in range(3)], rows=1)
    assert [[row.values[1] for row in step] for step in steps] == [[0], [1, 0], [2, 1]]


def test_a_list_that_does_not_change_is_not_said_again() -> None:
    items = [Item("a", 1, n=5), Item("a", 2, n=3), Item("a", 3, n=9)]
    steps, _ = run(lambda: TopN(1, by="n", columns=["n"]), items, rows=1)
    assert [[row.values for row in step] for step in steps] == [[(1, 5)], [(1, 9)]]


def best_of_steps(
    items: list[Item], rows: int, by: str, wins: Callable[[Any, Any], bool]
) -> list[list[Row]]:
    """Return what is said of the best records, step by step."""
    best: dict[str, Item] = {}
    said = []
    for first in range(0, len(items), rows):
        latest: dict[str, int] = {}
        changed = set()
        for item in items[first : first + rows]:
            value = getattr(item, by)
            if value is None or math.isnan(value if by == "f" else 0):
                continue
            latest[item.key] = max(latest.get(item.key, item.at), item.at)
            if item.key not in best or wins(value, getattr(best[item.key], by)):
                best[item.key] = item
                changed.add(item.key)
        said.append([Row(key, latest[key], (1, *whole(best[key]).values)) for key in changed])
    return said


def same_steps(steps: list[list[Row]], wanted: list[list[Row]]) -> bool:
    """Say whether what was said in each step is the same; of steps in which nothing was, none tell."""
    return [ordered(step) for step in steps if step] == [ordered(step) for step in wanted if step]


@settings(max_examples=40)
@given(ITEMS, WAYS, st.sampled_from(["x", "f", "s", "n"]), st.booleans())
def test_the_best_alone_is_said_whole_and_only_when_it_is_another(
    items: list[Item], way: dict[str, Any], by: str, least: bool
) -> None:
    steps, _ = run(lambda: TopN(1, by=by, least=least), items, **way)
    wins = lt if least else gt
    assert same_steps(steps, best_of_steps(items, way["rows"], by, wins))


@settings(max_examples=20)
@given(ITEMS, WAYS)
def test_the_newest_alone_is_said_whole_and_only_when_it_is_another(
    items: list[Item], way: dict[str, Any]
) -> None:
    steps, _ = run(lambda: LastN(1), items, **way)
    assert same_steps(steps, best_of_steps(items, way["rows"], "at", ge))


@pytest.mark.parametrize("rows", [1, 100])
def test_what_has_no_number_is_not_among_the_best(rows: int) -> None:
    items = [Item("a", at, f=f, n=at) for at, f in enumerate([math.nan, 1.0, math.nan, 0.5])]
    for n in (1, 2):
        steps, _ = run(lambda n=n: TopN(n, by="f", columns=["n"]), items, rows=rows)
        assert lists(steps)["a"] == [(1,), (3,)][:n]
    steps, _ = run(lambda: TopN(1, by="f", columns=["n"]), items[:1], rows=rows)
    assert lists(steps) == {}


def test_one_record_comes_out_in_the_types_of_a_list_of_many() -> None:
    fields = {
        "key": pa.string(),
        "at": pa.int64(),
        "ns": pa.timestamp("ns", tz="UTC"),
        "s": pa.duration("s"),
        "text": pa.large_string(),
        "raw": pa.large_binary(),
        "good": pa.bool_(),
        "small": pa.int8(),
        "day": pa.date32(),
    }
    kind = pa.schema(list(fields.items()))
    make = value_type_of_schema(kind).python_type
    now, day = datetime(2026, 1, 1, 0, 0, 0, 123456, UTC), date(2026, 1, 1)
    items = [
        make("a", 1, now, timedelta(seconds=5), "é", b"\0", True, -3, day),
        make("a", 2, None, None, None, None, False, None, None),
        make("b", 3, None, None, "", None, False, None, None),
    ]
    found = []
    for n in (1, 2):
        for made in (lambda n=n: TopN(n, by="good"), lambda n=n: LastN(n)):
            steps, _ = run(made, items, types=(kind,))
            found.append({key: of[0] for key, of in lists(steps).items()})
    assert found[:2] == found[2:]
    assert found[0]["a"][4:] == ("é", b"\0", True, -3, day)
    assert (
        draw(TopN(1, by="good"), kind).values.schema == draw(TopN(2, by="good"), kind).values.schema
    )


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (lambda: Map("x", int), "'x' is not a function"),
        (lambda: Reduce(None), "None is not a function"),  # type: ignore[arg-type]
        (lambda: Reduce(later, columns=["nothing"]), "has no column 'nothing'"),
        (lambda: Dedup(id="nothing", horizon="1s"), "has no column 'nothing'"),
        (lambda: Dedup(id="f", horizon="1s"), "id 'f': double is not a key type"),
        (lambda: Dedup(id="s", horizon=us(-1)), "is too short"),
        (lambda: TopN(0, by="x"), "n=0 is not a number of records"),
        (lambda: TopN(1, by="nothing"), "has no column 'nothing'"),
        (lambda: LastN(1, columns=["nothing"]), "has no column 'nothing'"),
    ],
)
def test_what_is_asked_wrong_is_refused_when_it_is_drawn(operator: Any, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        draw(operator(), Item)


def test_columns_that_a_table_cannot_keep_are_refused() -> None:
    nested = pa.schema([("key", pa.string()), ("at", pa.int64()), ("list", pa.list_(pa.int64()))])
    with pytest.raises(PipelineError, match="which an operator cannot keep"):
        draw(LastN(1), nested)
