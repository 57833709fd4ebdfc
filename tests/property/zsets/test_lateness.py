"""Tables with a watermark: late rows are apart, final rows come once, and nothing is kept too long."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import BadInput, PipelineError
from headrace.testing import Harness
from headrace.zsets import Count, Max, Sum
from tests.property.zsets.driving import EVENTS, befall

SECOND = 1_000_000
ROWS = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


def _time(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


Row = tuple[int | None, int, int]
#: For each step: rows of two tables as (key, value, seconds behind the step's time), and an event.
DRAWN = st.lists(
    st.tuples(st.sampled_from([None, 1, 2]), st.integers(0, 2), st.integers(-3, 12)), max_size=5
)
STEPS = st.lists(st.tuples(DRAWN, DRAWN, EVENTS), min_size=2, max_size=7)


class Tables:
    """What should be in the tables, judged by seconds: the rows that are not late."""

    def __init__(self, lateness: int) -> None:
        self.lateness = lateness
        self.rows: dict[str, list[Row]] = {"a": [], "b": []}
        self.late: Counter[Row] = Counter()
        self.highest: dict[str, int | None] = {"a": None, "b": None}

    def take(self, name: str, rows: list[Row]) -> None:
        before = self.highest[name]
        for row in rows:
            is_late = before is not None and row[2] < before - self.lateness
            if is_late and name == "a":
                self.late[row] += 1
            if not is_late:
                self.rows[name].append(row)
        times = [row[2] for row in rows]
        self.highest[name] = max(times if before is None else [*times, before], default=None)

    @property
    def low(self) -> int | None:
        """The second up to which both tables are complete."""
        one, other = self.highest.values()
        return None if one is None or other is None else min(one, other)


def _pipeline(lateness: int) -> hr.Pipeline:
    p = hr.Pipeline("p")
    wait = f"{lateness}s"
    a, b = (
        hr.zsets.table(
            name,
            p.inject(f"{name}_in", hr.sources.Iterable([], ROWS, event_time="at")),
            watermark="at",
            lateness=wait,
        )
        for name in ("a", "b")
    )
    a.late.compute("late")
    after = f"{lateness * SECOND + 1}us"
    grouped = a.group("sums", ["k", "at"], until={"at": after}, n=Count(), s=Sum("v"), m=Max("v"))
    grouped.compute("grouped")
    grouped.final("final", {"at": after}).compute("once")
    until = f"{(lateness + 4) * SECOND + 1}us"

    def near(rows: hr.zsets.Rows) -> Any:
        apart = rows["at"].astype("datetime64[us]") - rows["at_right"].astype("datetime64[us]")
        return abs(apart.astype("int64")) <= 4 * SECOND

    a.join("join", b, "k", condition=near, until=({"at": until}, {"at": until})).compute("joined")
    return p


def _changes(t: Harness, name: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for one in t.outputs(name):
        *values, weight = (getattr(one.value, field) for field in one.value.__struct_fields__)
        shown = tuple(int(v.timestamp()) if hasattr(v, "timestamp") else v for v in values)
        found[shown] += weight
    return found


def _groups(rows: list[Row]) -> Counter[Any]:
    groups: dict[Any, list[int]] = {}
    for k, v, at in rows:
        groups.setdefault((k, at), []).append(v)
    return Counter({(*key, len(vs), sum(vs), max(vs)): 1 for key, vs in groups.items()})


@settings(max_examples=15, deadline=None)
@given(steps=STEPS, lateness=st.integers(0, 5))
def test_late_rows_are_apart_final_rows_come_once_and_only_what_may_be_met_is_kept(
    steps: Any, lateness: int
) -> None:
    tables = Tables(lateness)
    late: Counter[Any] = Counter()
    grouped: Counter[Any] = Counter()
    once: Counter[Any] = Counter()
    joined: Counter[Any] = Counter()
    with hr.testing.drive(_pipeline(lateness), workers=2, bins=8) as t:
        for number, (of_a, of_b, event) in enumerate(steps):
            pushed = False
            for name, drawn in (("a", of_a), ("b", of_b)):
                rows = [(k, v, 1_000 + 5 * number - behind) for k, v, behind in drawn]
                tables.take(name, rows)
                records = [{"k": k, "v": v, "at": _time(at)} for k, v, at in rows]
                pushed = pushed or bool(rows)
                if rows:
                    t.push_many(f"{name}_in", records)
            befall(t, event if pushed else None, number)
            t.run()
            a, b = tables.rows["a"], tables.rows["b"]
            late.update(_changes(t, "late"))
            assert late == tables.late
            assert t.counts("a").late == sum(tables.late.values())
            grouped.update(_changes(t, "grouped"))
            assert +grouped == _groups(a)
            change = _changes(t, "once")
            assert min(change.values(), default=1) > 0
            once.update(change)
            now = tables.highest["a"]
            passed = [row for row in a if now is not None and row[2] + lateness < now]
            assert once == _groups(passed)
            joined.update(_changes(t, "joined"))
            assert joined == Counter(
                (*x, *y)
                for x in a
                for y in b
                if x[0] is not None and x[0] == y[0] and abs(x[2] - y[2]) <= 4
            )
            _check_kept(t, tables)


def _check_kept(t: Harness, tables: Tables) -> None:
    """Check that a row is kept if, and only if, one may still come that touches it."""
    now, low, lateness = tables.highest["a"], tables.low, tables.lateness
    open_groups = {(k, at) for k, _, at in tables.rows["a"] if now is None or at + lateness >= now}
    assert _kept(t, "sums", "groups") == len(open_groups)
    for side, name in (("left", "a"), ("right", "b")):
        may_meet = {
            row
            for row in tables.rows[name]
            if row[0] is not None and (low is None or row[2] + 4 + lateness >= low)
        }
        assert _kept(t, "join", side) == len(may_meet)


def _kept(t: Harness, computation: str, name: str) -> int:
    return sum(len(t.state(computation, key)[name]) for key in t.keys(computation))


def test_a_row_that_is_deleted_is_refused_where_none_may_be() -> None:
    p = hr.Pipeline("p")
    schema = ROWS.append(pa.field("_weight", pa.int64(), nullable=False))
    stream = p.inject("in", hr.sources.Iterable([], schema, event_time="at"))
    rows = hr.zsets.table("rows", stream)
    rows.on_time("only_inserted", "at", what="table 'rows'").compute("result")
    row = {"k": 1, "v": 2, "at": _time(1)}
    with hr.testing.drive(p) as t:
        t.push("in", {**row, "_weight": 1})
        t.run()
        t.push("in", {**row, "_weight": -1})
        with pytest.raises(BadInput, match=r"table 'rows': a row is deleted \(k=1, v=2, at="):
            t.run()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"watermark": "v2"}, "v2"),
        ({"watermark": "at", "key": "k"}, "only inserted"),
        ({"watermark": "at", "lateness": "-1s"}, "below 0"),
    ],
)
def test_a_watermark_that_cannot_be_is_refused(options: Any, what: str) -> None:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], ROWS, event_time="at"))
    with pytest.raises(PipelineError, match=what):
        hr.zsets.table("rows", stream, **options)


def test_a_row_without_a_time_is_refused_in_place_of_being_kept_for_ever() -> None:
    p = hr.Pipeline("p")
    schema = pa.schema([("k", pa.int64()), ("due", pa.timestamp("us", "UTC")), ROWS.field("at")])
    stream = p.inject("in", hr.sources.Iterable([], schema, event_time="at"))
    hr.zsets.table("rows", stream).final("final", {"due": "0s"}).compute("result")
    with hr.testing.drive(p) as t:
        t.push("in", {"k": 1, "due": None, "at": _time(1)})
        with pytest.raises(BadInput, match="nothing says when a row is final"):
            t.run()
