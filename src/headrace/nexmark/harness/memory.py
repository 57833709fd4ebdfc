"""The memory and processor time that the Python workers of this driver's Spark use."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import TracebackType

import psutil

GIB = 1 << 30
_EVERY_S = 0.5


class MemoryWatch:
    """Samples the Python processes below this one, at regular intervals.

    Attributes:
        seen: (when, in microseconds since 1970, bytes): resident and swapped memory less shared
            memory, summed over the processes.
        busy: (when, seconds of processor time that the live processes have used so far).
    """

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.busy: list[tuple[int, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            now, workers = time.time_ns() // 1_000, list(_workers())
            self.seen.append((now, sum(taken for taken, _ in workers)))
            self.busy.append((now, sum(spent for _, spent in workers)))

    @property
    def peak_bytes(self) -> int:
        """The most bytes that they used together."""
        return max((taken for _, taken in self.seen), default=0)


def _workers() -> Iterator[tuple[int, float]]:
    """Yield the bytes and the seconds of processor time of each Python process below this one."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.name().startswith("python"):
                times = process.cpu_times()
                yield _own_bytes(process), times.user + times.system


def _own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    # Finding out what is swapped walks over the process's maps, so it is done only if there is
    # swap.
    swapped = process.memory_full_info().swap if psutil.swap_memory().used else 0
    return int(memory.rss - memory.shared + swapped)
