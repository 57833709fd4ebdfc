"""What ``LocalStore`` uses of ``os``, ``pathlib`` and ``open_regular``, upon a modelled disk.

What is not modelled is not there, so that a store that begins to use it fails loudly.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from headrace.storage import local
from tests.faults.power.disk import Directory, Disk, File


class DiskPath(PurePosixPath):
    """A path on the disk that is modelled at the moment."""

    disk: ClassVar[Disk]

    def absolute(self) -> DiskPath:
        assert self.is_absolute()
        return self

    def exists(self) -> bool:
        return self._kind() is not None

    def is_dir(self) -> bool:
        return self._kind() is Directory

    def is_mount(self) -> bool:
        return self == type(self)("/")

    def _kind(self) -> type | None:
        try:
            return type(self.disk.stat(str(self)))
        except FileNotFoundError:
            return None

    def is_symlink(self) -> bool:
        return False  # (there are no links on it)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        try:
            self.disk.mkdir(str(self))
        except FileNotFoundError:
            if not parents:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir(exist_ok=exist_ok)
        except FileExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.disk.unlink(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def iterdir(self) -> Iterator[DiskPath]:
        for name in self.disk.names(str(self)):
            yield self / name

    def glob(self, pattern: str) -> Iterator[DiskPath]:
        assert pattern == "*/.*.tmp"
        for folder in self.iterdir():
            if folder.is_dir():
                yield from (path for path in folder.iterdir() if path.match(".*.tmp"))

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_mtime=self.disk.stat(str(self)).changed)


class OpenFile(io.BytesIO):
    """A file that is read; it is its own number."""

    def fileno(self) -> Any:
        return self


class DiskOs:
    """Stands for the module ``os``."""

    O_WRONLY, O_RDONLY, O_CREAT = os.O_WRONLY, os.O_RDONLY, os.O_CREAT
    O_EXCL, O_DIRECTORY = os.O_EXCL, os.O_DIRECTORY
    PathLike = os.PathLike
    environ = os.environ
    getpid, strerror = staticmethod(os.getpid), staticmethod(os.strerror)

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.write = disk.write
        self.fsync = disk.fsync
        self.close = disk.close

    def open(self, path: DiskPath, flags: int, mode: int = 0o777) -> int:
        descriptor = self._disk.open(str(path), flags)
        if flags & os.O_DIRECTORY and not isinstance(self._disk.node(str(path)), Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        return descriptor

    def lstat(self, path: DiskPath) -> SimpleNamespace:
        kind = type(self._disk.stat(str(path)))
        return SimpleNamespace(st_mode=stat.S_IFDIR if kind is Directory else stat.S_IFREG)

    def fstat(self, file: OpenFile) -> SimpleNamespace:
        return SimpleNamespace(st_size=len(file.getbuffer()))

    def link(self, source: DiskPath, target: DiskPath) -> None:
        self._disk.link(str(source), str(target))

    @contextmanager
    def scandir(self, path: DiskPath) -> Iterator[list[Any]]:
        found = self._disk.names(str(path))
        yield [
            SimpleNamespace(name=name, is_file=lambda node=node, **_: isinstance(node, File))
            for name, node in found.items()
        ]


@contextmanager
def used_by_stores(disk: Disk) -> Iterator[None]:
    """Let all local stores have their files on a disk."""

    class Path(DiskPath):
        pass

    Path.disk = disk

    def open_regular(path: DiskPath) -> OpenFile:
        return OpenFile(disk.read(str(path)))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "Path", Path)
        patched.setattr(local, "os", DiskOs(disk))
        patched.setattr(local, "open_regular", open_regular)
        yield


@contextmanager
def a_process_of_its_own() -> Iterator[None]:
    """Let local stores know nothing of what others have done."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local.LocalStore, "_lasting", set())
        yield
