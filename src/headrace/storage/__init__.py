"""Storage: named bytes that are created once, read by range, and deleted."""

from __future__ import annotations

import importlib
import os
import re

from headrace.errors import PipelineError
from headrace.storage.base import Store
from headrace.storage.local import LocalStore
from headrace.storage.memory import MemoryStore
from headrace.storage.objects import ObjectStore
from headrace.storage.remote import is_remote, open_remote

__all__ = ["LocalStore", "MemoryStore", "ObjectStore", "Store", "open_store"]

_OWN = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*):(.*)")


def open_store(location: str | os.PathLike[str] | Store) -> Store:
    """Return the store at a location. A store is returned as it is.

    Args:
        location: one of

            - a directory
            - ``s3://BUCKET/PREFIX``, or the same with ``gs://`` or ``az://``
            - ``webhdfs://HOST:PORT/PATH``
            - ``memory:NAME``
            - ``MODULE:CLASS:REST`` for a class of your own, which driver and executors can import.
              It is called with ``REST``.

            Remote locations may end with ``?cache=256MiB``: how much of what it has read a process
            keeps.

    Example::

        store = open_store("state/visits")
        print(len(store.list("")), "files")

    Raises:
        PipelineError: for an invalid location, or a class that is not a store.
    """
    if isinstance(location, Store):
        return location
    location = os.fspath(location)
    if is_remote(location):
        return open_remote(location)
    if location.startswith("memory:"):
        return MemoryStore.named(location.removeprefix("memory:"))
    own = _OWN.fullmatch(location)
    if own is None:
        return LocalStore(location)
    module, name, rest = own.groups()
    store = getattr(importlib.import_module(module), name)(rest)
    if not isinstance(store, Store):
        raise PipelineError(
            f"{module}:{name} is not a store", remedy="subclass headrace.storage.Store"
        )
    return store
