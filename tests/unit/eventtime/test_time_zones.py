"""Wall clocks and points in time, against Python's own zoneinfo."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.eventtime.zones import RepeatedHour, zone_of

ZONES = [
    "America/New_York",
    "Europe/Paris",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "America/Sao_Paulo",
    "Asia/Gaza",
    "Europe/Dublin",
    "UTC",
]
NEW_YORK = zone_of("America/New_York")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001


def micros(local: datetime) -> int:
    return (local.replace(tzinfo=None) - _EPOCH) // timedelta(microseconds=1)


def offset_of(local: datetime, name: str, *, latest: bool) -> timedelta:
    """Python's answer: fold says which of two; in a gap fold=0 is the offset from before."""
    zone = zoneinfo.ZoneInfo(name)
    first, second = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert first is not None and second is not None
    skipped = second > first
    return second if latest and not skipped else first


def near_changes() -> st.SearchStrategy[datetime]:
    """Times of the hours in which clocks are set, and any others."""
    changes = st.builds(
        lambda year, month, day, minutes: (
            datetime(year, month, day)  # noqa: DTZ001
            + timedelta(minutes=minutes)
        ),
        st.sampled_from(
            [1883, 1918, 1945, 1973, 1995, 2007, 2011, 2024, 2037, 2038, 2099, 2100, 2399]
        ),
        st.sampled_from([3, 4, 9, 10, 11, 12]),
        st.integers(1, 30),
        st.integers(0, 1439),
    )
    return changes | st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31))  # noqa: DTZ001


@given(st.sampled_from(ZONES), st.lists(near_changes(), min_size=1, max_size=20), st.booleans())
@example("America/New_York", [datetime(2024, 3, 10, 2, 30)], False)  # noqa: DTZ001
@example("America/New_York", [datetime(2024, 11, 3, 1, 30)], True)  # noqa: DTZ001
@example("Pacific/Apia", [datetime(2011, 12, 30, 12)], False)  # noqa: DTZ001
def test_local_times_are_read_as_python_has_them(
    name: str, times: list[datetime], latest: bool
) -> None:
    local = np.array([micros(at) for at in times], np.int64)
    found = zone_of(name).to_utc(local, "latest" if latest else "earliest")
    expected = [micros(at - offset_of(at, name, latest=latest)) for at in times]
    assert found.tolist() == expected


@given(st.sampled_from(ZONES), st.lists(near_changes(), min_size=1, max_size=20))
def test_clocks_show_what_python_says(name: str, times: list[datetime]) -> None:
    zone = zoneinfo.ZoneInfo(name)
    found = zone_of(name).to_local(np.array([micros(at) for at in times], np.int64))
    assert found.tolist() == [
        micros(at.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)) for at in times
    ]


def test_a_repeated_hour_is_refused_where_it_is_to_be() -> None:
    local = np.array([micros(datetime(2024, 11, 3, hour, 30)) for hour in (0, 3, 1)])  # noqa: DTZ001
    with pytest.raises(RepeatedHour, match="twice") as caught:
        NEW_YORK.to_utc(local, "raise")
    assert caught.value.row == 2
    gap = np.array([micros(datetime(2024, 3, 10, 2, 30))])  # noqa: DTZ001
    assert NEW_YORK.to_utc(gap, "raise").tolist() == [micros(datetime(2024, 3, 10, 7, 30))]  # noqa: DTZ001


@pytest.mark.parametrize(
    ("name", "hours"), [("+02:00", 2.0), ("-0530", -5.5), ("UTC+01", 1.0), ("Z", 0.0), ("GMT", 0.0)]
)
def test_an_offset_is_a_zone(name: str, hours: float) -> None:
    at = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=hours)))
    assert zone_of(name).to_utc(np.array([micros(at)])).tolist() == [micros(at.astimezone(UTC))]


@pytest.mark.parametrize("name", ["Europe/Pariss", "", "../etc/passwd", "+25:00", "CEST+1", "/etc"])
def test_what_is_no_zone_is_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(PipelineError, match="IANA"):
        zone_of(name)
