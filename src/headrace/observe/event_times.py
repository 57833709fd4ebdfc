"""An event time as observers show it: as text, and as a number."""

from __future__ import annotations

import msgspec

from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US, show_time


class EventTime(msgspec.Struct, frozen=True):
    """An event time or a watermark.

    Attributes:
        text: RFC 3339; ``end`` after all input, None before any.
        seconds: seconds since 1970; None before any input and after all.
    """

    text: str | None
    seconds: float | None

    @classmethod
    def of(cls, micros: int) -> EventTime:
        """Return the event time of a number of microseconds since 1970."""
        if micros < FIRST_DATE_US:
            return cls(None, None)
        return cls(show_time(micros), micros / 1e6 if micros <= LAST_DATE_US else None)
