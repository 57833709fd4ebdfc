"""Compares the latencies while state moved with those before."""

from __future__ import annotations

import math

import msgspec

from headrace.nexmark.harness.latency import Latencies
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.observed import Moved, Observations

#: The effects of a migration are taken to be over this many seconds after its end.
_AFTER_S = 1.0


class Compared(msgspec.Struct, frozen=True):
    """The latencies of two windows: of equal length, unless the migration took longer.

    Attributes:
        steady: of events that were done before any state moved.
        moving: of events from the first one on that was not done when a migration started. Of
            several migrations it is the one with the longest latency.
        moved: that migration; None if nothing moved. Then ``moving`` is empty.
    """

    steady: Latencies
    moving: Latencies
    moved: Moved | None

    @property
    def ratio(self) -> float:
        """The longest latency while state moved over the longest before; NaN without the latter."""
        longest = self.steady.max_ms
        return self.moving.max_ms / longest if longest else float("nan")


def compared(seen: Observations, load: LoadTest) -> Compared:
    """Return the latencies while state moved, compared with those before.

    The window of a migration ends where that of the next one begins.
    """
    first, last = load.window
    if not seen.moved:
        return Compared(seen.latencies.between(first, last), seen.latencies.between(0, 0), None)
    in_turn = sorted(seen.moved, key=lambda one: one.held_s)
    end, *others = (one.held_s for one in in_turn)
    windows = [
        (seen.latencies.between(one.held_s, min(_end_of(one, end - first), following)), one)
        for one, following in zip(in_turn, [*others, math.inf], strict=True)
    ]
    moving, moved = max(windows, key=lambda found: found[0].max_ms)
    return Compared(seen.latencies.between(first, end), moving, moved)


def _end_of(moved: Moved, seconds: float) -> float:
    return max(moved.ended_s + _AFTER_S, moved.held_s + seconds)
