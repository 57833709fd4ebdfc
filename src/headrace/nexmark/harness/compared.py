"""How late events were while state moved, beside how late they were before."""

from __future__ import annotations

import math

import msgspec

from headrace.nexmark.harness.latency import Latencies
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.observed import Moved, Observations

#: What a migration has held up is done so long after its end.
_AFTER_S = 1.0


class Compared(msgspec.Struct, frozen=True):
    """Latencies of two windows, each as long as the other, or as the migration was.

    Attributes:
        steady: of events that were done before anything moved.
        moving: from the first event on that was not done when a migration began; of several migrations
            that whose longest latency is the longest.
        moved: that migration; None where nothing moved, and then ``moving`` is empty.
    """

    steady: Latencies
    moving: Latencies
    moved: Moved | None

    @property
    def ratio(self) -> float:
        """The longest latency while state moved, over the longest before; NaN if nothing was before."""
        longest = self.steady.max_ms
        return self.moving.max_ms / longest if longest else float("nan")


def compared(seen: Observations, load: LoadTest) -> Compared:
    """Compare what was seen while state moved with what was seen before.

    A migration's window ends where that of the next begins.
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
