"""What opening bins takes: how many, how many bytes, how long. For estimates, never part of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa


def _no_time() -> float:
    return 0.0


class OpeningCost:
    """Adds up what was opened.

    Args:
        timer: a monotonic clock, in seconds; by default time stands still.

    Attributes:
        bins, nbytes: how many bins, and how large their rows are in memory.
        seconds: how long it took.
    """

    def __init__(self, timer: Callable[[], float] = _no_time) -> None:
        self.bins = 0
        self.nbytes = 0
        self.seconds = 0.0
        self.timer = timer

    def note(self, bins: int, tables: Iterable[tuple[str, pa.Table]], begun: float) -> None:
        """Note that some bins were opened, since a reading of the timer."""
        self.bins += bins
        self.nbytes += sum(table.nbytes for _, table in tables)
        self.seconds += self.timer() - begun
