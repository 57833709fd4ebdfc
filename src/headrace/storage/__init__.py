"""Storage: named bytes that are created once, read by range, and deleted."""

from __future__ import annotations

from headrace.storage.base import Store
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore

__all__ = ["LocalStore", "MemoryStore", "Store", "open_store"]


def open_store(location: str) -> Store:
    """Return the store at a location: ``memory:NAME``, or a directory."""
    if location.startswith("memory:"):
        return MemoryStore.named(location.removeprefix("memory:"))
    return LocalStore(location)
