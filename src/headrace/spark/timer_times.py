"""Times of PySpark's timers, which are in milliseconds, as times of the engine."""

from __future__ import annotations

from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME

#: The latest and the earliest whole millisecond of the engine, in microseconds.
_LATEST_US = MAX_TIME // 1_000 * 1_000
_EARLIEST_US = -_LATEST_US


def timer_micros(expiry_ms: int) -> int:
    """Return the time of a timer in microseconds.

    The engine's times end in the year 294247, and Spark's do not. When the input has ended, the
    watermark is at that end, and code may add seconds to it. A time outside counts as the nearest one
    inside. No record has either, so nothing fires at another moment.

    Raises:
        ValueError: for a time beyond 64 bits, which PySpark cannot send either.
    """
    if not MIN_TIME <= expiry_ms <= MAX_TIME:
        raise ValueError(f"{expiry_ms} milliseconds are beyond what the time of a timer can be")
    return max(_EARLIEST_US, min(expiry_ms * 1_000, _LATEST_US))
