"""Windows and sessions against plain Python; what is late is counted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError, SchemaChanged
from headrace.ops import Count, Max, Mean, Min, Session, Sliding, Sum, Tumbling, TumblingCount
from headrace.storage import MemoryStore
from tests.support.durations import us
from tests.support.operator_runs import (
    FAULTS,
    ITEMS,
    WAYS,
    Item,
    Row,
    late_count,
    on_time,
    ordered,
    rows_of,
    run,
    watermarks,
)
from tests.support.pipelines import Collected, run_inline
from tests.unit.ops.test_aggregates import draw

ASKED: dict[str, Any] = {"count": Count(), "total": Sum("x"), "low": Min("s"), "mean": Mean("x")}


def answers(items: list[Item]) -> tuple[Any, ...]:
    xs = [item.x for item in items if item.x is not None]
    low = min((item.s for item in items if item.s is not None), default=None)
    return (len(items), sum(xs) if xs else None, low, sum(xs) / len(xs) if xs else None)


def windows(items: list[Item], size: int, every: int, offset: int, wait: int) -> list[Row]:
    """Return what windows should say, record by record and window by window."""
    held: dict[tuple[str, int], list[Item]] = {}
    for item in items:
        start = (item.at - offset) // every * every + offset
        while start + size > item.at:
            held.setdefault((item.key, start), []).append(item)
            start -= every
    return [
        Row(key, start + size + wait, (start, start + size, *answers(own)))
        for (key, start), own in held.items()
    ]


@settings(max_examples=25)
@given(
    ITEMS,
    WAYS,
    FAULTS,
    st.sampled_from([1, 2, 5, 8]),
    st.integers(1, 6) | st.sampled_from([9, 47, 48, 49, 150]),
    st.integers(1, 4),
    st.integers(-7, 7),
    st.sampled_from([0, 0, 9]),
)
def test_each_window_is_said_once_with_all_its_records(
    items: list[Item],
    way: dict[str, Any],
    faults: list[str],
    unit: int,
    long: int,
    apart: int,
    offset: int,
    wait: int,
) -> None:
    size, every = unit * max(long, apart), unit * apart

    def operator() -> Sliding:
        return Sliding(us(size), us(every), offset=us(offset), allowed_lateness=us(wait), **ASKED)

    steps, driver = run(operator, items, faults=faults, **way)
    assert rows_of(steps) == ordered(windows(items, size, every, offset, wait))
    assert late_count(driver) == 0


@settings(max_examples=20)
@given(ITEMS, WAYS, st.integers(1, 40))
def test_tumbling_windows_follow_one_another(
    items: list[Item], way: dict[str, Any], size: int
) -> None:
    steps, _ = run(lambda: Tumbling(us(size), **ASKED), items, **way)
    assert rows_of(steps) == ordered(windows(items, size, size, 0, 0))


@settings(max_examples=20)
@given(ITEMS, WAYS, st.sampled_from([(10, 10), (10, 4)]), st.sampled_from([0, 8]))
def test_a_record_whose_windows_are_over_is_counted_as_late_and_others_are_not(
    items: list[Item], way: dict[str, Any], lengths: tuple[int, int], wait: int
) -> None:
    size, every = lengths
    before = watermarks(items, way["rows"], 5)
    kept: dict[tuple[str, int], list[Item]] = {}
    late = 0
    for item, watermark in zip(items, before, strict=True):
        start = item.at // every * every
        late += start + size + wait <= watermark
        while start + size > item.at:
            if start + size + wait > watermark:
                kept.setdefault((item.key, start), []).append(item)
            start -= every
    steps, driver = run(
        lambda: Sliding(us(size), us(every), allowed_lateness=us(wait), **ASKED),
        items,
        delay=5,
        **way,
    )
    assert late_count(driver) == late
    wanted = [
        Row(key, start + size + wait, (start, start + size, *answers(own)))
        for (key, start), own in kept.items()
    ]
    assert rows_of(steps) == ordered(wanted)


def test_a_window_is_said_when_the_watermark_reaches_its_end_and_its_state_is_gone() -> None:
    items = [Item("a", 1), Item("a", 9), Item("b", 14), Item("b", 15), Item("b", 40)]
    steps, _ = run(lambda: TumblingCount(us(10)), items, delay=5, rows=1)
    assert [[(r.key, r.at, r.values) for r in step] for step in steps] == [
        [("a", 10, (0, 10, 2))],
        [("b", 20, (10, 20, 2))],
        [("b", 50, (40, 50, 1))],
    ]


def test_panes_that_were_stored_without_marks_are_refused_where_they_would_not_be_found() -> None:
    store = MemoryStore()

    def drawn(panes: int) -> hr.Pipeline:
        pipeline = hr.Pipeline("test")
        items = pipeline.inject("in", hr.sources.Iterable([Item("a", 1)], Item, event_time="at"))
        node = pipeline.compute("it", Sliding(us(panes), us(1), count=Count()), keys={items: "key"})
        pipeline.sink("out", node["out"], Collected().sink("out"))
        return pipeline

    run_inline(drawn(8), store=store)
    with pytest.raises(SchemaChanged, match="panes"):
        run_inline(drawn(9), store=store)


def sessions(items: list[Item], gap: int, wait: int) -> list[Row]:
    """Return what sessions should say: a key's records by time, cut where nothing came for the gap."""
    found = []
    for key in {item.key for item in items}:
        own = sorted((item for item in items if item.key == key), key=lambda item: item.at)
        groups: list[list[Item]] = []
        for item in own:
            if groups and item.at < groups[-1][-1].at + gap:
                groups[-1].append(item)
            else:
                groups.append([item])
        for group in groups:
            end = group[-1].at + gap
            found.append(Row(key, end + wait, (group[0].at, end, *answers(group))))
    return found


