"""Which file is which: what was read is matched with the files that are there now, by rules that are pure.

Each file gets one verdict, and each thing that was read belongs to one file at most. The rules, in order:

1. *What it is.* A file whose id is that of something that was read, and that begins with it, is that file:
   under its own name, or under a new one if the old name has another file now, or none. If the old name
   has the same file still, the new name is a link.
2. *Its name.* Another file under a known name that begins with what was read goes on with it (a program
   wrote a longer one and put it in its place). One that begins alike and is other within what was read is
   *changed*; any other one is *rewritten*.
3. *What is beside it.* A file that is new or written again, and whose name differs from that of another one
   only by the compression, is a *copy* of it as far as both have the same content.
4. *Its content.* A new file that begins with something that was read, whose own file was emptied or
   written again meanwhile, is the copy that was made of it before (``copytruncate``); a compressed one
   also counts as what is gone, and any one as a compressed one that is gone.
5. All others are new. What was read and belongs to no file is lost: it may be, if all of it was read.

What can be seen is asked of the *evidence*; nothing here reads a file or changes what is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.sources.files.copies import Copy
from headrace.sources.files.folders import Facts
from headrace.sources.files.position import FileRead


class Remembered(NamedTuple):
    """Something that was read.

    Attributes:
        entry: what is known of it; its name is ``""`` where only the hash is known.
        hash: of the name that it had.
    """

    entry: FileRead
    hash: int


class Untold(Exception):
    """More of the files must be looked at to tell which is which."""


class Evidence(Protocol):
    """What can be seen of the files, and what is known of them."""

    @property
    def ids_stay(self) -> bool:
        """Whether a file has its id under whatever name, and no two files have the same."""

    def hash_of(self, name: str) -> int:
        """Return the hash of a name."""

    def same_id(self, entry: FileRead, facts: Facts) -> bool:
        """Say whether a file has the id of something that was read."""

    def of_name(self, name: str) -> Remembered | None:
        """Return what was read under a name."""

    def of_id(self, facts: Facts) -> Iterable[Remembered]:
        """Return all that was read of files with an id."""

    def facts_at(self, of: Remembered) -> Facts | None:
        """Return which file has the name now under which something was read; None where none has.

        Its device need not be known.

        Raises:
            Untold: where that was not looked at.
        """

    def waits_already(self, name: str, facts: Facts) -> bool:
        """Say whether a file waits to be read already, under another name."""

    def begins_with(self, name: str, of: Remembered) -> bool:
        """Say whether a file begins with what was read."""

    def is_changed(self, name: str, of: Remembered) -> bool:
        """Say whether a file begins as that which was read, but is another one before that ends."""

    def may_be_renamed(self, name: str, of: Remembered, facts: Facts) -> bool:
        """Say whether nothing speaks against it that a file of the same id and content was renamed."""

    def is_packed(self, name: str) -> bool:
        """Say whether a file is compressed."""

    def head_of(self, name: str) -> Callable[[int], str]:
        """Return what gives the digest of so many bytes of a file's beginning; ``""`` for too many."""

    def copy_of(self, name: str) -> Copy | None:
        """Return what a file is that has the content of one beside it; None where it has not."""

    def gone_in(self, name: str) -> Remembered | None:
        """Return what was read that is gone, and that a file holds with another compression."""


class Matches:
    """Which file is which.

    Attributes:
        same: files that go on with what was read, by their names of today.
        copies: files whose content is that of others beside them, as far as they were read.
        waiting: files of which nobody can tell yet whether they are copies, and whether that is soon.
        links: names of files that count under another name.
        fresh: names of files of which nothing was read.
        rewritten: names whose file has other content now, of which nothing was read.
        changed: files that were changed within what was read.
        doubtful: files of which nobody can tell whether they were read.
        lost: what was read and belongs to no file now.
    """

    def __init__(self) -> None:
        self.same: dict[str, Remembered] = {}
        self.copies: dict[str, FileRead] = {}
        self.waiting: dict[str, bool] = {}
        self.links: list[str] = []
        self.fresh: list[str] = []
        self.rewritten: list[str] = []
        self.changed: list[Remembered] = []
        self.doubtful: list[tuple[str, Remembered]] = []
        self.lost: list[Remembered] = []


def match(seen: Mapping[str, Facts], gone: Sequence[Remembered], evidence: Evidence) -> Matches:
    """Match files with what was read.

    Args:
        seen: the files that are new, or not as they were, by name.
        gone: what was read under names that have no file now.
        evidence: what else can be seen.

    Raises:
        Untold: where more must be looked at.
    """
    matching = _Matching(seen, evidence)
    names = matching.by_id(sorted(seen))
    matching.by_name(names)
    matching.note_lost(gone)
    matching.by_content()
    return matching.found


