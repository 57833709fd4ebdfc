"""Times as programs write them, against Python's own datetime."""

from __future__ import annotations

import random
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.eventtime.parsing import BadTime, to_micros_column
from headrace.eventtime.spellings import TimeFormat

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def read(*texts: str, **options: object) -> list[int]:
    found: list[int] = to_micros_column(pa.array(list(texts)), **options).to_pylist()  # type: ignore[arg-type]
    return found


def offset(at: datetime, colon: str = ":") -> str:
    seconds = int((at.utcoffset() or timedelta()).total_seconds())
    sign, seconds = ("-", -seconds) if seconds < 0 else ("+", seconds)
    return f"{sign}{seconds // 3600:02d}{colon}{seconds // 60 % 60:02d}"


def short_offset(at: datetime) -> str:
    """As PostgreSQL: minutes only where there are some."""
    text = offset(at)
    return text[:3] if text.endswith(":00") else text


def fraction(at: datetime, nanos: int) -> str:
    return f".{at.microsecond:06d}{nanos:03d}"


def trimmed(at: datetime, nanos: int) -> str:
    return fraction(at, nanos).rstrip("0").rstrip(".")


def stamp(at: datetime, between: str = "T") -> str:
    clock = f"{at.hour:02d}:{at.minute:02d}:{at.second:02d}"
    return f"{at.year:04d}-{at.month:02d}-{at.day:02d}{between}{clock}"


def utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def day_name(at: datetime) -> str:
    return _DAYS[at.weekday()]


#: How each program writes a point in time, and what of it is kept: (at, nanoseconds) → text.
SPELLINGS: dict[str, Callable[[datetime, int], str]] = {
    "Go, JSON": lambda at, n: stamp(at) + trimmed(at, n) + offset(at),
    "Go, String": lambda at, n: stamp(at, " ") + trimmed(at, n) + " " + offset(at, "") + " CEST",
    "Go, String with a clock": lambda at, n: (
        f"{stamp(at, ' ')} {offset(at, '')} +0330 m=+0.01"
        if not at.microsecond and not n
        else stamp(at, " ") + trimmed(at, n) + " " + offset(at, "") + " UTC m=+1.000012"
    ),
    "Docker": lambda at, n: stamp(utc(at)) + fraction(at, n) + "Z",
    "Java, Instant": lambda at, n: stamp(utc(at)) + trimmed(at, n) + "Z",
    "Java, ZonedDateTime": lambda at, n: stamp(at) + trimmed(at, n) + offset(at) + "[Europe/Paris]",
    "JavaScript, extended year": lambda at, n: "+00" + stamp(utc(at)) + fraction(at, n)[:4] + "Z",
    "PostgreSQL": lambda at, n: stamp(at, " ") + fraction(at, 0)[:4] + short_offset(at),
    "Spark, JSON": lambda at, n: stamp(at) + fraction(at, 0)[:4] + offset(at),
    "pandas": lambda at, n: stamp(at, " ") + fraction(at, n) + offset(at),
    "RFC 3339 in lower case": lambda at, n: stamp(utc(at), "t") + fraction(at, n) + "z",
    "ISO with a comma": lambda at, n: stamp(at) + fraction(at, n).replace(".", ",") + offset(at),
    "ISO, basic": lambda at, n: (
        stamp(utc(at)).replace("-", "").replace(":", "") + fraction(at, n) + "Z"
    ),
    "ISO, basic with an offset": lambda at, n: (
        stamp(at).replace("-", "").replace(":", "") + fraction(at, n) + offset(at, "")
    ),
    "BigQuery": lambda at, n: stamp(utc(at), " ") + fraction(at, n) + " UTC",
    "Python": lambda at, n: at.isoformat(),
}
#: Those that have whole seconds.
SECONDS: dict[str, Callable[[datetime], str]] = {
    "JavaScript, toString": lambda at: (
        f"{day_name(at)} {_NAMES[at.month - 1]} {at.day:02d} {at.year:04d} {stamp(at)[11:]} "
        f"GMT{offset(at, '')} (Central European Summer Time)"
    ),
    "JavaScript, toUTCString": lambda at: (
        f"{day_name(utc(at))}, {utc(at).day:02d} {_NAMES[utc(at).month - 1]} {utc(at).year:04d} "
        f"{stamp(utc(at))[11:]} GMT"
    ),
    "mail": lambda at: (
        f"{day_name(at)}, {at.day} {_NAMES[at.month - 1]} {at.year:04d} {stamp(at)[11:]} {offset(at, '')}"
    ),
}
MILLISECONDS = {"JavaScript, extended year", "PostgreSQL", "Spark, JSON"}

