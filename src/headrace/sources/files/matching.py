"""Which file is which: pure rules that match what was read with the files that exist now.

Every file gets one verdict, and everything that was read belongs to at most one file. The rules, in
order:

1. *Identity.* A file with the id of something that was read, and that starts with it, is that file.
   It has its old name; or it has a new name, if the old name has another file now, or none. If the
   old name still has the same file, the new name is a link.
2. *Name.* Another file under a known name that starts with what was read continues it: a program
   wrote a longer file and put it in the old one's place. A file that starts alike but differs
   within what was read is *changed*. Any other is *rewritten*.
3. *Neighbours.* A new or rewritten file whose name differs from that of another one only in the
   compression is a *copy* of that one, as far as both have the same content.
4. *Content.* A new file may start with something that was read, while the original has been emptied
   or rewritten. Then it is the copy that was made before that (``copytruncate``). A compressed new
   file may also continue a file that is gone, and any new file may continue a compressed one that
   is gone.
5. All other files are new. What was read and belongs to no file is lost. That is allowed if all of
   it was read.

The rules ask the *evidence* for what can be seen. Nothing here reads a file or changes what is
known.
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
        entry: what is known of it. Its name is ``""`` if only the hash is known.
        hash: the hash of the name that it had.
    """

    entry: FileRead
    hash: int


class NotLookedAt(Exception):
    """More of the files must be looked at before the files can be matched."""


class Evidence(Protocol):
    """What can be seen of the files, and what is known of them."""

    @property
    def ids_stay(self) -> bool:
        """Whether a file keeps its id under any name, and no two files have the same id."""

    def hash_of(self, name: str) -> int:
        """Return the hash of a name."""

    def same_id(self, entry: FileRead, facts: Facts) -> bool:
        """Return whether a file has the id of something that was read."""

    def of_name(self, name: str) -> Remembered | None:
        """Return what was read under a name; None if nothing was."""

    def of_id(self, facts: Facts) -> Iterable[Remembered]:
        """Return all that was read of files with an id."""

    def facts_at(self, of: Remembered) -> Facts | None:
        """Return the facts of the file that now has the name of something that was read.

        None if no file has that name. The device may be unknown.

        Raises:
            NotLookedAt: if that name was not looked at.
        """

    def waits_already(self, name: str, facts: Facts) -> bool:
        """Return whether a file already waits to be read, under another name."""

    def begins_with(self, name: str, of: Remembered) -> bool:
        """Return whether a file starts with what was read."""

    def is_changed(self, name: str, of: Remembered) -> bool:
        """Return whether a file starts like what was read, but differs before its end."""

    def may_be_renamed(self, name: str, of: Remembered, facts: Facts) -> bool:
        """Return whether a file of the same id and content may be the old one, renamed."""

    def is_packed(self, name: str) -> bool:
        """Return whether a file is compressed."""

    def head_of(self, name: str) -> Callable[[int], str]:
        """Return a function from n to the digest of a file's first n bytes; ``""`` if too few."""

    def copy_of(self, name: str) -> Copy | None:
        """Return the verdict on a file that copies one beside it; None if it is not a copy."""

    def gone_in(self, name: str) -> Remembered | None:
        """Return what was read, is gone, and is in this file with another compression."""


class Matches:
    """The result of matching: which file is which.

    Attributes:
        same: files that continue what was read, by their current names.
        copies: files whose content is that of others beside them, as far as these were read.
        waiting: files that may be copies, which cannot be decided yet → whether it can be soon.
        links: names of files that count under another name.
        fresh: names of files of which nothing was read.
        rewritten: names whose files have other content now, of which nothing was read.
        changed: files that were changed within what was read.
        doubtful: files for which it cannot be decided whether they were read.
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
        seen: the files that are new or have changed, by name.
        gone: what was read under names that have no file now.
        evidence: what else can be seen.

    Raises:
        NotLookedAt: if more must be looked at.
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
        self._claimed: dict[int, str] = {}  # hash of what has been matched → the name of its file
        self._emptied: dict[int, Remembered] = {}  # by hash; its file has other content now
        self._ids: set[tuple[int, str]] = set()  # (device, id) of files that have a verdict
        self.found = Matches()

    def _claim(self, name: str, of: Remembered) -> None:
        self._claimed[of.hash] = name
        self._ids.add(_file_of(self._seen[name]))
        self.found.same[name] = of

    def by_id(self, names: Iterable[str]) -> list[str]:
        """Match files by identity; return the names of those that have no verdict yet."""
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
                continue  # nothing was read, so there is nothing to recognise
            there = self._facts_at(other)
            if there is not None and there.id == facts.id:
                if self._is_link(name, facts, other, there):
                    self.found.links.append(name)
                    return True
                continue  # a file on another disk may have the same number
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
        """Match the remaining files by name."""
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
        """Record what was read and belongs to no file."""
        lost = {of.hash: of for of in gone} | self._emptied
        for name in (*self.found.same, *self.found.links):
            own = self._evidence.of_name(name)
            if own is not None:
                lost.setdefault(own.hash, own)
        self.found.lost = [
            of for hash_, of in lost.items() if of.entry.read and hash_ not in self._claimed
        ]

    def by_content(self) -> None:
        """Look for the content of what is lost in files that are new."""
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
    """What was read, by its first bytes: each new file is opened once, however much is lost."""

    def __init__(self, some: Iterable[Remembered]) -> None:
        self._by_size: dict[int, dict[str, list[Remembered]]] = {}
        for of in some:
            if of.entry.head:
                heads = self._by_size.setdefault(of.entry.head_bytes, {})
                heads.setdefault(of.entry.head, []).append(of)

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def like(self, head_of: Callable[[int], str]) -> list[Remembered]:
        """Return those that start like a file."""
        return [of for size, heads in self._by_size.items() for of in heads.get(head_of(size), ())]


def _file_of(facts: Facts) -> tuple[int, str]:
    return facts.device, facts.id
