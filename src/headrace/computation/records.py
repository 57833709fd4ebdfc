"""What a handler is called with: a record, or a timer that has fired."""

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
        timestamp_us: its event time, in microseconds since 1970 UTC.
        stream: the name of the input stream; of a post the name that declares it.
    """

    value: V
    timestamp_us: int
    stream: str

    @property
    def timestamp(self) -> datetime:
        """The event time."""
        return from_micros(self.timestamp_us)


class Fired(msgspec.Struct, frozen=True, gc=False):
    """A timer that is due, as a handler sees it.

    Attributes:
        name: the attribute that declares it.
        tag: the tag it was set with.
        time_us: the time it was set for, in microseconds since 1970 UTC.
        domain: what that time is measured by.
    """

    name: str
    tag: str
    time_us: int
    domain: TimeDomain

    @property
    def time(self) -> datetime:
        """The time that the timer was set for."""
        return from_micros(self.time_us)
