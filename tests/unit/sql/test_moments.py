"""A condition on the current time changes at its moments, and at no other time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.eventtime.timestamps import DAY_US, LAST_DATE_US, MAX_TIME
from headrace.sql.clock_functions import HoldsAt, MomentsOf
from headrace.sql.ir.expressions import Call, Expression, Literal, Ref
from headrace.sql.ir.types import BIGINT, BOOLEAN, INT, STRING, SqlType
from headrace.sql.rules.clock import Unsolvable, current_time, leaves_by_clock, moments
from headrace.zsets import Rows

TIME, DATE, SPAN = SqlType("timestamp"), SqlType("date"), SqlType("day_time")
NTZ = SqlType("timestamp_ntz")
#: Columns of the rows: two times, a date, a span, a whole number.
TYPES = (TIME, TIME, DATE, SPAN, BIGINT)
AT, OTHER, DAY, LONG, NUMBER = (Ref(at, kind) for at, kind in enumerate(TYPES))
NOW = current_time()
#: 2024-02-28 12:00, near the end of a month that is short.
MIDDLE = 1_709_121_600_000_000


def call(function: str, kind: SqlType, *args: Expression) -> Call:
    return Call(function, args, kind)


def literal(value: Any, kind: SqlType) -> Literal:
    return Literal(value, kind)


def cast(of: Expression, kind: SqlType) -> Call:
    return Call("cast", (of,), kind, options=(("mode", "ansi"),))


TODAY = cast(NOW, DATE)
HOUR = literal(3_600_000_000, SPAN)


def trunc(unit: str, of: Expression = NOW) -> Call:
    return call("trunc_time", TIME, literal(unit, STRING), of)


def trunc_day(unit: str, of: Expression = TODAY) -> Call:
    return call("trunc_date", DATE, of, literal(unit, STRING))


#: Sides that go with the clock, and what they are compared with.
SIDES: dict[str, tuple[Expression, Expression]] = {
    "now": (NOW, AT),
    "an hour ago": (call("add_interval", TIME, NOW, literal(-3_600_000_000, SPAN)), AT),
    "a span of the row ahead": (call("add_interval", TIME, NOW, LONG), AT),
    "an age": (call("subtract_times", SPAN, NOW, AT), LONG),
    "what is left": (call("subtract_times", SPAN, AT, NOW), HOUR),
    "less than an age": (call("subtract", SPAN, HOUR, call("subtract_times", SPAN, NOW, AT)), LONG),
    "the negated age": (call("negate", SPAN, call("subtract_times", SPAN, NOW, AT)), LONG),
    "today": (TODAY, DAY),
    "today as a time": (cast(TODAY, TIME), AT),
    "without a zone": (cast(NOW, NTZ), cast(AT, NTZ)),
    "a week ago": (call("date_sub", DATE, TODAY, literal(7, INT)), DAY),
    "some days ahead": (call("date_add", DATE, TODAY, literal(3, INT)), DAY),
    "days since": (call("date_diff", INT, TODAY, DAY), literal(2, INT)),
    "days until": (call("date_diff", INT, DAY, TODAY), literal(2, INT)),
    "the span of days": (call("subtract_dates", SPAN, TODAY, DAY), LONG),
    "a month ago": (call("add_months", DATE, TODAY, literal(-1, INT)), DAY),
    "13 months ahead": (call("add_months", DATE, TODAY, literal(13, INT)), DAY),
    "the hour": (trunc("HOUR"), trunc("HOUR", AT)),
    "the week": (trunc("WEEK"), AT),
    "the month": (trunc("MONTH"), AT),
    "the quarter": (trunc("QUARTER"), AT),
    "the year": (trunc("YEAR"), AT),
    "the week of today": (trunc_day("WEEK"), DAY),
    "the month of today": (trunc_day("MM"), DAY),
    "the quarter of today": (trunc_day("QUARTER"), DAY),
    "year": (call("year", INT, NOW), call("year", INT, AT)),
    "year of today": (call("year", INT, TODAY), call("year", INT, DAY)),
    "seconds": (call("unix_seconds", BIGINT, NOW), NUMBER),
    "seconds since": (
        call("subtract", BIGINT, call("unix_seconds", BIGINT, NOW), NUMBER),
        literal(60, BIGINT),
    ),
    "milliseconds": (call("unix_millis", BIGINT, NOW), call("unix_millis", BIGINT, AT)),
}
COMPARISONS = ("less", "less_or_equal", "greater", "greater_or_equal", "equal", "equal_null_safe")


def drawn_rows(r: random.Random, count: int) -> Rows:
    """Return rows whose times are near the middle, some of them NULL."""

    def near(unit: int) -> list[int | None]:
        spread = r.choice([1, 5, 40, 400])
        found: list[int | None] = []
        for _ in range(count):
            exact = MIDDLE // unit + r.randrange(-spread, spread + 1) * max(DAY_US // unit, 1)
            found.append(None if r.random() < 0.1 else exact + r.randrange(-2, 3))
        return found

    columns = {
        "c0": pa.array(near(1), TIME.arrow),
        "c1": pa.array(near(1), TIME.arrow),
        "c2": pa.array(near(DAY_US), pa.int32()).cast(pa.date32()),
        "c3": pa.array(
            [r.choice([None, 0, 1, -1, DAY_US, 3_600_000_000]) for _ in range(count)], SPAN.arrow
        ),
        "c4": pa.array(near(1_000_000), pa.int64()),
    }
    weights = np.ones(count, dtype=np.int64)
    return Rows(columns, weights, np.arange(count))


def holds(condition: Expression, rows: Rows, times: Any) -> Any:
    return np.array(HoldsAt(condition, TYPES)(rows, np.asarray(times, dtype=np.int64)))


@pytest.mark.parametrize("function", COMPARISONS)
@pytest.mark.parametrize("name", SIDES)
def test_a_comparison_changes_at_its_moments_and_only_there(name: str, function: str) -> None:
    r = random.Random(f"{name} {function}")
    side, value = SIDES[name]
    args = (side, value) if r.random() < 0.5 else (value, side)
    condition = Call(function, args, BOOLEAN)
    rows = drawn_rows(r, 60)
    found = np.stack(MomentsOf(moments(condition), TYPES)(rows))
    # right before a moment, and at it, the truth differs
    is_equality = len(found) == 2
    for moment in found:
        feasible = (moment > DAY_US) & (moment <= LAST_DATE_US)
        if is_equality:  # (no time of the side equals the value)
            feasible &= found[0] != found[1]
        feasible = np.flatnonzero(feasible)
        of, at = rows.take(feasible), moment[feasible]
        assert (holds(condition, of, at - 1) != holds(condition, of, at)).all()
    # between two times without a moment, it does not
    pairs = np.array([_two_times(r, found[:, at]) for at in range(len(rows))])
    first, second = pairs[:, 0], pairs[:, 1]
    untouched = ~((found > first) & (found <= second)).any(axis=0)
    of = rows.take(np.flatnonzero(untouched))
    assert len(of) > 5
    same = holds(condition, of, first[untouched]) == holds(condition, of, second[untouched])
    assert same.all()


def _two_times(r: random.Random, moments_of_row: Any) -> list[int]:
    """Return two times, perhaps next to a moment."""
    feasible = [m for m in moments_of_row.tolist() if 0 < m <= LAST_DATE_US]
    drawn = [MIDDLE + r.randrange(-500, 500) * r.choice([1, 3_600_000_000, DAY_US]) for _ in "ab"]
    if feasible and r.random() < 0.5:
        edge = r.choice(feasible)
        drawn[0] = r.choice([edge, edge - 1])
        drawn[1] = edge + r.choice([0, 1, -1, DAY_US, -DAY_US])
    return sorted(drawn)


def test_conditions_are_joined_by_logic_and_change_when_a_part_does() -> None:
    recent = Call("greater", (AT, call("add_interval", TIME, NOW, HOUR)), BOOLEAN)
    due = Call("less_or_equal", (OTHER, NOW), BOOLEAN)
    known = Call("is_not_null", (NUMBER,), BOOLEAN)
    both = Call(
        "and", (Call("or", (recent, known), BOOLEAN), Call("not", (due,), BOOLEAN)), BOOLEAN
    )
    assert len(moments(both)) == 2
    assert moments(known) == ()


def test_a_value_beyond_all_times_is_never_reached_and_one_before_them_always_was() -> None:
    condition = Call("less", (call("add_interval", TIME, NOW, LONG), AT), BOOLEAN)
    extremes = [2**63 - 1, -(2**63)]
    rows = Rows(
        {
            "c0": pa.array(extremes, pa.int64()).cast(TIME.arrow),
            "c3": pa.array([-5, 5], pa.int64()).cast(SPAN.arrow),
        },
        np.ones(2, dtype=np.int64),
        np.arange(2),
    )
    (found,) = MomentsOf(moments(condition), TYPES)(rows)
    assert found.tolist() == [MAX_TIME, -MAX_TIME]


@pytest.mark.parametrize(
    ("side", "reason"),
    [
        (call("hour", INT, NOW), "neither only grows nor only falls"),
        (call("add_months", TIME, NOW, literal(-1, INT)), "neither only grows nor only falls"),
        (call("multiply", BIGINT, call("unix_seconds", BIGINT, NOW), NUMBER), "neither only grows"),
    ],
)
def test_a_side_that_goes_back_and_forth_is_refused(side: Expression, reason: str) -> None:
    with pytest.raises(Unsolvable, match=reason):
        moments(Call("less", (side, NUMBER), BOOLEAN))


def test_a_comparison_of_the_clock_with_itself_is_refused() -> None:
    later = call("add_interval", TIME, NOW, LONG)
    with pytest.raises(Unsolvable, match="both sides"):
        moments(Call("less", (NOW, later), BOOLEAN))


def test_rows_leave_in_time_if_a_condition_will_be_false_for_each() -> None:
    recent = Call("greater", (AT, NOW), BOOLEAN)
    due = Call("less", (AT, NOW), BOOLEAN)
    young = Call("less", (call("subtract_times", SPAN, NOW, AT), HOUR), BOOLEAN)
    left = Call("greater", (call("subtract_times", SPAN, AT, NOW), HOUR), BOOLEAN)
    assert [leaves_by_clock(one) for one in (recent, due, young, left)] == [True, False, True, True]
    assert leaves_by_clock(Call("and", (due, recent), BOOLEAN))
    assert not leaves_by_clock(Call("or", (due, recent), BOOLEAN))
