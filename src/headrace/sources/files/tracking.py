"""What has become of the files since they were last looked at: new, longer, renamed, written again, gone.

A file is known by what stays when it is renamed or appended to (its inode, an object's etag), by its
name, and by its print; in this order. So whatever names files come under, and whatever becomes of those
that were read, each record is read once, or it is an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import SourceChanged
from headrace.sources.files.catalog import id_number, name_hash, name_hashes
from headrace.sources.files.folders import Facts, Folder, Listed
from headrace.sources.files.known import Elsewhere, Known
from headrace.sources.files.names import Kind, Pattern, escaped, kind_of, unescaped
from headrace.sources.files.opening import (
    PRINT_BYTES,
    has_head,
    has_print,
    open_file,
    prints_of_head,
    typed_errors,
)
from headrace.sources.files.position import FileRead
from headrace.sources.formats import FileFormat

log = logging.getLogger("headrace")

#: Files that wait to be read and are remembered; there may be more, which are looked for again.
_WAITING_FILES = 100_000
#: While there are no more files than these, all of them are looked at each time.
_FEW_FILES = 2_000
#: Looking at all of many files takes one part of so many of the time.
_SHARE = 20


class Waiting(NamedTuple):
    """A file that has something to read.

    Attributes:
        facts: what it was when it was looked at.
        entry: what was read of it; None for nothing.
    """

    facts: Facts
    entry: FileRead | None


class State:
    """What is known at a position, and what there is to read.

    Attributes:
        known: what was read.
        waiting: the files that have something to read, by their (escaped) names.
        more: whether there are more that wait than are remembered.
        looked: whether the files were looked at, at this position or one before it.
        there, there_hashes: how many files there are, as of when all of them were looked at, and the
            hashes of their names, until they were compared with what is known.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.waiting: dict[str, Waiting] = {}
        self.more = False
        self.looked = False
        self.there = 0
        self.there_hashes: npt.NDArray[np.uint64] | None = None

    def copy(self) -> State:
        """Return the same, to be changed."""
        other = State(self.known.copy())
        other.waiting = {**self.waiting}
        other.more, other.looked, other.there = self.more, self.looked, self.there
        other.there_hashes = self.there_hashes
        return other


class _Seen:
    """What one look at the files shows."""

    def __init__(self) -> None:
        self.facts: dict[str, Facts] = {}  # of files that are new, or not as they were
        self.given: dict[str, Facts] = {}  # of files of late, where a listing says it
        self.hashes: list[npt.NDArray[np.uint64]] = []  # of the names of all files that were listed


class _Changes:
    """What has become of files.

    Attributes:
        moved: files that have other names now, by these.
        left: the hashes of the names that they had.
        links: names of files that are read under another one, or compressed copies of them.
        fresh: names of files that are new.
        emptied: names of files that have others now, and no more what was read of them.
        rewritten: names that have files with other content now.
        lost: what was read of files that are gone, or were written again.
    """

    def __init__(self) -> None:
        self.moved: dict[str, Elsewhere] = {}
        self.left: set[int] = set()
        self.links: dict[str, None] = {}
        self.fresh: list[str] = []
        self.emptied: set[str] = set()
        self.rewritten: list[str] = []
        self.lost: list[FileRead] = []


