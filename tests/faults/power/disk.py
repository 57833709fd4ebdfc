"""A disk with a POSIX file system, whose power may fail. Imports nothing of the package.

It keeps all twice: as processes see it, and as it is on the medium. What was not synced is on the medium
in part, if at all: a file's data missing, cut, with holes of zeros, or whole; a directory as it was at any
time since it was synced, as file systems have it that keep a journal, or each of its names for itself.
Syncing a file does not make its name durable, nor does syncing a directory make its own name in its parent
durable: POSIX promises no more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeVar

#: Data reaches the medium in blocks of so many bytes; small, since the files of tests are.
_BLOCK = 64
#: One write takes so many bytes at most; who writes must look how many.
_MOST_WRITTEN = 1_500
#: So many seconds pass from one operation to the next.
_TICK_S = 10.0

#: What a sync may be ignored for.
Deaf = Literal["", "files", "directories", "all"]
Moment = Callable[[str], None]
T = TypeVar("T")


@dataclass(eq=False)
class File:
    """A file: what processes read, and what is on the medium for certain."""

    seen: bytes = b""
    durable: bytes = b""
    changed: float = 0.0

    def after_loss(self, rng: Random | None) -> File:
        """Return it as it may be found; without chance, with nothing but what is certain."""
        found = self.durable if rng is None else _torn(self.durable, self.seen, rng)
        return File(found, found, self.changed)


@dataclass(eq=False)
class Directory:
    """A directory: its names as processes see them, and what became of them since it was synced."""

    seen: dict[str, File | Directory] = field(default_factory=dict)
    durable: dict[str, File | Directory] = field(default_factory=dict)
    since: list[tuple[str, File | Directory | None]] = field(default_factory=list)
    changed: float = 0.0

    def set(self, name: str, node: Node | None) -> None:
        self.since.append((name, node))
        if node is None:
            del self.seen[name]
        else:
            self.seen[name] = node

    def sync(self) -> None:
        self.durable = dict(self.seen)
        self.since.clear()

    def left(self, rng: Random | None) -> dict[str, Node]:
        """Return the names that power loss leaves, drawn if there is chance."""
        names: dict[str, Node | None] = dict(self.durable)
        if rng is not None:
            each: dict[str, list[Node | None]] = {}
            for name, node in self.since:
                each.setdefault(name, [names.get(name)]).append(node)
            names.update({name: rng.choice(nodes) for name, nodes in each.items()})
        return {name: node for name, node in names.items() if node is not None}


Node = File | Directory


def _torn(durable: bytes, seen: bytes, rng: Random) -> bytes:
    """Draw what became of data that were written and not synced, all of it or a part."""
    if durable == seen or rng.random() < 0.25:
        return durable
    if rng.random() < 0.35:
        return seen
    assert seen.startswith(durable), "files are only ever written at their end"
    length = rng.randint(len(durable), len(seen))
    found = bytearray(seen[:length])
    for start in range(len(durable), length, _BLOCK):
        if rng.random() < 0.4:
            found[start : start + _BLOCK] = bytes(len(found[start : start + _BLOCK]))
    return bytes(found)


class Disk:
    """A disk. Every operation is two moments: before it, and after it.

    Args:
        deaf: the syncs that it acknowledges and does not carry out: a negative control.

    Attributes:
        moment: is told each moment; it may look at the disk, let the operation fail, or end the
            process.
        version: grows with each change.
    """

    def __init__(self, deaf: Deaf = "") -> None:
        self.root = Directory()
        self.deaf: Deaf = deaf
        self.moment: Moment = lambda what: None
        self.version = 0
        self.now = 0.0
        self._open: dict[int, tuple[str, Node]] = {}
        self._opened = 100

    # -- what processes do --------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        def work() -> int:
            if flags & os.O_CREAT:
                folder, name = self._place(path)
                if name in folder.seen:
                    raise _error(errno.EEXIST, path)  # (nobody creates without O_EXCL)
                self._name(folder, name, File(changed=self.now))
            self._opened += 1
            self._open[self._opened] = path, self.node(path)
            return self._opened

        assert not flags & os.O_CREAT or flags & os.O_EXCL
        return self._do(f"open {path}", work)

    def write(self, descriptor: int, data: bytes) -> int:
        def work() -> int:
            file = self._open[descriptor][1]
            assert isinstance(file, File)
            file.seen += bytes(data[:_MOST_WRITTEN])
            file.changed = self.now
            self.version += 1
            return min(len(data), _MOST_WRITTEN)

        return self._do(f"write {self._open[descriptor][0]}", work)

    def fsync(self, descriptor: int) -> None:
        def work() -> None:
            node = self._open[descriptor][1]
            self.version += 1
            if isinstance(node, File) and self.deaf not in ("files", "all"):
                node.durable = node.seen
            if isinstance(node, Directory) and self.deaf not in ("directories", "all"):
                node.sync()

        self._do(f"fsync {self._open[descriptor][0]}", work)

    def close(self, descriptor: int) -> None:
        self._do(f"close {self._open[descriptor][0]}", lambda: self._open.pop(descriptor))

    def link(self, source: str, target: str) -> None:
        def work() -> None:
            folder, name = self._place(target)
            if name in folder.seen:
                raise _error(errno.EEXIST, target)
            self._name(folder, name, self.node(source))

        self._do(f"link {target}", work)

    def unlink(self, path: str) -> None:
        def work() -> None:
            folder, name = self._place(path)
            if not isinstance(self.node(path), File):
                raise _error(errno.EISDIR, path)
            self._name(folder, name, None)

        self._do(f"unlink {path}", work)

    def mkdir(self, path: str) -> None:
        def work() -> None:
            folder, name = self._place(path)
            if name in folder.seen:
                raise _error(errno.EEXIST, path)
            self._name(folder, name, Directory(changed=self.now))

        self._do(f"mkdir {path}", work)

    def read(self, path: str) -> bytes:
        def work() -> bytes:
            node = self.node(path)
            if not isinstance(node, File):
                raise _error(errno.EISDIR, path)
            return node.seen

        return self._do(f"read {path}", work)

    def names(self, path: str) -> dict[str, Node]:
        def work() -> dict[str, Node]:
            node = self.node(path)
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR, path)
            return dict(node.seen)

        return self._do(f"list {path}", work)

    def stat(self, path: str) -> Node:
        return self._do(f"stat {path}", lambda: self.node(path))

    def _do(self, what: str, work: Callable[[], T]) -> T:
        self.moment(f"before {what}")
        self.now += _TICK_S
        done = work()
        self.moment(f"after {what}")
        return done

    def _name(self, folder: Directory, name: str, node: Node | None) -> None:
        folder.set(name, node)
        folder.changed = self.now
        self.version += 1

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        folder = self.node(parent)
        if not isinstance(folder, Directory):
            raise _error(errno.ENOTDIR, path)
        return folder, name

    def node(self, path: str) -> Node:
        """Return what processes see under a name."""
        found: Node = self.root
        for name in path.split("/"):
            if not name:
                continue
            if not isinstance(found, Directory):
                raise _error(errno.ENOTDIR, path)
            if name not in found.seen:
                raise _error(errno.ENOENT, path)
            found = found.seen[name]
        return found

    # -- what becomes of it -------------------------------------------------------------------

    def copy(self) -> Disk:
        """Return the same disk, with nothing open."""
        known: dict[Node, Node] = {}

        def copied(node: Node) -> Node:
            if node in known:
                return known[node]
            if isinstance(node, File):
                known[node] = File(node.seen, node.durable, node.changed)
                return known[node]
            new = known[node] = Directory(changed=node.changed)
            new.seen = {name: copied(item) for name, item in node.seen.items()}
            new.durable = {name: copied(item) for name, item in node.durable.items()}
            new.since = [
                (name, None if item is None else copied(item)) for name, item in node.since
            ]
            return new

        return self._with(copied(self.root))

    def after_loss(self, rng: Random | None) -> Disk:
        """Return the disk as it may be found when the power is back.

        Args:
            rng: draws what is left of what was not synced; None for nothing of it.
        """
        known: dict[Node, Node] = {}

        def found(node: Node) -> Node:
            if node in known:
                return known[node]
            if isinstance(node, File):
                known[node] = node.after_loss(rng)
                return known[node]
            new = known[node] = Directory(changed=node.changed)
            left = node.left(rng)
            new.seen = {name: found(item) for name, item in left.items()}
            new.durable = dict(new.seen)
            return new

        return self._with(found(self.root))

    def _with(self, root: Node) -> Disk:
        new = Disk(self.deaf)
        assert isinstance(root, Directory)
        new.root, new.now, new.version = root, self.now, self.version
        return new

    def files(self) -> dict[str, bytes]:
        """Return all that processes see: files by path, and directories, which have no content."""
        return dict(_walk("", self.root))

    def content(self, *, hidden: bool) -> int:
        """Return a number that stands for all that it holds, with or without hidden files."""
        return hash(
            tuple(item for item in self.files().items() if hidden or not is_hidden(item[0]))
        )

    @property
    def unsynced(self) -> list[str]:
        """What power loss may undo: paths, of names and of data."""
        return sorted(set(_unsynced("", self.root)))


def is_hidden(path: str) -> bool:
    """Say whether a path is one that lists leave out."""
    return "/." in path


def _walk(path: str, node: Node) -> Iterator[tuple[str, bytes]]:
    if isinstance(node, File):
        yield path, node.seen
        return
    yield path + "/", b""
    for name in sorted(node.seen):
        yield from _walk(f"{path}/{name}", node.seen[name])


def _unsynced(path: str, node: Node) -> Iterator[str]:
    if isinstance(node, File):
        if node.seen != node.durable:
            yield path
        return
    for name, _ in node.since:
        yield f"{path}/{name}"
    for name, item in node.seen.items():
        yield from _unsynced(f"{path}/{name}", item)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