class _Matching:
    def __init__(self, seen: Mapping[str, Facts], evidence: Evidence) -> None:
        self._seen = seen
        self._evidence = evidence
        self._claimed: dict[int, str] = {}  # what belongs to a file, by its hash; the file's name
        self._emptied: dict[int, Remembered] = {}  # what had a file that has other content now
        self._ids: set[tuple[int, str]] = set()  # (device, id) of files that have a verdict
        self.found = Matches()

    def _claim(self, name: str, of: Remembered) -> None:
        self._claimed[of.hash] = name
        self._ids.add(_file_of(self._seen[name]))
        self.found.same[name] = of

    def by_id(self, names: Iterable[str]) -> list[str]:
        """Find files by what they are; return the names of those that have no verdict then."""
        return [name for name in names if not self._is_by_id(name, self._seen[name])]

    def _is_by_id(self, name: str, facts: Facts) -> bool:
        evidence = self._evidence
        own = evidence.of_name(name)
        is_known = own is not None and own.entry.read and evidence.same_id(own.entry, facts)
        if own is not None and own.entry.copy and self._is_copy(name):
            return True
        if own is not None and is_known and evidence.begins_with(name, own):
            self._claim(name, own)
            return True
        if not evidence.ids_stay:
            return False
        holders = [of for of in evidence.of_id(facts) if of.hash != evidence.hash_of(name)]
        for other in sorted(holders, key=lambda of: (-of.entry.read, of.hash)):
            if not other.entry.read:
                continue  # (what nothing was read of has nothing to be known by)
            there = self._facts_at(other)
            if there is not None and there.id == facts.id:
                if self._is_link(name, facts, other, there):
                    self.found.links.append(name)
                    return True
                continue  # (a file on another disk may have the same number)
            if not evidence.begins_with(name, other):
                self._emptied[other.hash] = other
            elif evidence.may_be_renamed(name, other, facts):
                self._claim(name, other)
                return True
            else:
                self.found.doubtful.append((name, other))
                return True
        return False

    def _is_copy(self, name: str) -> bool:
        copy = self._evidence.copy_of(name)
        if copy is None:
            return False
        self._ids.add(_file_of(self._seen[name]))
        if copy.entry is None:
            self.found.waiting[name] = copy.soon
        else:
            self.found.copies[name] = copy.entry
        return True

    def _facts_at(self, of: Remembered) -> Facts | None:
        claimed = self._claimed.get(of.hash)
        return self._evidence.facts_at(of) if claimed is None else self._seen[claimed]

    def _is_link(self, name: str, facts: Facts, other: Remembered, there: Facts) -> bool:
        if there.device >= 0:
            return there.device == facts.device
        return self._evidence.begins_with(name, other)

    def by_name(self, names: Iterable[str]) -> None:
        """Find the other files by their names."""
        others = [name for name in names if not self._is_by_name(name)]
        for name in others:
            facts = self._seen[name]
            if self._evidence.ids_stay and (
                _file_of(facts) in self._ids or self._evidence.waits_already(name, facts)
            ):
                self.found.links.append(name)
            elif not self._is_copy(name):
                self._ids.add(_file_of(facts))
                self.found.fresh.append(name)

    def _is_by_name(self, name: str) -> bool:
        own = self._evidence.of_name(name)
        if own is None or not own.entry.read or own.hash in self._claimed:
            return False
        if self._evidence.begins_with(name, own):
            self._claim(name, own)
        elif self._evidence.is_changed(name, own):
            self.found.changed.append(own)
        else:
            self._emptied[own.hash] = own
            if not self._is_copy(name):
                self._ids.add(_file_of(self._seen[name]))
                self.found.rewritten.append(name)
        return True

    def note_lost(self, gone: Iterable[Remembered]) -> None:
        """Note what belongs to no file."""
        lost = {of.hash: of for of in gone} | self._emptied
        for name in (*self.found.same, *self.found.links):
            own = self._evidence.of_name(name)
            if own is not None:
                lost.setdefault(own.hash, own)
        self.found.lost = [
            of for hash_, of in lost.items() if of.entry.read and hash_ not in self._claimed
        ]

    def by_content(self) -> None:
        """Find what belongs to no file in new files."""
        found, fresh = self.found, {*self.found.fresh}
        packed = self._evidence.is_packed
        lost = {of.hash: of for of in found.lost}
        of_all = _ByHead(lost.values())
        of_some = _ByHead(
            of for of in lost.values() if of.hash in self._emptied or packed(of.entry.name)
        )
        for name in sorted((*found.fresh, *found.rewritten)):
            new = name in fresh
            copied = self._copied(name, of_all if packed(name) else of_some)
            if copied is None and new:
                copied = self._evidence.gone_in(name)
            if copied is None or copied.hash in self._claimed:
                continue
            self._claim(name, copied)
            lost.pop(copied.hash, None)
            (found.fresh if new else found.rewritten).remove(name)
        found.lost = [*lost.values()]

    def _copied(self, name: str, lost: _ByHead) -> Remembered | None:
        if not lost:
            return None
        some = [
            of for of in lost.like(self._evidence.head_of(name)) if of.hash not in self._claimed
        ]
        some.sort(key=lambda of: (-of.entry.read, of.hash))
        return next((of for of in some if self._evidence.begins_with(name, of)), None)


class _ByHead:
    """What was read, by its beginning: so each new file is opened once, however much is lost."""

    def __init__(self, some: Iterable[Remembered]) -> None:
        self._by_size: dict[int, dict[str, list[Remembered]]] = {}
        for of in some:
            if of.entry.head:
                heads = self._by_size.setdefault(of.entry.head_bytes, {})
                heads.setdefault(of.entry.head, []).append(of)

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def like(self, head_of: Callable[[int], str]) -> list[Remembered]:
        """Return those that begin as a file does."""
        return [of for size, heads in self._by_size.items() for of in heads.get(head_of(size), ())]


def _file_of(facts: Facts) -> tuple[int, str]:
    return facts.device, facts.id