instants = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)).map(  # noqa: DTZ001
    lambda at: at.replace(tzinfo=UTC)
)
zones = st.builds(
    lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-14 * 60, 14 * 60)
)


@settings(max_examples=250)
@given(
    st.sampled_from(sorted(SPELLINGS)),
    st.lists(st.tuples(instants, zones, st.integers(0, 999)), min_size=1, max_size=3),
)
def test_what_a_program_writes_is_read_as_that_point_in_time(
    spelling: str, times: list[tuple[datetime, timezone, int]]
) -> None:
    texts = [SPELLINGS[spelling](at.astimezone(zone), nanos) for at, zone, nanos in times]
    expected = [micros(at) for at, _, _ in times]
    if spelling in MILLISECONDS:
        expected = [at // 1_000 * 1_000 for at in expected]
    assert read(*texts) == expected


@given(
    st.sampled_from(sorted(SECONDS)), st.lists(st.tuples(instants, zones), min_size=1, max_size=3)
)
def test_dates_with_names_of_months_are_read(
    spelling: str, times: list[tuple[datetime, timezone]]
) -> None:
    whole = [(at.replace(microsecond=0), zone) for at, zone in times]
    texts = [SECONDS[spelling](at.astimezone(zone)) for at, zone in whole]
    assert read(*texts) == [micros(at) for at, _ in whole]


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_spellings_may_be_mixed_in_a_column(seed: int) -> None:
    rng = random.Random(seed)
    at = _EPOCH + timedelta(seconds=rng.randrange(-(2**35), 2**35))
    local = at.replace(tzinfo=None)
    paris = local.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Paris"))
    written = [(write(at, 0), micros(at)) for write in SPELLINGS.values()]
    written += [(write(at), micros(at)) for write in SECONDS.values()]
    written += [(stamp(local), micros(paris)), (stamp(local, " ") + ".0", micros(paris))]
    rng.shuffle(written)
    assert read(*[text for text, _ in written], zone="Europe/Paris") == [at for _, at in written]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1969-12-31T23:59:59.9999999Z", -1),
        ("1969-12-31T23:59:59.000000001Z", -1_000_000),
        ("0000-12-31T00:00:00Z", -62_135_683_200_000_000),
        ("-0001-12-31T00:00:00Z", -62_135_683_200_000_000 - 366 * 86_400_000_000),
        ("0001-12-31 00:00:00+00 BC", -62_135_683_200_000_000),
        ("10000-01-01 00:00:00+00", 253_402_300_800_000_000),
        ("+10000-01-01T00:00:00Z", 253_402_300_800_000_000),
        ("+010000-01-01T00:00:00.000Z", 253_402_300_800_000_000),
        ("1883-11-18 12:03:58-04:56:02", -2_717_650_800_000_000),
        ("2024-05-01T12Z", 1_714_564_800_000_000),
        ("2024-05-01T12:00+02:00[Europe/Paris]", 1_714_557_600_000_000),
        ("2024-05-01", 1_714_521_600_000_000),
        ("2024/05/01 12:00:00.123456", 1_714_564_800_123_456),  # as Go's logs have it
    ],
)
def test_years_and_fractions_at_the_edges(text: str, expected: int) -> None:
    assert read(text) == [expected]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2024-05-01T24:00:00Z", "24:00"),
        ("2016-12-31T23:59:60Z", "leap second"),
        ("2024-W18-3", "week"),
        ("2024W183", "week"),
        ("infinity", "not a point in time"),
        ("-infinity", "not a point in time"),
        ("NaT", "null_values="),
        ("1714557600", "time_unit="),
        ("19580329", "time_format="),
        ("2023-02-29", "not a time"),
        ("2024-13-01", "not a time"),
        ("2024-05-01T12:00:00+24:00", "not a time"),
        ("2024-05-01T12:00:00+02:60", "not a time"),
        ("2024-0501", "not a time"),
        ("2024/05-01", "not a time"),
        ("Wed May 01 12:00:00 CEST 2024", "not a time"),
        ("05/01/2024", "not a time"),
        ("300000-01-01T00:00:00Z", "not a time"),
        ("2024-05-01T12:0000Z", "not a time"),
        ("\uff12\uff10\uff12\uff14-05-01", "not a time"),
        ("2024-05-01T12:00:00Z\n", "not a time"),
    ],
)
def test_what_is_no_time_is_refused_with_its_row_and_why(text: str, why: str) -> None:
    with pytest.raises(BadTime, match=why) as caught:
        read("2024-05-01T12:00:00Z", "20240501T120000Z", text)
    assert caught.value.row == 2


