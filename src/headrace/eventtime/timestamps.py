"""Timestamps: ``datetime`` in the public API, integers of microseconds since 1970 UTC inside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from numbers import Integral

from headrace.errors import PipelineError

#: The watermark before anything is known, and the one after which nothing comes.
MIN_TIME = -(2**63)
MAX_TIME = 2**63 - 1

#: The first and last times that a ``datetime`` can represent. All event times of records are
#: between them. So the sum of an event time and a few durations never leaves 64 bits, and no record
#: is at ``MAX_TIME``.
FIRST_DATE_US = -62_135_596_800_000_000
LAST_DATE_US = 253_402_300_799_999_999
#: The longest duration, some 73 000 years. (Event times are less than 10 000 years apart.)
LONGEST_US = 2**61

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_UNITS["d"] = 24 * _UNITS["h"]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")

TimeLike = datetime | int
DurationLike = timedelta | str | int


def to_micros(when: TimeLike) -> int:
    """Return a point in time as microseconds since 1970 UTC.

    Args:
        when: an aware ``datetime``, or an integer that already is microseconds.

    Raises:
        ValueError: for a ``datetime`` without a time zone, which names no point in time.
    """
    if isinstance(when, int):
        return when
    if isinstance(when, Integral):  # such as NumPy's
        return int(when)
    if when.tzinfo is None or when.utcoffset() is None:
        raise ValueError(f"{when!r} has no time zone; use datetime(..., tzinfo=timezone.utc)")
    delta = when - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def checked_micros(when: TimeLike) -> int:
    """Return a point in time as microseconds, after checking that it can be stored.

    Raises:
        ValueError: for a time without a zone, or beyond 64 bits.
        TypeError: for a value that is not a time.
    """
    if not isinstance(when, int | datetime | Integral) or isinstance(when, bool):
        raise TypeError(f"{when!r} is no time; give an aware datetime, or microseconds as an int")
    micros = to_micros(when)
    if not MIN_TIME <= micros <= MAX_TIME:
        raise ValueError(f"{micros} microseconds are beyond what a time can be")
    return micros


def event_micros(when: TimeLike) -> int:
    """Return the event time of a record that a handler sends, as microseconds.

    A time after the year 9999 counts as the last one of that year. The time of a timer that fires
    only at the end of the input may be that late.

    Raises:
        ValueError: for a time without a zone, or before the year 1.
        TypeError: for a value that is not a time.
    """
    micros = checked_micros(when)
    if micros < FIRST_DATE_US:
        raise ValueError(f"{micros} microseconds are no event time: {OUTSIDE}")
    return min(micros, LAST_DATE_US)


#: Why a time is refused as an event time.
OUTSIDE = "event times are in the years 1 to 9999"


def from_micros(micros: int) -> datetime:
    """Return microseconds since 1970 UTC as an aware ``datetime``, clamped to its range.

    >>> from_micros(0).isoformat()
    '1970-01-01T00:00:00+00:00'
    """
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
        return first if micros < 0 else last


def duration_micros(duration: DurationLike) -> int:
    """Return a duration as microseconds; strings are like ``"10s"``, ``"1h30m"``, ``"250ms"``.

    A duration of more than ``LONGEST_US`` counts as ``LONGEST_US``: no two event times are that far
    apart.

    >>> duration_micros("1m30s")
    90000000

    Raises:
        PipelineError: for a value that is not a duration, such as a float, which has no unit.
    """
    return max(-LONGEST_US, min(_duration_micros(duration), LONGEST_US))


def _duration_micros(duration: DurationLike) -> int:
    if isinstance(duration, Integral):  # (NumPy's too)
        return int(duration)
    if isinstance(duration, timedelta):
        return (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
    text = duration.strip() if isinstance(duration, str) else ""
    total, end = 0.0, 0
    for match in _DURATION.finditer(text):
        if match.start() != end:
            break
        total += float(match[1]) * _UNITS[match[2]]
        end = match.end()
    if not text or end != len(text):
        raise PipelineError(
            f"{duration!r} is not a duration",
            remedy='write a timedelta, or a string such as "250ms", "10s", "1h30m", "2d"',
        )
    return round(total)


def show_time(micros: int) -> str:
    """Return a time for display: RFC 3339, or ``-`` and ``end`` before and after all event times."""
    if micros < FIRST_DATE_US:
        return "-"
    if micros > LAST_DATE_US:
        return "end"
    return from_micros(micros).isoformat().replace("+00:00", "Z")
