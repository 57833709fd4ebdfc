"""Days, weeks and months of a time zone against Python's datetime and zoneinfo."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.eventtime.calendars import Calendar
from headrace.ops import CalendarWindows, Count, Sum
from tests.support.durations import us
from tests.support.operator_runs import Item, Row, late_count, ordered, rows_of, run

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = 3_600_000_000
ZONES = [
    "America/New_York",
    "Europe/Paris",
    "America/Sao_Paulo",
    "America/St_Johns",
    "America/Havana",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "UTC",
]


def micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def next_day(day: date, unit: str) -> date:
    """Return where the stretch after the one of a day begins, on the calendar."""
    if unit == "day":
        return day + timedelta(days=1)
    if unit == "week":
        return day + timedelta(days=7 - day.weekday())
    months = {"month": 1, "quarter": 3, "year": 12}[unit]
    number = (day.year * 12 + day.month - 1) // months + 1
    return date(number * months // 12, number * months % 12 + 1, 1)


def begins(day: date, zone: zoneinfo.ZoneInfo) -> int:
    """Return when a day begins: at the first midnight, or where that was skipped, after the gap."""
    return micros(datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC))


def bounds(at: int, unit: str, name: str) -> tuple[int, int]:
    """Return the stretch that a time is in, from one to the next since some time before."""
    zone = zoneinfo.ZoneInfo(name)
    local = (_EPOCH + timedelta(microseconds=at)).astimezone(zone).date()
    day = next_day(local - timedelta(days=800), unit)
    while True:
        following = next_day(day, unit)
        if begins(day, zone) <= at < begins(following, zone):
            return begins(day, zone), begins(following, zone)
        day = following


times = st.one_of(
    st.integers(micros(datetime(1900, 1, 1, tzinfo=UTC)), micros(datetime(2120, 1, 1, tzinfo=UTC))),
    # around midnights and changes of clocks
    st.builds(
        lambda y, m, d, minute: micros(datetime(y, m, d, tzinfo=UTC)) + minute * 60_000_000,
        st.sampled_from([1987, 2006, 2011, 2018, 2024, 2045]),
        st.sampled_from([2, 3, 4, 10, 11, 12]),
        st.integers(1, 28),
        st.integers(0, 1439),
    ),
)


@settings(max_examples=150)
@given(
    st.lists(times, min_size=1, max_size=4),
    st.sampled_from(["day", "week", "month", "quarter", "year"]),
    st.sampled_from(ZONES),
)
@example([micros(datetime(2011, 12, 30, 9, 59, tzinfo=UTC))], "day", "Pacific/Apia")
@example([micros(datetime(2011, 12, 30, 10, 0, tzinfo=UTC))], "day", "Pacific/Apia")
@example([micros(datetime(2006, 10, 29, 2, 45, tzinfo=UTC))], "day", "America/St_Johns")
@example([micros(datetime(2018, 11, 4, 3, 0, tzinfo=UTC))], "day", "America/Sao_Paulo")
def test_stretches_are_those_of_the_calendar(instants: list[int], unit: Any, name: str) -> None:
    calendar = Calendar(unit, time_zone=name)
    numbers = calendar.numbers(np.array(instants, np.int64))
    found = zip(
        calendar.starts(numbers).tolist(), calendar.starts(numbers + 1).tolist(), strict=True
    )
    assert list(found) == [bounds(at, unit, name) for at in instants]


@pytest.mark.parametrize(
    ("day", "hours"), [((2024, 3, 10), 23), ((2024, 11, 3), 25), ((2024, 5, 1), 24)]
)
def test_a_day_on_which_clocks_are_set_has_another_length(
    day: tuple[int, int, int], hours: int
) -> None:
    noon = micros(datetime(*day, 16, tzinfo=UTC))
    calendar = Calendar("day", time_zone="America/New_York")
    number = calendar.numbers(np.array([noon]))
    assert (calendar.starts(number + 1) - calendar.starts(number)).tolist() == [hours * HOUR]


def test_several_units_make_one_stretch_and_weeks_begin_as_is_said() -> None:
    at = np.array([micros(datetime(2024, 5, 1, 12, tzinfo=UTC))])
    sunday = Calendar("week", week_starts="sunday")
    assert sunday.starts(sunday.numbers(at)).tolist() == [micros(datetime(2024, 4, 28, tzinfo=UTC))]
    half = Calendar("month", every=6)
    assert half.starts(half.numbers(at)).tolist() == [micros(datetime(2024, 1, 1, tzinfo=UTC))]
    six = Calendar("hour", every=6, time_zone="Asia/Kolkata")
    assert six.starts(six.numbers(at)).tolist() == [micros(datetime(2024, 5, 1, 6, 30, tzinfo=UTC))]


_DAY = 24 * HOUR
#: From the eve of the day on which New York set its clocks forward.
_FIRST = micros(datetime(2024, 3, 9, 12, tzinfo=UTC))
_LATENESS = 30 * HOUR


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 400), st.integers(0, 30)), max_size=30
    ),
    st.sampled_from([1, 7, 100]),
    st.sampled_from([1, 3]),
    st.sampled_from([0, 5 * HOUR]),
)
def test_each_window_is_said_once_with_all_its_records(
    drawn: list[tuple[str, int, int]], rows: int, workers: int, wait: int
) -> None:
    hours = sorted(hour for _, hour, _ in drawn)
    items = [
        Item(key, _FIRST + hour * HOUR - jitter * HOUR, jitter)
        for (key, _, jitter), hour in zip(drawn, hours, strict=True)
    ]
    steps, driver = run(
        lambda: CalendarWindows(
            "day",
            time_zone="America/New_York",
            allowed_lateness=us(wait),
            count=Count(),
            total=Sum("x"),
        ),
        items,
        delay=_LATENESS,
        rows=rows,
        workers=workers,
    )
    held: dict[tuple[str, int, int], list[Item]] = {}
    for item in items:
        held.setdefault((item.key, *bounds(item.at, "day", "America/New_York")), []).append(item)
    assert rows_of(steps) == ordered(
        [
            Row(key, end + wait, (start, end, len(own), sum(item.x or 0 for item in own)))
            for (key, start, end), own in held.items()
        ]
    )
    assert late_count(driver) == 0


def test_a_record_of_a_day_that_is_over_is_late() -> None:
    items = [Item("a", _FIRST), Item("a", _FIRST + 2 * _DAY), Item("a", _FIRST + HOUR)]
    steps, driver = run(
        lambda: CalendarWindows("day", time_zone="America/New_York", count=Count()),
        items,
        delay=0,
        rows=1,
    )
    assert late_count(driver) == 1
    assert sum(row.values[2] for row in rows_of(steps)) == 2


@pytest.mark.parametrize(
    "options",
    [{"every": 0}, {"time_zone": "Mars/Olympus"}, {"week_starts": "funday"}, {"every": 1.5}],
)
def test_what_is_no_calendar_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        hr.ops.CalendarWindows("week", count=Count(), **options)
    with pytest.raises(PipelineError):
        hr.ops.CalendarWindows("fortnight", count=Count())  # type: ignore[arg-type]