# -- formats of the user's own ------------------------------------------------------------------

FORMATS = [
    "%Y-%m-%d %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%Y%m%d",
    "%Y%m%d%H%M%S",
    "%d %b %Y",
    "%B %d, %Y %I:%M %p",
    "%a, %d %b %Y %H:%M:%S.%f",
    "%Y-%j",
    "%m/%d/%y",
    "%d/%b/%Y:%H:%M:%S %z",
    "%Y",
    "%A %d %B %Y",
    "%H%%%Y%m%d",
]


@settings(max_examples=150)
@given(st.sampled_from(FORMATS), st.lists(instants, min_size=1, max_size=3))
def test_a_format_reads_what_strftime_writes(form: str, times: list[datetime]) -> None:
    times = [
        at.replace(year=1969 + at.year % 100) if "%y" in form else at
        for at in times
        if not (at.month == 2 and at.day == 29)
    ]
    texts = [at.strftime(form).zfill(4) if form == "%Y" else _strftime(at, form) for at in times]
    expected = [datetime.strptime(text, form).replace(tzinfo=UTC) for text in texts]
    found = read(*texts, form=TimeFormat(form)) if texts else []
    assert found == [micros(at) for at in expected]


def _strftime(at: datetime, form: str) -> str:
    return at.strftime(form.replace("%Y", f"{at.year:04d}"))  # (some libraries write no zeros)


def test_a_format_reads_numbers_and_nine_digits() -> None:
    numbers = pa.array([19580329, 20240501])
    found = to_micros_column(numbers, form=TimeFormat("%Y%m%d"))
    assert found.to_pylist() == [micros(datetime(1958, 3, 29, tzinfo=UTC)), 1_714_521_600_000_000]
    assert read("2024 .123456789", form=TimeFormat("%Y .%f")) == [1_704_067_200_123_456]


@pytest.mark.parametrize("text", ["2024-02-30", "2024-1", "x2024-01-01", "2024-01-01 "])
def test_what_does_not_fit_a_format_is_refused(text: str) -> None:
    with pytest.raises(BadTime) as caught:
        read("2024-01-01", text, form=TimeFormat("%Y-%m-%d"))
    assert caught.value.row == 1


@pytest.mark.parametrize("form", ["%q", "%Y %Y", "%H:%M", "%Y%", "%Y %I", "", "%Y %U"])
def test_a_format_that_is_none_is_refused(form: str) -> None:
    with pytest.raises(PipelineError):
        TimeFormat(form)


# -- numbers, timestamps ------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1))
def test_nanoseconds_are_cut_as_time_goes_on(nanos: list[int]) -> None:
    expected = [number // 1_000 for number in nanos]
    stamps = pa.array(nanos, pa.timestamp("ns", tz="UTC"))
    assert to_micros_column(stamps).to_pylist() == expected
    assert to_micros_column(pa.array(nanos), unit="ns").to_pylist() == expected


@pytest.mark.parametrize(
    "column",
    [
        pa.array([19580329, 20240501]),
        pa.array([19580329], pa.int32()),
    ],
)
def test_numbers_that_seem_to_be_dates_are_no_microseconds(column: pa.Array) -> None:
    with pytest.raises(BadTime, match="time_format"):
        to_micros_column(column)
    assert to_micros_column(column, unit="us").to_pylist() == column.to_pylist()


def test_numbers_beyond_what_a_time_can_be_are_refused_with_their_row() -> None:
    for column in (pa.array([1, 2**62]), pa.array([1.0, 1e300]), pa.array([1, 2**63], pa.uint64())):
        with pytest.raises(BadTime, match="beyond") as caught:
            to_micros_column(column, unit="s" if pa.types.is_int64(column.type) else "us")
        assert caught.value.row == 1


def test_texts_that_are_numbers_have_the_unit_that_was_said() -> None:
    assert read("1714557600", "2024-05-01T10:00:00Z", "-1.5", unit="s") == [
        1_714_557_600_000_000,
        1_714_557_600_000_000,
        -1_500_000,
    ]
    assert read("-1", "1999", unit="ns") == [-1, 1]


def test_numbers_of_any_length_are_the_times_that_they_are_or_are_refused() -> None:
    assert read("1.9999999999999999", "-0.0000000000001", unit="us") == [1, -1]
    with pytest.raises(BadTime, match="beyond"):
        read("1" * 31, unit="us")
