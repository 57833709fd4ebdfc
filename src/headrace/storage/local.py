"""Files in a directory, on a local disk or on a file system that all hosts mount."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

from headrace.errors import (
    AlreadyExists,
    Damaged,
    NotFound,
    PipelineError,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from headrace.storage.base import Store
from headrace.storage.names import leads_out, name_to_be
from headrace.storage.regular import NotRegular, open_regular

#: A temporary file that is older than the newest file beside it by more than this is abandoned.
_ASIDE_FOR_S = 900
#: Shorter ranges are read without looking up the length of the file.
_WORTH_A_LOOK = 1 << 20
#: Fewer bytes are written faster than a thread is started.
_WORTH_A_THREAD = 1 << 20
Access = Literal["owner", "group", "all"]
#: The environment variable that says who may access what stores write.
ACCESS = "HEADRACE_STORAGE_ACCESS"
#: Modes of files and folders, by access.
_MODES = {"owner": (0o600, 0o700), "group": (0o660, 0o770), "all": (0o666, 0o777)}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
#: Identifies this process: process ids are not unique across containers and hosts.
_TOKEN = os.urandom(8).hex()
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class LocalStore(Store):
    """A directory. To create a name, a temporary file is written, synced, and linked to the name.

    Durability: file and directory are synced before a call returns. (Measured: 0.4 ms each on the
    machine this was developed on, so it cannot be switched off.)

    Args:
        directory: the path of the directory. It is made when something is first written.
        access: who may access new files and folders: their ``owner`` alone, the owner's ``group``,
            or ``all``. The umask then takes its part away. By default this is what
            ``HEADRACE_STORAGE_ACCESS`` in the environment says, and otherwise the owner.

    Raises:
        PipelineError: for any other value of ``access``, as when the environment has one.
    """

    _numbers = itertools.count()
    #: Directories whose names this process knows to be durable.
    _lasting: ClassVar[set[Path]] = set()

    def __init__(self, directory: str | os.PathLike[str], *, access: Access | None = None) -> None:
        self._root = Path(directory).absolute()
        self._modes = _modes(access)
        self._known_directories: set[Path] = set()
        self._unsure: set[Path] = set()  # names that may not be durable: a sync has failed

    @property
    def location(self) -> str:
        return str(self._root)

    def create(self, name: str, data: bytes) -> None:
        path = within(self._root, name)
        with typed_errors(path):
            self._make_directory(path.parent)
            while not self._created(path, data):
                pass

    def _created(self, path: Path, data: bytes) -> bool:
        """Create a file, unless the temporary one that is to become it was removed meanwhile.

        Another process does that when this one has stalled for long: see :meth:`tidy`.
        """
        number = f"{_TOKEN}-{os.getpid()}-{next(self._numbers)}"
        aside = path.with_name(f".{path.name}.{number}.tmp")
        try:
            _write_synced(aside, data, self._modes[0])
            with self._synced(path):
                os.link(aside, path)
        except FileNotFoundError:
            if aside.exists() or not path.parent.is_dir():
                raise
            return False
        finally:
            aside.unlink(missing_ok=True)
        return True

    def write(self, name: str, data: bytes) -> None:
        path = within(self._root, name)
        with typed_errors(path):
            self._make_directory(path.parent)
            _write_synced(path, data, self._modes[0])
            _sync_directory(path.parent)

    def write_all(self, files: dict[str, bytes]) -> None:
        # In parallel: then the file system writes its journal once for all of them.
        if len(files) < 2 or sum(map(len, files.values())) < _WORTH_A_THREAD:
            super().write_all(files)
            return
        self._write_side_by_side(files, len(files))

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = within(self._root, name)
        with typed_errors(path), open_regular(path) as file:
            if path in self._unsure:
                with self._synced(path):
                    pass
            return read_range(file, offset, length)

    def list(self, prefix: str) -> list[str]:
        directory, _, start = prefix.rpartition("/")
        root = within(self._root, directory)
        with typed_errors(root):
            if not root.is_dir():
                return []
            with os.scandir(root) as entries:
                names = [entry.name for entry in entries if entry.is_file()]
        join = f"{directory}/" if directory else ""
        return sorted(
            join + name for name in names if name.startswith(start) and not name.startswith(".")
        )

    def settle(self, name: str) -> None:
        path = within(self._root, name)
        with typed_errors(path):
            _sync_directory(path.parent)

    def tidy(self) -> None:
        """Remove temporary files of processes that were killed."""
        with typed_errors(self._root):
            for path in self._root.glob("*/.*.tmp"):
                if path.parent.is_symlink():
                    continue  # it is not known whose files these are
                with contextlib.suppress(FileNotFoundError):
                    newest = max(item.stat().st_mtime for item in path.parent.iterdir())
                    if newest - path.stat().st_mtime > _ASIDE_FOR_S:
                        path.unlink()

    def sweep(self, folder: str, beside: str, ours: Callable[[str], bool]) -> int:
        root, young = within(self._root, folder), 0
        with typed_errors(root):
            now = within(self._root, beside).stat().st_mtime
            with os.scandir(root) as entries:
                names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
            for name in names:
                if not ours(name_to_be(name)):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if now - (root / name).stat().st_mtime > _ASIDE_FOR_S:
                        (root / name).unlink()
                    else:
                        young += 1
        return young

    def delete(self, name: str) -> None:
        path = within(self._root, name, of_link=True)
        with typed_errors(path):
            path.unlink(missing_ok=True)

    def _make_directory(self, directory: Path) -> None:
        """Make a directory, and make its name durable.

        An existing directory is synced, too: its creator may have been killed before that.
        """
        if directory in self._known_directories and directory.is_dir():
            return
        path_up = [directory, *directory.parents]
        self._lasting.difference_update(path for path in path_up if not path.exists())
        try:
            make_directory(directory, self._modes[1])
        except FileNotFoundError as error:  # so says /proc of what cannot be made there
            raise OSError(errno.EROFS, "no directory can be made there") from error
        for path in path_up:
            if path in self._lasting or path.is_mount():
                break
            with contextlib.suppress(PermissionError):  # who may not read there made nothing there
                _sync_directory(path.parent)
        self._lasting.update(path_up)
        self._known_directories.add(directory)

    @contextmanager
    def _synced(self, path: Path) -> Iterator[None]:
        """Sync a name after it was created, even if another process has created it.

        A process that finds a name taken relies on it, although its creator may have been killed
        before it was durable. The same holds for a process that finds a name after its own create
        has failed: see :meth:`read`.
        """
        self._unsure.add(path)
        try:
            yield
        finally:
            _sync_directory(path.parent)
            self._unsure.discard(path)


def _modes(access: str | None) -> tuple[int, int]:
    """Return the modes of new files and folders, to which the umask is then applied."""
    chosen = os.environ.get(ACCESS, "owner") if access is None else access
    if chosen not in _MODES:
        raise PipelineError(
            f"{ACCESS}={chosen!r} is not a choice",
            place="the environment",
            remedy=f"use {', '.join(_MODES)}; owner is the default",
        )
    return _MODES[chosen]


def private(path: str, flags: int) -> int:
    """Open a file for ``open(…, opener=private)``: only its owner may access it."""
    return os.open(path, flags, _MODES["owner"][0])


def make_directory(directory: Path, mode: int = _MODES["owner"][1]) -> None:
    """Make a directory and its missing parents, all with one mode."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        if directory.parent == directory:
            break
        directory = directory.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
    if missing and not missing[0].is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(missing[0]))


