"""Timestamps: ``datetime`` in the public API, integers of microseconds since 1970 UTC inside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from numbers import Integral

#: The watermark before anything is known, and the one after which nothing comes.
MIN_TIME = -(2**63)
MAX_TIME = 2**63 - 1

#: The first and last times that a ``datetime`` can represent. All event times of records are
#: between them. So the sum of an event time and a few durations never leaves 64 bits, and no record
#: is at ``MAX_TIME``.
FIRST_DATE_US = -62_135_596_800_000_000
LAST_DATE_US = 253_402_300_799_999_999
DAY_US = 86_400_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TimeLike = datetime | int


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
        raise TypeError(
            f"{when!r} is not a time; give an aware datetime, or microseconds as an int"
        )
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
        raise ValueError(f"{micros} microseconds are not an event time: {OUTSIDE}")
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


def show_time(micros: int) -> str:
    """Return a time for display: RFC 3339, or ``-`` and ``end`` before and after all event times."""
    if micros < FIRST_DATE_US:
        return "-"
    if micros > LAST_DATE_US:
        return "end"
    return from_micros(micros).isoformat().replace("+00:00", "Z")