class Tracker:
    """Looks at files, and finds out what has become of them.

    Args:
        folder: where they are.
        pattern: which they are.
        format: of their content.
        unread: is given a name that is not read because of its ending.
    """

    def __init__(
        self, folder: Folder, pattern: Pattern, format: FileFormat,
        unread: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._folder = folder
        self._pattern = pattern
        self._format = format
        self._unread = unread
        self._next_sweep = 0.0

    # -- looking --------------------------------------------------------------------------------

    def look(self, state: State) -> None:
        """Find what there is to read, and under what names what was read is now.

        Raises:
            SourceChanged: where a file was changed that was read, or is gone before all of it was.
        """
        everything = self._wants_everything(state)
        began = time.monotonic()
        try:
            told = self._look(state, everything)
        except SourceChanged:
            # A look is not of one moment: a file may be seen under neither of two names.
            told = False
        if not told:
            everything = True
            self._look(state, everything)
        if everything:
            self._next_sweep = time.monotonic() + _SHARE * (time.monotonic() - began)
        state.looked = True

    def _wants_everything(self, state: State) -> bool:
        if not state.looked or state.more:
            return True
        if len(state.known) > 2 * state.there + 10_000:
            return True  # (many may be gone, and are to be forgotten)
        if not self._format.is_text:
            return False
        return state.there <= _FEW_FILES or time.monotonic() >= self._next_sweep

    def _look(self, state: State, everything: bool) -> bool:
        """Look once; return False where more must be looked at to tell."""
        seen = _Seen()
        if everything:
            state.waiting, state.more = {}, False
        for listed in self._folder.listed(self._pattern, changes_only=not everything):
            self._note(listed, state, seen, everything)
        gone = self._of_late(state, seen)
        if not self._resolve(state, seen, gone, everything):
            return False
        if everything:
            there = np.concatenate(seen.hashes) if seen.hashes else np.empty(0, np.uint64)
            state.there, state.there_hashes = len(there), there
        return True

    def _note(self, listed: Listed, state: State, seen: _Seen, everything: bool) -> None:
        """Note what is new or changed among some files."""
        names, facts = [], []
        for raw, known_facts in listed:
            if self.wants(raw):
                names.append(escaped(raw))
                facts.append(known_facts)
        if not names:
            return
        hashes = name_hashes(names)
        if everything:
            seen.hashes.append(hashes)
        in_catalogs = state.known.in_catalogs(hashes)
        recent, waiting = state.known.recent, state.waiting
        looked_at: list[int] = []
        for at, name in enumerate(names):
            if name in recent or name in waiting:
                if name in recent and (of := facts[at]) is not None:
                    seen.given[name] = of
                continue  # (looked at by name)
            if in_catalogs[at] and not everything:
                continue
            if not in_catalogs[at] and len(waiting) + len(seen.facts) >= _WAITING_FILES:
                state.more = True
                continue
            looked_at.append(at)
        found = [(at, facts[at] or self._folder.facts(unescaped(names[at]))) for at in looked_at]
        there = [(at, of) for at, of in found if of is not None]
        rows = np.array([at for at, _ in there], dtype=np.int64)
        same = state.known.unchanged(hashes[rows], [of for _, of in there])
        for (at, of), is_same in zip(there, same.tolist(), strict=True):
            if not is_same:
                seen.facts[names[at]] = of

    def wants(self, name: str) -> bool:
        """Say whether a file is read, by the endings of its name."""
        kind = kind_of(name)
        if not self._pattern.is_folder:
            return True
        if reads(self._format.name, kind):
            return True
        self._unread(name)
        return False

    def _of_late(self, state: State, seen: _Seen) -> list[FileRead]:
        """Look at the files that were read of late; return those whose names are gone."""
        gone = []
        for name, entry in state.known.recent.items():
            if entry.whole and not self._format.is_text and state.looked:
                continue  # (a file of this format is whole when it is read)
            if name in state.waiting and state.looked:
                continue
            if self._folder.lists_facts:
                facts = seen.given.get(name)
            else:
                facts = self._folder.facts(unescaped(name))
            if facts is None:
                gone.append(entry)
            elif (facts.id, facts.size, facts.modified) == (entry.id, entry.size, entry.modified):
                if not entry.whole:
                    state.waiting[name] = Waiting(facts, entry)
            else:
                seen.facts[name] = facts
        return gone

    # -- what has become of them ----------------------------------------------------------------

    def _resolve(self, state: State, seen: _Seen, gone: list[FileRead], everything: bool) -> bool:
        """Note what files are that are new or changed; False where more must be looked at to tell."""
        changes = _Changes()
        if not self._find_renamed(state.known, seen, changes, everything):
            return False
        at_moved = [known for name in changes.moved if (known := state.known.get(name)) is not None]
        replaced = [*gone, *at_moved]
        changes.lost += [of for of in replaced if name_hash(of.name) not in changes.left]
        settled = {*changes.moved, *changes.links}
        fresh = [name for name in seen.facts if name not in settled]
        for name in fresh:
            entry = state.known.get(name)
            if entry is None or not entry.read or name_hash(name) in changes.left:
                changes.fresh.append(name)
            elif not self._goes_on(name, seen.facts[name], entry, state):
                changes.lost.append(entry)
                changes.rewritten.append(name)
        self._find_copies(changes, state, seen)
        for entry in changes.lost:
            if not entry.whole:
                if not everything:
                    return False  # (it may have another name, of a file that was not looked at)
                raise self._lost(entry)
        self._apply(state, seen, changes)
        return True

    def _find_renamed(self, known: Known, seen: _Seen, changes: _Changes, everything: bool) -> bool:
        """Find files that are known by what they are, under new names; False where that cannot be told."""
        for name, facts in seen.facts.items():
            holders = known.with_id(facts.id) if facts.id else []
            if any(of.hash == name_hash(name) for of in holders):
                continue
            for other in holders:
                if not other.entry.read:
                    continue  # (what nothing was read of has nothing to be known by)
                where = self._still_there(other, facts, seen, everything)
                if where is None:
                    return False
                if where:
                    changes.links[name] = None
                elif self._has_print(name, other.entry):
                    if not _may_be(other.entry, facts):
                        continue
                    changes.moved[name] = other
                    changes.left.add(other.hash)
                    break
                else:
                    changes.emptied.add(other.entry.name)
                    if not other.entry.name:
                        changes.lost.append(other.entry)
        return True

    def _still_there(
        self, other: Elsewhere, facts: Facts, seen: _Seen, everything: bool
    ) -> bool | None:
        """Say whether a file is at its old name, too; None where that cannot be told."""
        if other.entry.name:
            at_old = self._folder.facts(unescaped(other.entry.name))
            return at_old is not None and at_old.id == facts.id
        if not everything:
            return None
        listed = any(bool((part == np.uint64(other.hash)).any()) for part in seen.hashes)
        return listed and all(name_hash(name) != other.hash for name in seen.facts)

    def _goes_on(self, name: str, facts: Facts, entry: FileRead, state: State) -> bool:
        """Note a file that is what was read and perhaps more; False where it is another one.

        Raises:
            SourceChanged: where it was changed in what was read.
        """
        with (
            typed_errors(self._folder.shown(unescaped(name))),
            open_file(self._folder, unescaped(name), "look") as file,
        ):
            is_text = self._format.is_text
            if has_print(entry, file, is_text=is_text):
                longer = file.facts.size != entry.size and is_text
                self._note_longer(name, file.facts, entry, state, longer=longer)
                return True
            begins = bool(entry.head_bytes) and has_head(entry, file, is_text=is_text)
            if is_text and begins and (entry.whole or file.opened.reaches(entry.read)):
                raise self._changed(entry)
        return False

    def _note_longer(
        self, name: str, facts: Facts, entry: FileRead, state: State, *, longer: bool
    ) -> None:
        entry = msgspec.structs.replace(
            entry, name=name, id=facts.id, size=facts.size, modified=facts.modified,
            whole=entry.whole and not longer,
        )  # fmt: skip
        state.known.set(entry)
        if not entry.whole:
            state.waiting[name] = Waiting(facts, entry)

    def _has_print(self, name: str, entry: FileRead) -> bool:
        """Say whether a file has the content that was read under another name."""
        try:
            with open_file(self._folder, unescaped(name), "look") as file:
                return has_print(entry, file, is_text=self._format.is_text)
        except OSError:
            return False

    def _find_copies(self, changes: _Changes, state: State, seen: _Seen) -> None:
        """Find where the content is of files that are gone: in a copy, or in one that is compressed."""
        for name in changes.fresh:
            packed = kind_of(name).compression is not None
            if packed and self._is_being_packed(name, state, changes.lost, seen):
                changes.links[name] = None
                continue
            for entry in changes.lost:
                emptied = entry.name in changes.emptied or entry.name in changes.rewritten
                mayhap = entry.read and entry.head and (packed or emptied)
                if mayhap and self._has_print(name, entry):
                    changes.moved[name] = Elsewhere(entry, name_hash(entry.name))
                    changes.lost.remove(entry)
                    break
            else:
                if packed and (old := self._packed_long_ago(name, state, seen)) is not None:
                    changes.moved[name] = old

    def _is_being_packed(self, name: str, state: State, lost: list[FileRead], seen: _Seen) -> bool:
        """Say whether a compressed file is that of another one, which is there, too: it counts once."""
        stem = name.rpartition(".")[0]
        if not self._begin_alike(name, stem):
            return False
        if stem in state.waiting or (stem in seen.facts and state.known.get(stem) is None):
            state.more = True  # the other one is read first, and then they are compared
            return True
        original = state.known.get(stem)
        if original is None or any(of.name == stem for of in lost):
            return False
        now = self._folder.facts(unescaped(stem))
        if now is None or not _is(original, now):
            return False
        if not original.whole:
            state.more = True
            return True
        try:
            with open_file(self._folder, unescaped(name), "look") as file:
                if has_print(original, file, is_text=True):
                    return True
                begun = not file.opened.reaches(original.head_bytes)
                return file.torn and (begun or has_head(original, file, is_text=True))
        except OSError:
            return True

    def _begin_alike(self, name: str, other: str) -> bool:
        """Say whether two files that are there begin alike, as far as both can be read."""
        try:
            with (
                open_file(self._folder, unescaped(name), "look") as one,
                open_file(self._folder, unescaped(other), "look") as two,
            ):
                heads = one.opened.file.read(PRINT_BYTES), two.opened.file.read(PRINT_BYTES)
        except OSError:
            return False
        common = min(map(len, heads))
        return heads[0][:common] == heads[1][:common]

    def _packed_long_ago(self, name: str, state: State, seen: _Seen) -> Elsewhere | None:
        """Return what was read, of a file that is in a catalog, and is gone, and compressed in this one."""
        original = state.known.get(name.rpartition(".")[0])
        try:
            with open_file(self._folder, unescaped(name), "look") as file:
                if original is not None and has_print(original, file, is_text=True):
                    return Elsewhere(original, name_hash(original.name))
                if not seen.hashes:
                    return None
                for other in state.known.with_head(prints_of_head(file)):
                    there = any(bool((of == np.uint64(other.hash)).any()) for of in seen.hashes)
                    if not there and has_print(other.entry, file, is_text=True):
                        return other
        except OSError:
            pass
        return None

    def _apply(self, state: State, seen: _Seen, changes: _Changes) -> None:
        """Note all of it."""
        known = state.known
        for entry, _ in changes.moved.values():
            known.drop(entry.name)
            state.waiting.pop(entry.name, None)
        for name, (entry, hash_) in changes.moved.items():
            moved = msgspec.structs.replace(entry, left=[*entry.left, f"{hash_:016x}"])
            facts = seen.facts[name]
            packed = kind_of(name).compression != kind_of(entry.name or name).compression
            longer = self._format.is_text and (packed or facts.size != entry.size)
            self._note_longer(name, facts, moved, state, longer=longer)
        for name in changes.rewritten:
            log.warning(
                "%s was written again, and is read from its beginning",
                self._folder.shown(unescaped(name)),
            )
            known.drop(name)
        for name in (*changes.fresh, *changes.rewritten):
            if name not in changes.moved and name not in changes.links:
                state.waiting[name] = Waiting(seen.facts[name], None)

    def _lost(self, entry: FileRead) -> SourceChanged:
        there = self._folder.facts(unescaped(entry.name))
        if there is not None:
            return self._changed(entry)
        return SourceChanged(
            f"{entry.name!r} is gone, and was read only up to {entry.read:,}",
            place=self._folder.shown(unescaped(entry.name)),
            remedy="bring it back; a file may go when all of it has been read",
        )

    def _changed(self, entry: FileRead) -> SourceChanged:
        shown = self._folder.shown(unescaped(entry.name))
        return SourceChanged(
            f"{shown} was known to have {entry.read:,} {self._format.unit}, and has others now",
            place=shown,
            remedy="give new records a file of a new name, and leave what is read as it is; to go on, "
            "bring the file back",
        )


def reads(format: str, kind: Kind) -> bool:
    """Say whether a file of a kind is read as a format. (Parquet is compressed inside.)"""
    return kind.format == format and not (format == "parquet" and kind.compression)


def _may_be(entry: FileRead, facts: Facts) -> bool:
    """Say whether a file may have been renamed: inodes are used again, but renaming changes no time."""
    return facts.size != entry.size or facts.modified == entry.modified


def _is(entry: FileRead, facts: Facts) -> bool:
    return bool(entry.id) and id_number(entry.id) == id_number(facts.id)
