"""Places where files are: a local directory, a prefix in an object store, a directory in HDFS.

A place answers three questions: which files exist, what identifies each of them, and what their
bytes are.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

from headrace.errors import AlreadyExists, BadInput, NotFound, PipelineError, SourceChanged
from headrace.sources.files.access import RandomAccess
from headrace.sources.files.names import (
    ANY_DEPTH,
    Pattern,
    escaped,
    is_hidden,
    is_remote,
    kind_of,
)
from headrace.storage.hdfs import SCHEME as WEBHDFS
from headrace.storage.hdfs import HdfsStore
from headrace.storage.objects import SCHEMES, ObjectStore
from headrace.storage.regular import NotRegular, open_regular

log = logging.getLogger("headrace")

#: A directory that changed within this time before its listing may change again under the same
#: time.
_SETTLED_NS = 2_000_000_000
#: Minimum size of a read from a remote file.
_BLOCK_BYTES = 1 << 20
_NAMES_AT_ONCE = 10_000
#: Maximum number of circular links that are logged.
_MOST_LOGGED_LINKS = 20
#: Error numbers that mean that nothing is there: not yet, or no longer.
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR}


class Facts(NamedTuple):
    """What identifies a file, as far as one can see without reading it.

    Attributes:
        id: what stays the same when the file is renamed or appended to, such as its inode. For an
            object this is the etag, which shows only whether a name still has the same object.
        size: its size in bytes, as it is stored.
        modified: when it was last changed, in nanoseconds since 1970 UTC.
        device: for a local file, the disk it is on; -1 if unknown.
    """

    id: str
    size: int
    modified: int
    device: int = 0


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """The folder that contains a source's files.

    Attributes:
        path: its path or location.
        device, inode: what identifies a local directory after it was moved; 0 in a store.
    """

    path: str
    device: int = 0
    inode: int = 0

    def is_that_of(self, other: Place) -> bool:
        """Return whether another place is the same folder, perhaps under another name."""
        moved = self.inode != 0 and (self.device, self.inode) == (other.device, other.inode)
        return moved or self.path == other.path


#: Names of files, each with its facts; None if the listing does not include them.
Listed = list[tuple[str, Facts | None]]


class Folder(ABC):
    """The folder that all files of a source have in common, with everything below it.

    Attributes:
        location: the path or location by which another process opens it.
        lists_facts: whether every listing is complete and includes the facts of each file.
        ids_stay: whether a file keeps its id under any name, and no two files have the same id.
        ids_return: whether a new file may get the id of one that is gone.
    """

    location: str
    lists_facts: bool = True
    ids_stay: bool = True
    ids_return: bool = False
    _has_logged: bool = False  # whether a skipped folder has been logged

    @abstractmethod
    def place(self) -> Place:
        """Return what identifies this folder."""

    def is_there(self) -> bool:
        """Return whether this folder exists; True where that is not checked."""
        return True

    @abstractmethod
    def listed(self, pattern: Pattern, *, changes_only: bool) -> Iterator[Listed]:
        """Yield the files that match a pattern, in batches.

        Args:
            pattern: the names to look for.
            changes_only: whether to skip directories in which no name has changed since last time.
        """

    @abstractmethod
    def facts(self, name: str) -> Facts | None:
        """Return a file's facts; None if it does not exist."""

    @abstractmethod
    def open(self, name: str) -> tuple[BinaryIO, Facts]:
        """Open a file; return it with the facts of the very file that is read."""

    def names_by_id(self, directory: str) -> dict[str, list[str]]:
        """Return id → names of everything in a directory, whether or not it is input."""
        return {}

    def shown(self, name: str) -> str:
        """Return the name of a file as errors show it."""
        return escaped(os.path.join(self.location, name))

    def _pass_over(self, folder: str, pattern: Pattern) -> None:
        """Log once that folders of a directory are skipped; a pattern skips them on purpose."""
        if pattern.is_folder and not self._has_logged and not is_hidden(folder.rpartition("/")[2]):
            self._has_logged = True
            log.warning(
                "%s: folders such as %s are not looked into, as they are none of a partition (day=3); for "
                "the files in folders of any depth add /**/* with the ending of their names",
                pattern.shown,
                escaped(folder),
            )


