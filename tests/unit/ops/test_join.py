"""Joins and look-ups against nested loops in plain Python."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.ops import Count, Join, Lookup, Session
from headrace.pipeline import Node
from headrace.testing import drive
from tests.support.durations import us
from tests.support.operator_runs import (
    FAULTS,
    RECORD,
    WAYS,
    Item,
    Row,
    few_or_many,
    late_count,
    on_time,
    ordered,
    rows_of,
    run,
)
from tests.unit.ops.test_aggregates import draw

RECORDS = few_or_many(RECORD, 30)


class Other(msgspec.Struct, frozen=True):
    key: str
    at: int
    x: int | None
    y: str


def others(records: list[tuple[Any, ...]]) -> list[Other]:
    return [Other(i.key, i.at, i.x, f"y{i.n}") for i in on_time(records)]


BOTH = (Item, Other)
ITEMS = RECORDS.map(on_time)
OTHERS = RECORDS.map(others)
BOUNDS = st.one_of(
    st.integers(0, 30),
    st.tuples(st.integers(-30, 30), st.integers(0, 30)).map(lambda p: (p[0], p[0] + p[1])),
)


def of(item: Item | None) -> tuple[Any, ...]:
    return (None, None, None) if item is None else (item.at, item.x, item.n)


def of_other(other: Other | None) -> tuple[Any, ...]:
    return (None, None, None) if other is None else (other.at, other.x, other.y)


def join(how: Any, within: Any) -> Join:
    if isinstance(within, tuple):
        within = tuple(us(bound) for bound in within)
    return Join(how, within=us(within), left=["at", "x", "n"], right=["at", "x", "y"])


@settings(max_examples=20)
@given(
    ITEMS,
    OTHERS,
    WAYS,
    FAULTS,
    st.sampled_from(["inner", "left", "right", "full"]),
    st.one_of(st.none(), BOUNDS),
)
def test_records_of_a_key_within_the_bound_are_paired(
    items: list[Item],
    other: list[Other],
    way: dict[str, Any],
    faults: list[str],
    how: str,
    within: Any,
) -> None:
    how = "inner" if within is None else how
    low, high = within if isinstance(within, tuple) else (-(within or 0), within or 0)

    def near(left: Item, right: Other) -> bool:
        return left.key == right.key and (within is None or low <= right.at - left.at <= high)

    wanted = [
        Row(left.key, max(left.at, right.at), of(left) + of_other(right))
        for left in items
        for right in other
        if near(left, right)
    ]
    left_alone = [left for left in items if not any(near(left, right) for right in other)]
    right_alone = [right for right in other if not any(near(left, right) for left in items)]
    width = (high - low) // 4 + 1
    if how in ("left", "full"):
        for left in left_alone:
            over = (left.at // width + 1) * width + high
            wanted.append(Row(left.key, max(left.at, over), of(left) + of_other(None)))
    if how in ("right", "full"):
        for right in right_alone:
            over = (right.at // width + 1) * width - low
            wanted.append(Row(right.key, max(right.at, over), of(None) + of_other(right)))
    steps, driver = run(lambda: join(how, within), items, other, types=BOTH, faults=faults, **way)
    assert rows_of(steps) == ordered(wanted)
    assert late_count(driver) == 0


def test_a_record_without_a_partner_goes_on_when_none_can_come_any_more() -> None:
    items = [Item("a", 0), Item("a", 100), Item("a", 200)]
    other = [Other("a", 1, 1, "y"), Other("a", 150, 1, "z"), Other("a", 200, 1, "z")]
    steps, _ = run(lambda: join("left", (0, 10)), items, other, types=BOTH, rows=1, delay=0)
    said = [[(row.at, row.values[0], row.values[3]) for row in step] for step in steps]
    # 100 may meet what comes until 110; its bucket of 3 microseconds is over at 102 + 10
    assert said == [[(1, 0, 1)], [(200, 200, 200), (112, 100, None)]]


def test_names_that_both_sides_have_get_a_suffix() -> None:
    schema = draw(Join(within=us(1)), Item, Other).values.schema
    assert schema.names == [
        "key",
        "at",
        "x",
        "f",
        "s",
        "n",
        "key_right",
        "at_right",
        "x_right",
        "y",
    ]
    assert not schema.field("y").nullable
    assert draw(Join("left", within=us(1)), Item, Other).values.schema.field("y").nullable


# -- look-ups -------------------------------------------------------------------------------------


def valid(table: list[Other], item: Item) -> Other | None:
    """Return the version that a record should meet: the newest; of one time, the last to arrive."""
    met = None
    for version in table:
        fits = version.key == item.key and version.at <= item.at
        if fits and (met is None or version.at >= met.at):
            met = version
    return met


@settings(max_examples=20)
@given(ITEMS, OTHERS, WAYS, FAULTS, st.sampled_from(["left", "inner"]))
def test_a_record_that_waits_meets_the_version_of_its_time(
    items: list[Item], table: list[Other], way: dict[str, Any], faults: list[str], how: Any
) -> None:
    steps, driver = run(
        lambda: Lookup(how, stream_columns=["at", "x", "n"], table_columns=["at", "x", "y"]),
        items,
        table,
        types=BOTH,
        faults=faults,
        **way,
    )
    wanted = [
        Row(item.key, item.at, of(item) + of_other(valid(table, item)))
        for item in items
        if how == "left" or valid(table, item)
    ]
    assert rows_of(steps) == ordered(wanted)
    assert late_count(driver) == 0


@settings(max_examples=20)
@given(
    ITEMS,
    OTHERS,
    OTHERS,
    WAYS,
    FAULTS,
    st.sampled_from(["left", "inner"]),
)
def test_a_record_meets_the_version_of_its_time_in_each_of_several_tables(
    items: list[Item],
    table: list[Other],
    second: list[Other],
    way: dict[str, Any],
    faults: list[str],
    how: Any,
) -> None:
    columns = {"in1": ["at", "y"], "in2": ["y"]}
    steps, _ = run(
        lambda: Lookup(how, stream_columns=["n"], table_columns=columns),
        items,
        table,
        second,
        types=(Item, Other, Other),
        faults=faults,
        **way,
    )
    wanted = []
    for item in items:
        one, other = valid(table, item), valid(second, item)
        if how == "inner" and (one is None or other is None):
            continue
        first = (None, None) if one is None else (one.at, one.y)
        wanted.append(Row(item.key, item.at, (item.n, *first, None if other is None else other.y)))
    assert rows_of(steps) == ordered(wanted)


@settings(max_examples=20)
@given(ITEMS, OTHERS, WAYS, FAULTS)
def test_what_reads_a_lookup_sees_the_event_times_of_the_records(
    items: list[Item], table: list[Other], way: dict[str, Any], faults: list[str]
) -> None:
    def sessions() -> Session:
        return Session(us(7), n=Count())

    def after_lookup(p: hr.Pipeline, stream: hr.Stream, versions: hr.Stream) -> Node:
        keys = dict.fromkeys((stream, versions), "key")
        met = p.compute("met", Lookup(stream_columns=["x"], table_columns=["y"]), keys=keys)
        return p.compute("it", sessions(), keys={met: "key"})

    plain, _ = run(sessions, items, **way)
    found, driver = run(lambda: after_lookup, items, table, types=BOTH, faults=faults, **way)
    assert rows_of(found) == rows_of(plain)
    assert late_count(driver) == 0


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_version_that_comes_when_the_watermark_is_at_a_record_is_met(is_ordered: bool) -> None:
    pipeline = hr.Pipeline("exact")
    streams = [
        pipeline.inject(
            name, hr.sources.Iterable([], kind, event_time="at"), watermark=hr.bounded_delay("1h")
        )
        for name, kind in (("items", Item), ("table", Other))
    ]
    lookup = Lookup(stream_columns=["n"], table_columns=["y"])
    pipeline.compute("it", lookup, keys=dict.fromkeys(streams, "key"), ordered=is_ordered)
    with drive(pipeline) as t:
        t.push("table", Other("a", 5, None, "old"))
        t.push("items", Item("a", 10))
        for name in ("items", "table"):
            t.watermark(name, 10)
        t.run()
        assert t.outputs("it.out") == [], "one more of that time may come"
        t.push("table", Other("a", 10, None, "new"))
        t.run()
        assert t.outputs("it.out") == []
        for name in ("items", "table"):
            t.watermark(name, 11)
        t.run()
        (met,) = t.outputs("it.out", everything=True)
        assert (met.timestamp_us, met.value.y) == (10, "new")


@settings(max_examples=20)
@given(ITEMS, OTHERS, WAYS, st.sampled_from([0, 1]))
def test_a_record_that_does_not_wait_meets_the_versions_known_by_then(
    items: list[Item], table: list[Other], way: dict[str, Any], number: int
) -> None:
    def operator() -> Any:
        return Lookup(
            wait=False,
            table=number,
            stream_columns=["at", "x", "n"],
            table_columns=["at", "x", "y"],
        )

    inputs = (items, table) if number else (table, items)
    steps, _ = run(operator, *inputs, types=BOTH if number else BOTH[::-1], **way)
    rows = way["rows"]
    wanted = []
    for position, item in enumerate(items):
        step = position // rows
        known = table[: (step if number else step + 1) * rows]
        wanted.append(Row(item.key, item.at, of(item) + of_other(valid(known, item))))
    assert rows_of(steps) == ordered(wanted)


def test_a_version_is_kept_as_long_as_a_record_may_meet_it() -> None:
    table = [Other("a", at, None, f"y{at}") for at in (0, 10, 12, 12, 12, 12, 40)]
    items = [Item("a", at) for at in (9, 10, 10, 11, 12, 11, 41)]
    steps, _ = run(
        lambda: Lookup(wait=False, table=0, table_columns=["y"]),
        table,
        items,
        types=BOTH[::-1],
        rows=1,
        delay=2,
    )
    assert [row.values[-1] for step in steps for row in step] == [
        "y0",
        "y10",
        "y10",
        "y10",
        "y12",
        "y10",
        "y40",
    ]


def test_late_records_of_the_stream_are_counted_and_late_versions_taken_in() -> None:
    items = [Item("a", 50), Item("a", 10), Item("a", 60), Item("a", 70)]
    table = [Other("a", 45, 1, "old"), Other("a", 5, 1, "older"), Other("a", 40, 1, "late")]
    steps, driver = run(
        lambda: Lookup(wait=False, table=0, table_columns=["y"]),
        table,
        items,
        types=BOTH[::-1],
        rows=1,
        delay=0,
    )
    assert [row.values[-1] for row in rows_of(steps)] == ["old", "old", "old"]
    assert late_count(driver) == 1


@pytest.mark.parametrize(
    ("operator", "inputs", "says"),
    [
        (lambda: Join("left"), 2, "would wait forever"),
        (lambda: Join("outer", within=us(1)), 2, "is not 'inner'"),  # type: ignore[arg-type]
        (lambda: Join(within=(us(5), us(1))), 2, "leaves no time for a partner"),
        (lambda: Join(within=us(-1)), 2, "leaves no time for a partner"),
        (lambda: Join(within="soon"), 2, "is not a duration"),
        (lambda: Join(within=us(1)), 1, "it reads 1 streams, and works on 2"),
        (lambda: Join(within=us(1), left=["nothing"]), 2, "has no column 'nothing'"),
        (lambda: Join(within=us(1), suffix=""), 2, "would have two columns"),
        (lambda: Lookup("outer"), 2, "how is 'left' or 'inner'"),  # type: ignore[arg-type]
        (Lookup, 1, "it reads 1 streams, and works on 2"),
        (lambda: Lookup(table_columns=["nothing"]), 2, "has no column 'nothing'"),
        (lambda: Lookup(suffix=""), 2, "would have two columns"),
        (
            lambda: Lookup(table_columns={"in9": ["y"]}),
            2,
            "names 'in9', which is none of its tables",
        ),
        (lambda: Lookup(table_columns=["y"]), 3, "does not say of which table"),
    ],
)
def test_what_is_asked_wrong_is_refused(operator: Any, inputs: int, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        draw(operator(), *[Item, Other, Other][:inputs])


def test_one_object_can_be_drawn_twice() -> None:
    operator = Join(within=us(1))
    assert "y" in draw(operator, Item, Other).values.schema.names
    assert "s_right" in draw(operator, Item, Item).values.schema.names


def test_the_package_says_what_it_has() -> None:
    for name in hr.ops.__all__:
        assert getattr(hr.ops, name).__doc__, name
