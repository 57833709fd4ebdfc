"""Times as a test writes them: points in time, and offsets from one."""

from __future__ import annotations

from datetime import datetime

from headrace.errors import DriveError
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.eventtime.timestamps import (
    MIN_TIME,
    TimeLike,
    checked_micros,
    show_time,
)
from headrace.eventtime.units import check_unit

#: A point in time: an aware ``datetime``, microseconds since 1970 UTC, or a text. The text is ISO
#: 8601 with an offset, or a duration such as ``"+10s"``, which counts from the present time of what
#: is moved.
Moment = TimeLike | str


def moment_us(when: Moment, *, now_us: int = MIN_TIME) -> int:
    """Return a point in time as microseconds since 1970 UTC.

    Args:
        when: see :data:`Moment`.
        now_us: the time from which ``"+10s"`` counts; ``MIN_TIME`` if there is none yet.

    Raises:
        DriveError: if ``when`` is not a point in time, lacks a zone, or counts from no time.
    """
    if isinstance(when, str) and when.startswith("+"):
        return _ahead(when, now_us)
    try:
        micros = checked_micros(datetime.fromisoformat(when) if isinstance(when, str) else when)
        check_unit(micros, now_us)
        return micros
    except (ValueError, TypeError) as error:
        raise DriveError(
            f"{when!r} is not a point in time: {error}",
            remedy='write an aware datetime, microseconds as an int, "2024-05-01T12:00:00Z" or "+10s"',
        ) from None


def _ahead(when: str, now_us: int) -> int:
    if now_us <= MIN_TIME:
        raise DriveError(
            f"{when!r} is counted from where it stands, and it stands nowhere yet",
            remedy="give a point in time first",
        )
    by: DurationLike = when.removeprefix("+")
    return now_us + duration_micros(by)


def check_forward(what: str, before_us: int, after_us: int) -> None:
    """Check that a time that only moves forward does so.

    Raises:
        DriveError: if it would go back.
    """
    if after_us < before_us:
        raise DriveError(
            f"{what} stands at {show_time(before_us)} and cannot go back to {show_time(after_us)}",
            remedy="it only moves forward, as it does when the pipeline runs",
        )
