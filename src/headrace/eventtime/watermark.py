"""Watermark strategies of injectors, and the recursion that carries watermarks downstream.

MillWheel §4: the low watermark of a computation is the minimum over its oldest work and the low
watermarks of what feeds it. Here the *input* watermark of a computation is the minimum of the
*output* watermarks that feed it, and its output watermark the minimum of its input watermark and
of what it holds back.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME, DurationLike, duration_micros


class BoundedDelay(msgspec.Struct, frozen=True):
    """The injector's records are at most ``delay_us`` behind the newest one seen so far."""

    delay_us: int

    def after(self, highest_us: int) -> int:
        """Return the watermark after records up to a time were seen."""
        return highest_us if highest_us <= MIN_TIME else highest_us - self.delay_us


def bounded_delay(delay: DurationLike) -> BoundedDelay:
    """Return the strategy for records that come at most ``delay`` behind the newest.

    Args:
        delay: a timedelta, or a string such as ``"10s"``. What comes later is late.
    """
    return BoundedDelay(duration_micros(delay))


def ascending() -> BoundedDelay:
    """Return the strategy for records whose event time never goes back."""
    return BoundedDelay(0)


def lowest(watermarks: Iterable[int]) -> int:
    """Return the minimum; without any, nothing is to come (``MAX_TIME``)."""
    return min(watermarks, default=MAX_TIME)
