"""A store that is as slow as one across a network: each call takes time, and so do its bytes.

Calls of one process may wait in parallel. Their bytes are transferred one after another.
"""

from __future__ import annotations

import threading
import time

from headrace.storage import LocalStore, Store

#: Shared by all stores of a process.
_WIRE = threading.Lock()


class ThrottledStore(Store):
    """A directory behind a delay for each call and a bandwidth for each process.

    Args:
        rest: ``MILLISECONDS:MEGABYTES_PER_SECOND:DIRECTORY``, as in its location.
    """

    def __init__(self, rest: str) -> None:
        self._rest = rest
        call_ms, megabytes, folder = rest.split(":", 2)
        self._call_s = float(call_ms) / 1e3
        self._byte_s = 1 / (float(megabytes) * 1e6)
        self._store = LocalStore(folder)

    @property
    def location(self) -> str:
        return f"benchmarks.throttled:ThrottledStore:{self._rest}"

    def _wait(self, nbytes: int = 0) -> None:
        time.sleep(self._call_s)
        with _WIRE:
            time.sleep(nbytes * self._byte_s)

    def create(self, name: str, data: bytes) -> None:
        self._wait(len(data))
        self._store.create(name, data)

    def write(self, name: str, data: bytes) -> None:
        self._wait(len(data))
        self._store.write(name, data)

    def write_all(self, files: dict[str, bytes]) -> None:
        self._wait(sum(len(data) for data in files.values()))  # in parallel
        self._store.write_all(files)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._store.read(name, offset, length)
        self._wait(len(data))
        return data

    def list(self, prefix: str) -> list[str]:
        self._wait()
        return self._store.list(prefix)

    def delete(self, name: str) -> None:
        self._store.delete(name)  # nothing waits for clean-up
