"""Durations for people, and the lag of a watermark."""

from __future__ import annotations

from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME


def lag_us(watermark: int, highest: int) -> int | None:
    """Return how many microseconds a watermark is behind the highest event time seen.

    None while either is unknown, and after the input has ended. Some watermarks run ahead: a source
    with an exact watermark may know when its next record will come. Then the lag is 0.

    >>> lag_us(40, 100), lag_us(101, 100)
    (60, 0)
    """
    if MIN_TIME < watermark < MAX_TIME and highest > MIN_TIME:
        return max(0, highest - watermark)
    return None


def show_duration(micros: int) -> str:
    """Return a duration for people.

    >>> show_duration(5_400_000_000)
    '1.5 h'
    """
    for unit, name in (
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "min"),
        (1_000_000, "s"),
    ):
        if abs(micros) >= unit:
            return f"{micros / unit:.1f} {name}"
    return f"{micros / 1000:.0f} ms"
