"""The cost of opening bins: number, bytes and time. For estimates only, never part of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa


def _no_time() -> float:
    return 0.0


class OpeningCost:
    """A sum over the bins that were opened.

    Args:
        timer: a monotonic clock, in seconds. By default time stands still.

    Attributes:
        bins: the number of bins.
        states: how many computations have opened some.
        nbytes: the size of their rows in memory, in bytes.
        seconds: how long it took to open them.
    """

    def __init__(self, timer: Callable[[], float] = _no_time) -> None:
        self.bins = 0
        self.states = 0
        self.nbytes = 0
        self.seconds = 0.0
        self.timer = timer

    def note(self, bins: int, tables: Iterable[tuple[str, pa.Table]], begun: float) -> None:
        """Add some bins that were opened.

        Args:
            bins: the number of bins.
            tables: their rows, by section.
            begun: the reading of the timer when their opening started.
        """
        self.bins += bins
        self.nbytes += sum(table.nbytes for _, table in tables)
        self.seconds += self.timer() - begun
