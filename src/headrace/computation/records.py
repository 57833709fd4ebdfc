"""What a handler is called with: a record, or a timer that fired."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import from_micros

V = TypeVar("V", default=Any)


class Record(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """A record as a handler sees it.

    Attributes:
        value: the value, of the stream's type.
        timestamp_us: the event time, in microseconds since 1970 UTC.
        stream: the name of the input stream; for a post, the name of its declaration.

    Example::

        def process_record(self, ctx, record):
            self.last.value = record.timestamp
            ctx.produce("pages", f"{record.stream}: {record.value.page}")
    """

    value: V
    timestamp_us: int
    stream: str

    @property
    def timestamp(self) -> datetime:
        """The event time."""
        return from_micros(self.timestamp_us)


class Fired(msgspec.Struct, frozen=True, gc=False):
    """A timer that fired, as a handler sees it.

    Attributes:
        name: the name of its declaration.
        tag: the tag with which it was set.
        time_us: the time for which it was set, in microseconds since 1970 UTC.
        domain: the clock by which that time is measured.

    Example::

        def process_timer(self, ctx, timer):
            if timer.name == "hour_over":
                ctx.produce("hours", timer.time - timedelta(hours=1))
    """

    name: str
    tag: str
    time_us: int
    domain: TimeDomain

    @property
    def time(self) -> datetime:
        """The time for which the timer was set."""
        return from_micros(self.time_us)
