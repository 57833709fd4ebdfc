"""Soft files: what uncheckpointed steps write beside the storage, where it may be lost.

An uncheckpointed step (see :class:`headrace.Settings`) does not write its changes to the storage.
It leaves them on the host, unsynced. The next checkpoint reads them there, because it writes all
changes since the last one. Processes that have to read bins again read them, too. Losing a soft
file costs time: the steps since the last checkpoint are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from headrace.errors import NotFound, StateLost, StorageDenied
from headrace.storage.base import Store
from headrace.storage.local import make_directory, private, read_range, typed_errors, within
from headrace.storage.memory import MemoryStore
from headrace.storage.regular import open_regular

#: The beginning of the names of soft files.
SOFT = "soft/"


def is_soft(name: str) -> bool:
    """Return whether a name is that of a soft file."""
    return name.startswith(SOFT)


def own_directory(path: str) -> str:
    """Return a directory that belongs to this user alone. It is made if it does not exist.

    Raises:
        StorageDenied: when it belongs to another user, is a link, or others can write there.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StorageDenied(
            "the place for files of this host belongs to another user, or others can write there",
            place=path,
            remedy="remove it, or set TMPDIR to a directory of this user's own",
        )
    return path


class HostFiles(Store):
    """Files in a directory of the host. They are never synced, so they rarely reach the disk.

    Args:
        directory: the path of the directory. It is removed with the application it belongs to.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._root = Path(directory)

    @property
    def location(self) -> str:
        return str(self._root)

    def create(self, name: str, data: bytes) -> None:
        raise AssertionError("soft files are written under names of their own")

    def write(self, name: str, data: bytes) -> None:
        path = within(self._root, name)
        with typed_errors(path):
            make_directory(path.parent)
            with open(path, "xb", buffering=0, opener=private) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) or 0 :]

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = within(self._root, name)
        with typed_errors(path), open_regular(path) as file:
            return read_range(file, offset, length)

    def list(self, prefix: str) -> list[str]:
        directory = within(self._root, prefix.rpartition("/")[0])
        found: list[str] = []
        with contextlib.suppress(NotFound), typed_errors(directory):
            found = [str(path.relative_to(self._root)) for path in directory.iterdir()]
        return sorted(name for name in found if name.startswith(prefix))

    def delete(self, name: str) -> None:
        path = within(self._root, name, of_link=True)
        with typed_errors(path):
            path.unlink(missing_ok=True)


class WithSoftFiles(Store):
    """A storage, with a place on the host for files that may be lost. Tasks see both as one store.

    Args:
        store: the durable store.
        soft: the store of soft files. By default it is in memory.

    Raises:
        StateLost: by :meth:`read`, for a soft file that is missing or incomplete.
    """

    def __init__(self, store: Store, soft: Store | None = None) -> None:
        self._store = store
        self._soft = soft or MemoryStore()

    @property
    def location(self) -> str:
        return self._store.location

    @property
    def uncached(self) -> Store:
        return WithSoftFiles(self._store.uncached, self._soft)

    def _of(self, name: str) -> Store:
        return self._soft if is_soft(name) else self._store

    def create(self, name: str, data: bytes) -> None:
        self._of(name).create(name, data)

    def write(self, name: str, data: bytes) -> None:
        self._of(name).write(name, data)

    def write_all(self, files: dict[str, bytes]) -> None:
        for soft in (False, True):
            chosen = {name: data for name, data in files.items() if is_soft(name) is soft}
            if chosen:
                (self._soft if soft else self._store).write_all(chosen)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if not is_soft(name):
            return self._store.read(name, offset, length)
        try:
            data = self._soft.read(name, offset, length)
        except NotFound:
            data = b""
        if not data or (length is not None and len(data) < length):
            raise StateLost(f"{name} is gone", remedy="nothing: it is computed again")
        return data

    def list(self, prefix: str) -> list[str]:
        return self._of(prefix).list(prefix)

    def settle(self, name: str) -> None:
        self._of(name).settle(name)

    def tidy(self) -> None:
        self._store.tidy()

    def delete(self, name: str) -> None:
        self._of(name).delete(name)


def soft_folder(store: Store, layer: int, worker: int) -> str:
    """Return the folder of a worker's soft files. Other pipelines on the host have others."""
    of = hashlib.blake2b(store.location.encode(), digest_size=6).hexdigest()
    return f"{SOFT}{of}/l{layer}-w{worker}/"
