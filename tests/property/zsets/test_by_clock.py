"""Rows that come and go with the clock: right after every step, and kept only while they may change."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import Harness
from headrace.zsets import Count, Rows
from tests.property.zsets.driving import EVENTS, befall

SECOND = 1_000_000
START = datetime(2024, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * SECOND
ROWS = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("come", pa.timestamp("us", "UTC")),
        pa.field("go", pa.timestamp("us", "UTC")),
        pa.field("back", pa.timestamp("us", "UTC")),
        pa.field("_weight", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
#: A key, and the seconds at which a row comes, goes, and comes back; None is never.
Row = tuple[int | None, int | None, int | None, int | None]
SECONDS = st.none() | st.integers(-5, 40)
DRAWN = st.tuples(st.sampled_from([None, 1, 2]), SECONDS, SECONDS, SECONDS)
#: For each step: rows that come, which of those that are there go, seconds that pass, and an event.
STEPS = st.lists(
    st.tuples(
        st.lists(DRAWN, max_size=4),
        st.lists(st.integers(0, 9), max_size=3),
        st.integers(0, 12),
        EVENTS,
    ),
    min_size=2,
    max_size=8,
)
FAR = 2**62


def _is_in(row: Row, now: int) -> bool:
    """Return whether a row is in the result: an independent reading of the condition below."""
    _, come, go, back = row
    if back is not None and now >= back:
        return True
    return come is not None and now >= come and (go is None or now < go)


def _micros(rows: Rows, name: str) -> Any:
    times = rows[name].astype("datetime64[us]").astype("int64")
    return np.where(rows.nulls(name), FAR, times)


def _holds(rows: Rows, now: Any) -> Any:
    come, go, back = (_micros(rows, name) for name in ("come", "go", "back"))
    return (now >= back) | ((now >= come) & (now < go))


def _moments(rows: Rows) -> list[Any]:
    return [_micros(rows, name) for name in ("go", "back", "come")]


def _pipeline() -> hr.Pipeline:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], ROWS, event_time="at"))
    rows = hr.zsets.table("rows", stream).select("k", "come", "go", "back")
    inside = rows.by_clock("by_clock", _holds, _moments)
    inside.compute("result")
    inside.group("counts", "k", n=Count()).compute("counted")
    return p


def _time(second: int | None) -> datetime | None:
    return None if second is None else START + timedelta(seconds=second)


def _push(t: Harness, rows: list[Row], weight: int) -> None:
    records = [
        {"k": k, "come": _time(a), "go": _time(b), "back": _time(c), "_weight": weight, "at": None}
        for k, a, b, c in rows
    ]
    t.push_many("in", records, at=[0] * len(records))


def _changes(t: Harness, name: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for one in t.outputs(name):
        *values, weight = (getattr(one.value, field) for field in one.value.__struct_fields__)
        found[tuple(_second(v) if isinstance(v, datetime) else v for v in values)] += weight
    return found


def _second(time: datetime) -> int:
    return round((time - START).total_seconds())


def _there(counts: Counter[Any]) -> Counter[Any]:
    assert min(counts.values(), default=0) >= 0, counts
    return +counts


def _kept(t: Harness) -> int:
    return sum(len(t.state("by_clock", key)["rows"]) for key in t.keys("by_clock"))


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_the_result_is_right_at_every_time_and_only_what_may_change_is_kept(steps: Any) -> None:
    there: list[Row] = []
    result: Counter[Any] = Counter()
    counted: Counter[Any] = Counter()
    now = 0
    with hr.testing.drive(_pipeline(), workers=2, bins=8, clock=START) as t:
        for number, (added, gone, passing, event) in enumerate(steps):
            removed = [there.pop(at % len(there)) for at in gone if there]
            there += added
            if added:
                _push(t, added, 1)
            if removed:
                _push(t, removed, -1)
            now += passing
            t.clock(START + timedelta(seconds=now))
            befall(t, event if added or removed else None, number)
            t.run()
            result.update(_changes(t, "result"))
            counted.update(_changes(t, "counted"))
            inside = [row for row in there if _is_in(row, now)]
            assert _there(result) == Counter(inside)
            assert _there(counted) == Counter(Counter(k for k, *_ in inside).items())
            assert _kept(t) == len({row for row in there if _may_change(row, now)})


def _may_change(row: Row, now: int) -> bool:
    later = [one for one in row[1:] if one is not None and one > now]
    return any(_is_in(row, one) != _is_in(row, now) for one in later)


def test_rows_leave_without_any_input_in_a_step_of_their_own() -> None:
    with hr.testing.drive(_pipeline(), clock=START) as t:
        _push(t, [(1, 0, 10, None), (2, 5, 10, None)], 1)
        t.run()
        assert _changes(t, "result") == {(1, 0, 10, None): 1}
        t.clock("+4s")
        assert t.run() == 0  # nothing is due
        t.clock("+1s")
        assert t.run() == 1
        assert _changes(t, "result") == {(2, 5, 10, None): 1}
        t.clock("+5s")
        assert t.run() == 1
        assert _changes(t, "result") == {(1, 0, 10, None): -1, (2, 5, 10, None): -1}
        assert _kept(t) == 0


def test_a_row_that_is_deleted_before_its_time_leaves_no_timer() -> None:
    with hr.testing.drive(_pipeline(), clock=START) as t:
        _push(t, [(1, 5, 10, None)], 1)
        t.run()
        _push(t, [(1, 5, 10, None)], -1)
        t.run()
        t.clock("+20s")
        assert t.run() == 0


def test_a_clock_that_goes_back_takes_no_row_back() -> None:
    with hr.testing.drive(_pipeline(), clock=START) as t:
        _push(t, [(1, 0, 10, None)], 1)
        t.clock("+11s")
        t.run()
        assert not _changes(t, "result")
        t._clock.time_us = START_US + 5 * SECOND
        _push(t, [(1, 0, 10, None), (2, 0, 20, None)], 1)
        t.run()
        assert _changes(t, "result") == {(2, 0, 20, None): 1}  # it is still 11 seconds past
