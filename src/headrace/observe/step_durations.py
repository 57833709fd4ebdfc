"""How long the steps of a run took, counted in buckets, for a histogram of metrics.

Storage keeps the newest steps only, so the driver counts all of its own.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from headrace.protocol.step_summary import StepSummary

#: Upper bounds of the buckets, in seconds. The last bucket has none.
BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class StepDurations:
    """Counts steps by how long they took. A listener of a run. Safe to use from any thread.

    Args:
        pipeline: the name of the pipeline.
    """

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def __call__(self, done: StepSummary) -> None:
        """Count a step."""
        with self._lock:
            self._counts[bisect_left(BOUNDS, done.seconds)] += 1
            self._seconds += done.seconds

    def up_to(self) -> tuple[list[tuple[float, int]], float]:
        """Return how many steps took up to each bound, the last one infinite; and their seconds."""
        with self._lock:
            counts, seconds = list(self._counts), self._seconds
        found, total = [], 0
        for bound, count in zip([*BOUNDS, float("inf")], counts, strict=True):
            total += count
            found.append((bound, total))
        return found, seconds
