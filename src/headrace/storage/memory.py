"""A store in memory, for tests, simulation and notebooks. It ends with the process."""

from __future__ import annotations

import threading
from typing import ClassVar
from weakref import WeakValueDictionary

from headrace.errors import AlreadyExists, NotFound
from headrace.storage.base import Store


class MemoryStore(Store):
    """A dictionary that fulfils the contract of a store."""

    _named: ClassVar[dict[str, MemoryStore]] = {}
    _unnamed: ClassVar[WeakValueDictionary[str, MemoryStore]] = WeakValueDictionary()
    _made: ClassVar[int] = 0

    def __init__(self, name: str | None = None) -> None:
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()
        if name is None:
            MemoryStore._made += 1
            self._name = f"unnamed-{MemoryStore._made}"
            MemoryStore._unnamed[self._name] = self  # it lives as long as it is referred to
        else:
            self._name = name
            MemoryStore._named[name] = self

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return the store of that name in this process. It is made when it is first asked for."""
        return cls._named.get(name) or cls._unnamed.get(name) or cls(name)

    @property
    def location(self) -> str:
        return f"memory:{self._name}"

    def create(self, name: str, data: bytes) -> None:
        with self._lock:
            if name in self._files:
                raise AlreadyExists(f"{name} exists", place=self.location)
            self._files[name] = bytes(data)

    def write(self, name: str, data: bytes) -> None:
        with self._lock:
            self._files[name] = bytes(data)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            if name not in self._files:
                raise NotFound(f"{name} is not there", place=self.location)
            data = self._files[name]
        return data[offset:] if length is None else data[offset : offset + length]

    def list(self, prefix: str) -> list[str]:
        with self._lock:
            return sorted(name for name in self._files if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._lock:
            self._files.pop(name, None)

    def clear(self) -> None:
        """Remove all names."""
        with self._lock:
            self._files.clear()
