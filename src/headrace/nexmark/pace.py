"""When events are due: an open loop, in which events come by the clock, however slow the system."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.errors import PipelineError
from headrace.nexmark.timeline import Timeline

_SECOND = 1_000_000


def now_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1_000


class Pace:
    """A fixed number of events a second, by a clock.

    Args:
        rate: events a second.
        begin_us: when events start to come, in microseconds since 1970. By default they start at
            the first question. Give it if it must be the same after a restart.
        now_us: the clock.

    Several sources may share a pace. Then their events are due at the same times.
    """

    def __init__(
        self, rate: int, *, begin_us: int | None = None, now_us: Callable[[], int] = now_us
    ) -> None:
        if not 1 <= rate <= 10**12:
            raise PipelineError(f"nexmark: {rate!r} is not a number of events a second")
        self.rate = rate
        self._begin_us = begin_us
        self._now_us = now_us

    @property
    def begun(self) -> bool:
        """Whether it is fixed when events start to come."""
        return self._begin_us is not None

    @property
    def begin_us(self) -> int:
        """When events start to come."""
        if self._begin_us is None:
            self._begin_us = self._now_us()
        return self._begin_us

    def due(self) -> int:
        """Return how many events are due by now."""
        passed = self._now_us() - self.begin_us
        seconds, rest = divmod(max(passed, 0), _SECOND)
        return seconds * self.rate + rest * self.rate // _SECOND

    def due_us(self, arrivals: Any) -> Any:
        """Return when events are due, by their places in the order of arrival (an int or array)."""
        seconds, rest = (arrivals + 1) // self.rate, (arrivals + 1) % self.rate
        return self.begin_us + seconds * _SECOND - (-rest * _SECOND // self.rate)


def there(timeline: Timeline, pace: Pace | None, history: int = 0) -> int | None:
    """Return how many events have come by now, including a history that precedes the clock.

    None if they are unlimited.
    """
    if pace is None:
        return timeline.events
    due = history + pace.due()
    return due if timeline.events is None else min(due, timeline.events)