def within(root: Path, name: str, *, of_link: bool = False) -> Path:
    """Return the path of a name, if no symbolic link leads out of the directory.

    The directory itself may be reached through a link: that is its owner's choice.

    Args:
        root: the directory.
        name: a checked name, or ``""``.
        of_link: whether the last part may be any link, because the link itself is to be removed.

    Cost: one ``lstat`` for each part of the name.

    Raises:
        UnsafeName: when a link leads outside.
    """
    path = root
    parts = name.split("/") if name else []
    for number, part in enumerate(parts, 1):
        path = path / part
        if of_link and number == len(parts):
            break
        try:
            is_link = stat.S_ISLNK(os.lstat(path).st_mode)
        except OSError:
            return root / name  # it is missing or cannot be reached: the operation will say so
        if is_link and not path.resolve().is_relative_to(root.resolve()):
            raise leads_out(name, str(path))
    return root / name


def read_range(file: BinaryIO, offset: int, length: int | None) -> bytes:
    """Return a range of a file. Memory is taken only for the part of it that exists."""
    if offset:
        file.seek(offset)
    if length is None:
        return file.read()
    if length > _WORTH_A_LOOK:
        length = max(0, min(length, os.fstat(file.fileno()).st_size - offset))
    return file.read(length)


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into errors with a remedy."""
    try:
        yield
    except FileExistsError as error:
        raise AlreadyExists(f"{path.name} exists", place=str(path)) from error
    except FileNotFoundError as error:
        raise NotFound(f"{path.name} is not there", place=str(path)) from error
    except NotRegular as error:
        raise Damaged(
            f"{path.name} is not a file: a directory, a pipe or a device has its name",
            place=str(path),
            remedy="take it away, and bring the file back from a copy if there was one",
        ) from error
    except NotADirectoryError as error:
        raise StorageError(
            f"a file is where a folder is to be, on the way to {path.name}",
            place=error.filename or str(path),
            remedy="take the file away, or choose another folder",
        ) from error
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(
                f"the storage has no room left: {error.strerror}",
                place=str(path),
                remedy="make room and start again; every committed step is intact",
            ) from error
        if error.errno in _READ_ONLY:
            raise StorageReadOnly(
                f"the storage cannot be written: {error.strerror}",
                place=str(path),
                remedy="give this user the right to write there, or choose another storage=",
            ) from error
        raise StorageError(
            f"the storage failed: {error.strerror}",
            place=str(path),
            remedy="see to the disk or mount; every committed step is intact",
        ) from error