def open_folder(base: str) -> Folder:
    """Return the folder at a path or a location.

    Raises:
        PipelineError: for a location in an unknown kind of store.
    """
    if not is_remote(base):
        return LocalFolder(base)
    scheme = base.partition("://")[0]
    if scheme in SCHEMES:
        return ObjectFolder(base)
    if scheme == WEBHDFS:
        return HdfsFolder(base)
    known = ", ".join(f"{kind}://" for kind in (*SCHEMES, WEBHDFS))
    remedy = f"say a path, or a location of {known}"
    if scheme == "hdfs":
        remedy = (
            "HDFS is read by its web interface: say webhdfs://NAMENODE:PORT/PATH, with the port of the "
            "NameNode's web interface (9870, mostly)"
        )
    raise PipelineError(f"{scheme}:// is not a known kind of location", place=base, remedy=remedy)


class _Entered(NamedTuple):
    """A directory that is to be searched.

    Attributes:
        folder: its name within the folder of all files, with a trailing ``/``.
        state: the state of matching the pattern.
        above: device and inode of each directory that contains it.
    """

    folder: str
    state: frozenset[int]
    above: frozenset[tuple[int, int]] = frozenset()


class _Version(NamedTuple):
    """The identity of a directory and the times when it was changed.

    ``modified`` alone does not suffice, since programs such as tar set it back.
    """

    device: int
    inode: int
    modified: int
    changed: int


def _version(of: os.stat_result) -> _Version:
    return _Version(of.st_dev, of.st_ino, of.st_mtime_ns, of.st_ctime_ns)