@settings(max_examples=20)
@given(ITEMS, WAYS, FAULTS, st.integers(1, 40), st.sampled_from([0, 6]))
def test_a_session_lasts_as_long_as_records_keep_coming(
    items: list[Item], way: dict[str, Any], faults: list[str], gap: int, wait: int
) -> None:
    steps, driver = run(
        lambda: Session(us(gap), allowed_lateness=us(wait), **ASKED), items, faults=faults, **way
    )
    assert rows_of(steps) == ordered(sessions(items, gap, wait))
    assert late_count(driver) == 0


@settings(max_examples=20)
@given(ITEMS, WAYS, st.integers(1, 30), st.sampled_from([0, 6]))
def test_a_record_too_late_for_a_session_of_its_own_is_counted(
    items: list[Item], way: dict[str, Any], gap: int, wait: int
) -> None:
    rows = way["rows"]
    before = watermarks(items, rows, 5)
    open_: dict[str, list[list[Item]]] = {}
    said, late = [], 0

    def end(group: list[Item]) -> int:
        return max(item.at for item in group) + gap

    for first in range(0, len(items), rows):
        for item in items[first : first + rows]:
            if item.at + gap + wait <= before[first]:
                late += 1
                continue
            own = open_.setdefault(item.key, [])
            near = [g for g in own if item.at < end(g) and min(i.at for i in g) < item.at + gap]
            merged = [*(i for g in near for i in g), item]
            open_[item.key] = [*(g for g in own if g not in near), merged]
        watermark = before[first + rows] if first + rows < len(items) else 1 << 62
        for key, groups in open_.items():
            for group in [g for g in groups if end(g) + wait <= watermark]:
                groups.remove(group)
                begin = min(item.at for item in group)
                said.append(Row(key, end(group) + wait, (begin, end(group), *answers(group))))
    steps, driver = run(
        lambda: Session(us(gap), allowed_lateness=us(wait), **ASKED), items, delay=5, **way
    )
    assert late_count(driver) == late
    assert rows_of(steps) == ordered(said)


def test_a_record_between_two_sessions_joins_them() -> None:
    items = [Item("a", 0), Item("a", 15), Item("a", 8), Item("a", 60)]
    steps, _ = run(lambda: Session(us(10), count=Count()), items, rows=1)
    assert [r.values for r in rows_of(steps)] == [(0, 25, 3), (60, 70, 1)]


def test_late_records_are_in_the_report_of_the_step() -> None:
    items = [*on_time([("a", 1, 0)] * 20), Item("a", 1), Item("a", 2)]
    _, driver = run(lambda: TumblingCount(us(10)), items, delay=0, rows=4)
    assert driver.coordinator.head is not None
    counts = driver.coordinator.head.counts["it"]
    assert (counts.records, counts.late) == (20, 2)


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (lambda: Tumbling("0s", count=Count()), "size='0s' is too short"),
        (lambda: Tumbling("1 fortnight", count=Count()), "is not a duration"),
        (lambda: Tumbling("1s", count=Count(), offset=Count()), "offset=.* is not a duration"),
        (lambda: Sliding("1s", "2s", count=Count()), "some records would be in no window"),
        (lambda: Session("1s", allowed_lateness=us(-1), count=Count()), "is too short"),
        (lambda: Tumbling("1s", window_start=Count()), "cannot be the name"),
        (lambda: Session("1s", most=Max("nothing")), "has no column 'nothing'"),
    ],
)
def test_what_is_asked_wrong_is_refused(operator: Any, says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        draw(operator(), Item)


def test_a_drawing_can_still_drop_whatever_is_behind_the_watermark() -> None:
    items = [Item("a", 0), Item("a", 8), Item("a", 7), Item("a", 30)]
    found, driver = run(lambda: TumblingCount(us(10)), items, delay=0, rows=1, late="drop")
    assert [r.values for r in rows_of(found)] == [(0, 10, 2), (30, 40, 1)]
    assert late_count(driver) == 1


def test_public_names() -> None:
    assert hr.ops.TumblingCount is TumblingCount
