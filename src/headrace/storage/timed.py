"""How long a store takes to answer, as whoever reads from it sees it.

Plans of migrations go by it, since the new owner of a bin reads its state. Results never depend on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from headrace.storage.base import Store
from headrace.storage.wrapped import WrappedStore

#: Reads of more bytes than this are large: most of their time is that of their bytes.
LARGE_BYTES = 64 << 10
#: A read that takes less time, in seconds, was answered by a cache and says nothing of the store.
_CACHED_S = 20e-6


class ReadTimes(msgspec.Struct, frozen=True, array_like=True):
    """How long some reads took, summed.

    Attributes:
        calls, nbytes, took_us: the number of small reads and listings, their bytes, and their time
            in microseconds. Reads that run in parallel count one by one.
        large_calls, large_bytes, large_us: the same of reads of more than ``LARGE_BYTES``.
    """

    calls: int = 0
    nbytes: int = 0
    took_us: float = 0.0
    large_calls: int = 0
    large_bytes: int = 0
    large_us: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.calls or self.large_calls)


class TimedReads(WrappedStore):
    """A store that notes how long reads and listings take. Usable from any thread.

    Writes are not noted: a local file that is made durable takes a hundred times as long as a read.

    Args:
        inner: the store.
        timer: a monotonic clock, in seconds.
    """

    def __init__(self, inner: Store, timer: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(inner)
        self._timer = timer
        self._lock = threading.Lock()
        self._small = [0, 0, 0.0]
        self._large = [0, 0, 0.0]

    def take(self) -> ReadTimes:
        """Return what was noted since the last call."""
        with self._lock:
            small, self._small = self._small, [0, 0, 0.0]
            large, self._large = self._large, [0, 0, 0.0]
        return ReadTimes(
            int(small[0]), int(small[1]), small[2], int(large[0]), int(large[1]), large[2]
        )

    def _note(self, begun: float, nbytes: int) -> None:
        took = self._timer() - begun
        if took < _CACHED_S:
            return
        with self._lock:
            sums = self._large if nbytes > LARGE_BYTES else self._small
            sums[0] += 1
            sums[1] += nbytes
            sums[2] += took * 1e6

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        begun = self._timer()
        data = self.inner.read(name, offset, length)
        self._note(begun, len(data))
        return data

    def list(self, prefix: str) -> list[str]:
        begun = self._timer()
        found = self.inner.list(prefix)
        self._note(begun, 0)
        return found
