"""The two clocks by which timers fire and state expires: event time and wall time."""

from __future__ import annotations

from enum import StrEnum


class TimeDomain(StrEnum):
    """The clock by which a timer's time is measured.

    Example::

        over = hr.Timer(hr.EVENT_TIME)  # fires when the watermark is there
        retry = hr.Timer(hr.WALL_TIME)  # fires when the clock is there
    """

    EVENT_TIME = "event_time"
    WALL_TIME = "wall_time"


EVENT_TIME = TimeDomain.EVENT_TIME
WALL_TIME = TimeDomain.WALL_TIME
