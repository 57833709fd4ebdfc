"""A store in front of another one."""

from __future__ import annotations

from collections.abc import Callable

from headrace.storage.base import Store


class WrappedStore(Store):
    """A store that asks another one for all that it does not do itself.

    Args:
        inner: the other store.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def location(self) -> str:
        return self.inner.location

    @property
    def uncached(self) -> Store:
        return self.inner.uncached

    def create(self, name: str, data: bytes) -> None:
        self.inner.create(name, data)

    def write(self, name: str, data: bytes) -> None:
        self.inner.write(name, data)

    def write_all(self, files: dict[str, bytes]) -> None:
        self.inner.write_all(files)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.inner.read(name, offset, length)

    def list(self, prefix: str) -> list[str]:
        return self.inner.list(prefix)

    def settle(self, name: str) -> None:
        self.inner.settle(name)

    def tidy(self) -> None:
        self.inner.tidy()

    def sweep(self, folder: str, beside: str, ours: Callable[[str], bool]) -> int:
        return self.inner.sweep(folder, beside, ours)

    def delete(self, name: str) -> None:
        self.inner.delete(name)
