"""A storage that is watched: it may fail or hang, and its watcher's clock stands still."""

from __future__ import annotations

import threading

from headrace.errors import StorageError
from headrace.observe.watching import Clocks, StorageWatcher
from headrace.storage import MemoryStore

START_S = 1_800_000_000.0


class WatchedStore(MemoryStore):
    """A storage that counts its lists, and can be made to fail or to hang.

    Attributes:
        fails: what each operation says, if it is to fail.
        lists: how often names were listed.
        hangs: set while a list waits for ``goes_on``.
        goes_on: cleared to let lists hang.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails = ""
        self.lists = 0
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def list(self, prefix: str) -> list[str]:
        self.lists += 1
        if self.fails:
            raise StorageError(self.fails, place="s3://ann:secret@bucket/x")
        if not self.goes_on.is_set():
            self.hangs.set()
            assert self.goes_on.wait(60)
        return super().list(prefix)


class StoppedClock:
    """A clock that a test moves.

    Attributes:
        now_s: seconds since it was started.
    """

    def __init__(self) -> None:
        self.now_s = 0.0

    @property
    def clocks(self) -> Clocks:
        """The clocks of a watcher, both of which this one moves."""
        return Clocks(lambda: round((START_S + self.now_s) * 1e6), lambda: self.now_s)


def watched(
    store: MemoryStore, clock: StoppedClock | None = None, number: int = 1
) -> StorageWatcher:
    """Return a watcher that reads a storage at most once a second."""
    clocks = (clock or StoppedClock()).clocks
    return StorageWatcher(number, store, f"s3://bucket/{number}", every_s=1.0, clocks=clocks)
