"""How much memory the Python workers of this driver's Spark take, and how much disk a storage takes."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from types import TracebackType

import psutil

GIB = 1 << 30
_EVERY_S = 0.5


class MemoryWatch:
    """Looks now and then at the Python processes below this one.

    Attributes:
        seen: (when, in microseconds since 1970, bytes): resident and swapped memory less what is shared,
            summed over the processes.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
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
            self.seen.append((time.time_ns() // 1_000, worker_bytes()))

    @property
    def peak_bytes(self) -> int:
        """The most that they took together."""
        return max((taken for _, taken in self.seen), default=0)


def worker_bytes() -> int:
    """Return what the Python processes below this one take at this moment."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.name().startswith("python"):
                total += _own_bytes(process)
    return total


def _own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    # What is swapped out takes a walk over the process's maps, so only where there is swap.
    swapped = process.memory_full_info().swap if psutil.swap_memory().used else 0
    return int(memory.rss - memory.shared + swapped)


def bytes_on_disk(folder: Path) -> int:
    """Return how much the files of a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
