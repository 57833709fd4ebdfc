"""A store that fails at the n-th operation: before it, after it, or with its reply lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.errors import StorageError, StorageFull
from headrace.errors.user_code import FromOutside
from headrace.storage.base import Store

T = TypeVar("T")
ACTS = ["crash before", "crash after", "error", "lost reply", "full from here on"]


class SimulatedCrash(FromOutside):
    """The end of a process; nothing may catch it."""


class FaultStore(Store):
    """Passes everything on, and does what was planned at one operation.

    Args:
        inner: the store.
        at: which operation, from 1; 0 for none.
        act: what happens there, one of ``ACTS``.
    """

    def __init__(self, inner: Store, at: int = 0, act: str = "") -> None:
        self.inner = inner
        self.operations = 0
        self._at = at
        self._act = act

    @property
    def location(self) -> str:
        return self.inner.location

    def _do(self, work: Callable[[], T], *, writes: bool = False) -> T:
        self.operations += 1
        act = self._act if self.operations == self._at else ""
        if self._act == "full from here on" and self._at and self.operations >= self._at and writes:
            raise StorageFull("no room is left", remedy="make room and start again")
        if act == "crash before":
            raise SimulatedCrash
        if act == "error":
            raise StorageError("the disk hiccupped")
        result = work()
        if act == "crash after":
            raise SimulatedCrash
        if act == "lost reply":
            raise StorageError("the reply was lost")
        return result

    def create(self, name: str, data: bytes) -> None:
        self._do(lambda: self.inner.create(name, data), writes=True)

    def write(self, name: str, data: bytes) -> None:
        self._do(lambda: self.inner.write(name, data), writes=True)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._do(lambda: self.inner.read(name, offset, length))

    def list(self, prefix: str) -> list[str]:
        return self._do(lambda: self.inner.list(prefix))

    def delete(self, name: str) -> None:
        self._do(lambda: self.inner.delete(name))
