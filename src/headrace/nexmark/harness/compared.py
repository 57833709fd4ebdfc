"""How late events were while state moved, beside how late they were before."""

from __future__ import annotations

import msgspec

from headrace.nexmark.harness.latency import Latencies
from headrace.nexmark.harness.load import Load
from headrace.nexmark.harness.seen import Moved, Seen

#: The steady window ends so long before the first migration: the last steps before may wait for it.
_APART_S = 2.0
#: What a migration has held up is done so long after its end.
_AFTER_S = 1.0


class Compared(msgspec.Struct, frozen=True):
    """Latencies of two windows, each as long as the other, or as the migration was.

    Attributes:
        steady: before anything moved.
        moving: from when a migration began; of several the one whose longest latency is the longest.
        moved: that migration; None where nothing moved, and then ``moving`` is empty.
    """

    steady: Latencies
    moving: Latencies
    moved: Moved | None

    @property
    def ratio(self) -> float:
        """The longest latency while state moved, over the longest before."""
        return self.moving.max_ms / self.steady.max_ms


def compared(seen: Seen, load: Load) -> Compared:
    """Compare what was seen while state moved with what was seen before."""
    first, last = load.window
    if not seen.moved:
        return Compared(seen.latencies.between(first, last), seen.latencies.between(0, 0), None)
    end = min(one.began_s for one in seen.moved) - _APART_S
    windows = [
        (seen.latencies.between(one.began_s, _end_of(one, end - first)), one) for one in seen.moved
    ]
    moving, moved = max(windows, key=lambda found: found[0].max_ms)
    return Compared(seen.latencies.between(first, end), moving, moved)


def _end_of(moved: Moved, seconds: float) -> float:
    return max(moved.ended_s + _AFTER_S, moved.began_s + seconds)