class LocalFolder(Folder):
    """A directory of this machine, or of a mount."""

    lists_facts = False
    ids_return = True

    def __init__(self, base: str) -> None:
        self._base = base
        self.location = os.path.realpath(base)
        self._seen: dict[str, tuple[_Version, list[str]]] = {}  # version, and folders
        self._circles: set[str] = set()  # circular links that have been logged

    def place(self) -> Place:
        try:
            facts = os.stat(self.location)
        except OSError:
            return Place(escaped(self.location))
        return Place(escaped(self.location), facts.st_dev, facts.st_ino)

    def is_there(self) -> bool:
        return os.path.isdir(self.location)

    def listed(self, pattern: Pattern, *, changes_only: bool) -> Iterator[Listed]:
        self.location = os.path.realpath(self._base)
        if pattern.names_one:
            if self.facts(pattern.parts[0]) is not None:
                yield [(pattern.parts[0], None)]
            elif os.path.isdir(os.path.join(self.location, pattern.parts[0])):
                raise _is_directory(pattern.shown)
            return
        seen, self._seen = self._seen, {}
        waiting = [_Entered("", pattern.start())]
        while waiting:
            at = waiting.pop()
            folders: list[str] = []
            path = os.path.join(self.location, at.folder)
            before = seen.get(at.folder) if changes_only else None
            try:
                found = os.stat(path)
                if pattern.is_folder and _file_of(found) in at.above:
                    self._warn_of_circle(path)
                    continue
                yield from self._of_one(at, pattern, _version(found), before, folders)
            except OSError as error:
                if not self._is_away(path, error):
                    raise _unseen(path, error) from error
                continue
            above = at.above | {_file_of(found)}
            for name in folders:
                entered = pattern.enters(at.state, name)
                if entered:
                    waiting.append(_Entered(f"{at.folder}{name}/", entered, above))
                else:
                    self._pass_over(at.folder + name, pattern)

    def _of_one(
        self,
        at: _Entered,
        pattern: Pattern,
        version: _Version,
        before: tuple[_Version, list[str]] | None,
        folders: list[str],
    ) -> Iterator[Listed]:
        """Yield the files of one directory, and add its folders to ``folders``."""
        path, now = os.path.join(self.location, at.folder), time.time_ns()
        if before is not None and before[0] == version:
            folders += before[1]
            self._seen[at.folder] = before
            return
        some: Listed = []
        with os.scandir(path) as entries:
            for entry in entries:
                if self._is(_is_folder, entry, pattern):
                    folders.append(entry.name)
                elif pattern.takes(at.state, entry.name) and self._is(_is_file, entry, pattern):
                    some.append((at.folder + entry.name, None))
                    if len(some) == _NAMES_AT_ONCE:
                        yield some
                        some = []
        yield some
        if now - max(version.modified, version.changed) > _SETTLED_NS:
            self._seen[at.folder] = version, folders

    def _is(self, kind: _IsKind, entry: os.DirEntry[str], pattern: Pattern) -> bool:
        """Return whether an entry is of a kind (folder or file); False for a dangling link."""
        try:
            return kind(entry, pattern)
        except OSError as error:
            if not self._is_away(entry.path, error):
                raise _unseen(entry.path, error) from error
            return False

    def _is_away(self, path: str, error: OSError) -> bool:
        """Return whether an error means that nothing is there; warn if it is a circular link."""
        if error.errno == errno.ELOOP:
            self._warn_of_circle(path)
            return True
        return error.errno in _NOT_THERE  # gone meanwhile, or not there yet

    def facts(self, name: str) -> Facts | None:
        path = os.path.join(self.location, name)
        try:
            found = os.stat(path)
        except OSError as error:
            if not self._is_away(path, error):
                raise _unseen(path, error) from error
            return None
        return _facts(found) if stat.S_ISREG(found.st_mode) else None

    def open(self, name: str) -> tuple[BinaryIO, Facts]:
        try:
            file = open_regular(os.path.join(self.location, name))
        except NotRegular as error:  # another kind of entry has the name now; the file is gone
            raise FileNotFoundError(errno.ENOENT, error.strerror, name) from error
        return file, _facts(os.fstat(file.fileno()))

    def names_by_id(self, directory: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with (
            contextlib.suppress(OSError),
            os.scandir(os.path.join(self.location, directory)) as all_there,
        ):
            for entry in all_there:
                found.setdefault(str(entry.inode()), []).append(directory + entry.name)
        return found

    def _warn_of_circle(self, path: str) -> None:
        """Log once for each link to itself, or to a folder above it, that it is skipped."""
        if path not in self._circles and len(self._circles) < _MOST_LOGGED_LINKS:
            self._circles.add(path)
            log.warning("%s is passed over: its link leads back to where it is", escaped(path))


def _facts(of: os.stat_result) -> Facts:
    return Facts(str(of.st_ino), of.st_size, of.st_mtime_ns, of.st_dev)


def _file_of(of: os.stat_result) -> tuple[int, int]:
    return of.st_dev, of.st_ino


_IsKind = Callable[[os.DirEntry[str], Pattern], bool]


def _is_folder(entry: os.DirEntry[str], pattern: Pattern) -> bool:
    # A link may lead to a folder above, so a search at any depth does not follow links.
    return pattern.is_deep and entry.is_dir(follow_symlinks=ANY_DEPTH not in pattern.parts)


def _is_file(entry: os.DirEntry[str], pattern: Pattern) -> bool:
    return entry.is_file()


def _unseen(path: str, error: OSError) -> SourceChanged:
    return SourceChanged(
        f"{escaped(path)} cannot be looked at: {error.strerror}",
        place=escaped(path),
        remedy="let this user read there, or see to the disk or mount; then start again",
    )


class _RemoteFolder(Folder):
    """A folder of a remote store, whose files are read in ranges."""

    def __init__(self, location: str) -> None:
        self.location = location

    def place(self) -> Place:
        return Place(self.location)

    def open(self, name: str) -> tuple[BinaryIO, Facts]:
        facts = self.facts(name)
        if facts is None:
            raise FileNotFoundError(2, "it is not there", name)

        def read(offset: int, length: int) -> bytes:
            try:
                return self._read(name, facts, offset, length)
            except (NotFound, AlreadyExists) as error:
                raise _replaced(self.shown(name)) from error

        return io.BufferedReader(_Ranges(read, facts.size), _BLOCK_BYTES), facts

    def shown(self, name: str) -> str:
        return f"{self.location.rstrip('/')}/{escaped(name)}"

    @abstractmethod
    def _read(self, name: str, facts: Facts, offset: int, length: int) -> bytes:
        """Return a range of a file.

        Raises:
            NotFound: if the file is gone.
            AlreadyExists: if another file has its name now.
        """


class ObjectFolder(_RemoteFolder):
    """A prefix in a bucket. An object never changes, but its name may get another object.

    Objects with the same content may have the same etag. An object has only one name.
    """

    ids_stay = False

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._store = ObjectStore(location)

    def listed(self, pattern: Pattern, *, changes_only: bool) -> Iterator[Listed]:
        if pattern.names_one:
            facts = self.facts(pattern.parts[0])
            if facts is not None:
                yield [(pattern.parts[0], facts)]
            elif any(ObjectStore(self.shown(pattern.parts[0])).objects()):
                raise _is_directory(pattern.shown)
            return
        for page in self._store.objects():
            some = [(of, pattern.matches(of.name)) for of in page if not _is_marker(of)]
            yield [(of.name, _object_facts(of)) for of, matches in some if matches]
            if pattern.is_folder and not self._has_logged:
                self._pass_over_folders((of.name for of, matches in some if not matches), pattern)

    def _pass_over_folders(self, names: Iterable[str], pattern: Pattern) -> None:
        for name in names:
            for at, part in enumerate(parts := name.split("/")[:-1]):
                if not pattern.enters(pattern.start(), part):
                    self._pass_over("/".join(parts[: at + 1]), pattern)
                    break

    def facts(self, name: str) -> Facts | None:
        found = self._store.object(name)
        return None if found is None else _object_facts(found)

    def _read(self, name: str, facts: Facts, offset: int, length: int) -> bytes:
        return self._store.read_object(name, facts.id, offset, length)


def _is_marker(of: Any) -> bool:
    """Return whether an object is a folder marker.

    Consoles and Hadoop create such empty objects, named ``day=3/``. The client library returns
    their names without the slash.
    """
    return not of.size and kind_of(of.name).format is None


def _object_facts(of: Any) -> Facts:
    return Facts(of.etag, of.size, of.modified_us * 1000)


class HdfsFolder(_RemoteFolder):
    """A directory in HDFS. Files are identified by the numbers that the NameNode assigns."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._store = HdfsStore(location)

    def listed(self, pattern: Pattern, *, changes_only: bool) -> Iterator[Listed]:
        waiting = [("", pattern.start())]
        while waiting:
            folder, state = waiting.pop()
            some: Listed = []
            for name, of in self._store.directory(folder).items():
                if of["type"] == "DIRECTORY":
                    if pattern.names_one and name == pattern.parts[0]:
                        raise _is_directory(pattern.shown)
                    entered = pattern.enters(state, name) if pattern.is_deep else None
                    if entered:
                        waiting.append((f"{folder}{name}/", entered))
                    else:
                        self._pass_over(folder + name, pattern)
                elif pattern.takes(state, name):
                    some.append((folder + name, _hdfs_facts(of)))
            yield some

    def facts(self, name: str) -> Facts | None:
        of = self._store.status(name)
        return None if of is None or of["type"] != "FILE" else _hdfs_facts(of)

    def _read(self, name: str, facts: Facts, offset: int, length: int) -> bytes:
        return self._store.read_file(name, offset, length)


def _hdfs_facts(of: dict[str, Any]) -> Facts:
    return Facts(str(of["fileId"]), int(of["length"]), int(of["modificationTime"]) * 1_000_000)


def _is_directory(shown: str) -> BadInput:
    return BadInput(
        f"{shown} is a directory, and was taken for a file when the pipeline was declared",
        place=shown,
        remedy="end the path with '/', and the files in it are read",
    )


def _replaced(name: str) -> SourceChanged:
    return SourceChanged(
        f"{name} was replaced or taken away while it was read",
        place=name,
        remedy="give new records a file of a new name, and leave what is read as it is",
    )


class _Ranges(RandomAccess):
    """A remote file that is read in ranges."""

    def __init__(self, read: Any, size: int) -> None:
        super().__init__()
        self._read = read
        self._size = size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._read(self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
