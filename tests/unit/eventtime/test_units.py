"""A time in a wrong unit is recognised by its cause; a time in the past is not."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.eventtime.timestamps import (
    FIRST_DATE_US,
    LAST_DATE_US,
    MAX_TIME,
    MIN_TIME,
    to_micros,
)
from headrace.eventtime.units import check_unit, first_misread, likely_unit

YEAR_US = 31_556_952_000_000
MODERN = st.integers(10 * YEAR_US, LAST_DATE_US) | st.integers(FIRST_DATE_US, -10 * YEAR_US)
ANY = st.integers(MIN_TIME, MAX_TIME)


def units(time: int, cause: int) -> set[str]:
    """Return the units by whose factor a time is off, by the definition in whole numbers."""
    found = set()
    if 10 * YEAR_US <= abs(cause) <= LAST_DATE_US:
        if abs(time * 10**6 - cause) < abs(cause) / 2:
            found.add("seconds")
        if abs(time * 10**3 - cause) < abs(cause) / 2 and time % (15 * 60 * 10**6):
            found.add("milliseconds")
        if abs(time) > LAST_DATE_US and abs(time - cause * 10**3) < YEAR_US * 10**3:
            found.add("nanoseconds")
    return found


@given(MODERN, st.floats(-0.49, 0.49))
def test_seconds_are_recognised_whatever_the_delay(cause: int, off: float) -> None:
    assert likely_unit(round(cause * (1 + off)) // 10**6, cause) == "seconds"


@given(MODERN, st.integers(-YEAR_US // 2, YEAR_US // 2))
def test_nanoseconds_are_recognised(cause: int, delay: int) -> None:
    time = (cause + delay) * 1_000
    if MIN_TIME <= time <= MAX_TIME and abs(time) > LAST_DATE_US:
        assert likely_unit(time, cause) == "nanoseconds"


@given(MODERN, st.floats(-0.49, 0.49))
def test_milliseconds_are_recognised_unless_they_may_be_a_date(cause: int, off: float) -> None:
    time = round(cause * (1 + off)) // 10**3
    expected = None if time % (15 * 60 * 10**6) == 0 else "milliseconds"
    assert likely_unit(time, cause) == expected


@given(ANY, st.integers(-10 * YEAR_US + 1, 10 * YEAR_US - 1))
def test_small_event_times_mean_what_they_say(time: int, cause: int) -> None:
    assert likely_unit(time, cause) is None


@given(MODERN, st.integers(FIRST_DATE_US, LAST_DATE_US))
def test_a_time_in_the_past_is_legal_however_far_back(cause: int, time: int) -> None:
    if abs(time - cause) < 0.99 * abs(cause):  # (not near 1970)
        assert likely_unit(time, cause) is None


@given(MODERN, st.dates(), st.integers(0, 95))
def test_a_calendar_date_is_legal(cause: int, date: object, quarter: int) -> None:
    midnight = datetime.fromisoformat(f"{date} 00:00+00:00")
    time = to_micros(midnight) + quarter * 15 * 60 * 10**6
    if not 10 * 60 * 10**6 < abs(time) < 10**10:  # (seconds would be in the first hours of 1970)
        assert likely_unit(time, cause) is None


@pytest.mark.parametrize("time", [MIN_TIME, -1, 0, 1, 5, 10**6, 10**15, 2**61, 2**62, MAX_TIME])
def test_the_usual_odd_times_are_legal(time: int) -> None:
    for year in (1700, 1990, 2020, 2025, 2040):
        assert likely_unit(time, to_micros(datetime(year, 6, 1, 12, 34, 56, tzinfo=UTC))) is None


@given(ANY, ANY)
@example(1_700_000_000, 1_700_000_000_000_000)
@example(MIN_TIME, 1_700_000_000_000_000)
def test_the_rule_is_that_of_the_definition(time: int, cause: int) -> None:
    found = likely_unit(time, cause)
    assert ({found} if found else set()) == units(time, cause)


NEAR = MODERN.flatmap(
    lambda cause: st.tuples(
        st.sampled_from([1, 10**3, 10**6])
        .map(lambda factor: cause // factor)
        .flatmap(lambda time: st.integers(time - abs(time) // 2 - 1, time + abs(time) // 2 + 1)),
        st.just(cause),
    )
)


@given(st.lists(NEAR | st.tuples(ANY, ANY), max_size=20))
def test_many_times_at_once_are_judged_as_one_by_one(pairs: list[tuple[int, int]]) -> None:
    expected = next((row for row, pair in enumerate(pairs) if likely_unit(*pair)), None)
    times, causes = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    assert first_misread(times, causes) == expected


def test_the_error_names_the_unit() -> None:
    with pytest.raises(
        ValueError,
        match="1700000000 looks like seconds; timestamps are microseconds since 1970",
    ):
        check_unit(1_700_000_000, 1_700_000_000_123_456)
