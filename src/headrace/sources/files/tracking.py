"""What has become of the files since they were last looked at: new, longer, renamed, written again, gone.

``matching`` decides which file is which; here is seen what it asks for, and noted what it finds.
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
from headrace.sources.files.known import Known
from headrace.sources.files.matching import Matches, Remembered, Untold, match
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
        exhausted: whether all that wait were tried when something was last taken.
        there, there_hashes: how many files there are, as of when all of them were looked at, and the
            hashes of their names, until they were compared with what is known.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.waiting: dict[str, Waiting] = {}
        self.more = False
        self.looked = False
        self.exhausted = False
        self.there = 0
        self.there_hashes: npt.NDArray[np.uint64] | None = None

    def copy(self) -> State:
        """Return the same, to be changed."""
        other = State(self.known.copy())
        other.waiting = {**self.waiting}
        other.more, other.looked, other.there = self.more, self.looked, self.there
        other.there_hashes, other.exhausted = self.there_hashes, self.exhausted
        return other


class _Seen:
    """What one look at the files shows.

    Attributes:
        everything: whether all files were looked at.
        facts: of files that are new, or not as they were, by name.
        given: of files of late, where a listing says it.
        hashes: of the names of all files that were listed.
    """

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        self.facts: dict[str, Facts] = {}
        self.given: dict[str, Facts] = {}
        self.hashes: list[npt.NDArray[np.uint64]] = []
        self._names: dict[int, str] | None = None

    def name_of(self, hash_: int) -> str | None:
        """Return the name of a file that is new or changed, by its hash."""
        if self._names is None:
            self._names = {name_hash(name): name for name in self.facts}
        return self._names.get(hash_)

    def is_listed(self, hash_: int) -> bool:
        """Say whether a name was listed, where everything was."""
        return any(bool((part == np.uint64(hash_)).any()) for part in self.hashes)


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
        self._next_sweep = self._next_look = 0.0

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
        now = time.monotonic()
        self._next_look = now + _SHARE * (now - began)
        if everything:
            self._next_sweep = self._next_look
        state.looked = True

    def is_time_to_look(self) -> bool:
        """Say whether looking takes its share of the time by now, and no more."""
        return time.monotonic() >= self._next_look

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
        seen = _Seen(everything=everything)
        if everything:
            state.waiting, state.more = {}, False
        for listed in self._folder.listed(self._pattern, changes_only=not everything):
            self._note(listed, state, seen)
        gone = self._of_late(state, seen)
        try:
            matches = match(seen.facts, gone, _Evidence(self._folder, self._format, state, seen))
        except Untold:
            return False
        if not everything and not all(of.entry.whole for of in matches.lost):
            return False  # (it may have another name, of a file that was not looked at)
        self._refuse(matches)
        self._apply(state, seen, matches)
        if everything:
            there = np.concatenate(seen.hashes) if seen.hashes else np.empty(0, np.uint64)
            state.there, state.there_hashes = len(there), there
        return True

    def _note(self, listed: Listed, state: State, seen: _Seen) -> None:
        """Note what is new or changed among some files."""
        names, facts = [], []
        for raw, known_facts in listed:
            if self.wants(raw):
                names.append(escaped(raw))
                facts.append(known_facts)
        if not names:
            return
        hashes = name_hashes(names)
        if seen.everything:
            seen.hashes.append(hashes)
        in_catalogs = state.known.in_catalogs(hashes)
        recent, waiting = state.known.recent, state.waiting
        looked_at: list[int] = []
        over: list[int] = []  # more than are remembered, of which some may have been renamed
        for at, name in enumerate(names):
            if name in recent or name in waiting:
                if name in recent and (of := facts[at]) is not None:
                    seen.given[name] = of
                continue  # (looked at by name)
            if in_catalogs[at] and not seen.everything:
                continue
            if not in_catalogs[at] and len(waiting) + len(seen.facts) >= _WAITING_FILES:
                state.more = True
                over.append(at)
                continue
            looked_at.append(at)
        there = self._facts_of(looked_at, names, facts)
        if over and self._folder.ids_stay:
            of_over = self._facts_of(over, names, facts)
            are_known = state.known.has_ids([of.id for _, of in of_over])
            there += [of for of, is_known in zip(of_over, are_known, strict=True) if is_known]
        rows = np.array([at for at, _ in there], dtype=np.int64)
        same = state.known.unchanged(hashes[rows], [of for _, of in there])
        for (at, of), is_same in zip(there, same.tolist(), strict=True):
            if not is_same:
                seen.facts[names[at]] = of

    def _facts_of(
        self, at: list[int], names: list[str], facts: list[Facts | None]
    ) -> list[tuple[int, Facts]]:
        found = [(of, facts[of] or self._folder.facts(unescaped(names[of]))) for of in at]
        return [(of, its) for of, its in found if its is not None]

    def wants(self, name: str) -> bool:
        """Say whether a file is read, by the endings of its name."""
        kind = kind_of(name)
        if not self._pattern.is_folder:
            return True
        if reads(self._format.name, kind):
            return True
        self._unread(name)
        return False

    def _of_late(self, state: State, seen: _Seen) -> list[Remembered]:
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
                gone.append(Remembered(entry, name_hash(name)))
            elif (facts.id, facts.size, facts.modified) == (entry.id, entry.size, entry.modified):
                if not entry.whole:
                    state.waiting[name] = Waiting(facts, entry)
            else:
                seen.facts[name] = facts
        return gone

    # -- what has become of them ----------------------------------------------------------------

    def _refuse(self, matches: Matches) -> None:
        """Raise what cannot be gone on with.

        Raises:
            SourceChanged: where a file was changed that was read, or is gone before all of it was.
        """
        for of in matches.changed:
            raise self._changed(of.entry)
        for of in matches.lost:
            if not of.entry.whole:
                raise self._lost(of.entry)
        for name, of in matches.doubtful:
            raise self._doubtful(name, of.entry)

    def _apply(self, state: State, seen: _Seen, matches: Matches) -> None:
        """Note all of it."""
        known = state.known
        for name, of in matches.same.items():
            if of.hash != name_hash(name):
                known.drop(of.hash)
                state.waiting.pop(of.entry.name, None)
        for name in matches.rewritten:
            shown = self._folder.shown(unescaped(name))
            log.warning("%s was written again, and is read from its beginning", shown)
            known.drop(name_hash(name))
        for name, of in matches.same.items():
            self._go_on(name, seen.facts[name], of.entry, state)
        for name in (*matches.fresh, *matches.rewritten):
            state.waiting[name] = Waiting(seen.facts[name], None)

    def _go_on(self, name: str, facts: Facts, entry: FileRead, state: State) -> None:
        """Note under which name a file is now, and whether there may be more of it."""
        is_other = not _has_id(entry, facts)  # (sizes say nothing then: it may be compressed)
        longer = self._format.is_text and (is_other or facts.size != entry.size)
        entry = msgspec.structs.replace(
            entry, name=name, id=facts.id, size=facts.size, modified=facts.modified,
            whole=entry.whole and not longer,
        )  # fmt: skip
        state.known.set(entry)
        if entry.whole:
            state.waiting.pop(name, None)
        else:
            state.waiting[name] = Waiting(facts, entry)

    def _doubtful(self, name: str, entry: FileRead) -> SourceChanged:
        shown = self._folder.shown(unescaped(name))
        return SourceChanged(
            f"{shown} is either what was read as {entry.name or 'another file'!r}, renamed and touched, "
            "or another file with the same content",
            place=shown,
            remedy="if it was read, take it away; if its records are to count again, copy it to a new name "
            "and take this one away",
        )

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


def _has_id(entry: FileRead, facts: Facts) -> bool:
    return bool(entry.id) and id_number(entry.id) == id_number(facts.id)


class _Evidence:
    """What can be seen of the files: see :class:`headrace.sources.files.matching.Evidence`."""

    def __init__(self, folder: Folder, format: FileFormat, state: State, seen: _Seen) -> None:
        self._folder = folder
        self._is_text = format.is_text
        self._state = state
        self._known = state.known
        self._seen = seen
        self._begin: dict[tuple[str, int], bool] = {}
        self._waiting: dict[str, str] | None = None

    @property
    def ids_stay(self) -> bool:
        return self._folder.ids_stay

    def hash_of(self, name: str) -> int:
        return name_hash(name)

    def same_id(self, entry: FileRead, facts: Facts) -> bool:
        return _has_id(entry, facts)

    def of_name(self, name: str) -> Remembered | None:
        entry = self._known.get(name)
        return None if entry is None else Remembered(entry, name_hash(name))

    def of_id(self, facts: Facts) -> list[Remembered]:
        return self._known.with_id(facts.id) if facts.id else []

    def facts_at(self, of: Remembered) -> Facts | None:
        name = of.entry.name or self._seen.name_of(of.hash)
        if name is not None:
            return self._seen.facts.get(name) or self._folder.facts(unescaped(name))
        if not self._seen.everything:
            raise Untold
        if not self._seen.is_listed(of.hash):
            return None
        return Facts(of.entry.id, of.entry.size, of.entry.modified, -1)  # (as it was then)

    def waits_already(self, name: str, facts: Facts) -> bool:
        if self._waiting is None:
            self._waiting = {of.facts.id: name for name, of in self._state.waiting.items()}
        other = self._waiting.get(facts.id)
        if other in (None, name):
            return False
        there = self._folder.facts(unescaped(other))
        return there is not None and (there.device, there.id) == (facts.device, facts.id)

    def begins_with(self, name: str, of: Remembered) -> bool:
        key = name, of.hash
        if key not in self._begin:
            self._begin[key] = self._begins_with(name, of)
        return self._begin[key]

    def _begins_with(self, name: str, of: Remembered) -> bool:
        is_own = of.hash == name_hash(name)
        try:
            with (
                typed_errors(self._folder.shown(unescaped(name))),
                open_file(self._folder, unescaped(name), "look") as file,
            ):
                return has_print(of.entry, file, is_text=self._is_text)
        except SourceChanged:
            if is_own:
                raise
            return False  # (if it is still there, it is an error when it is read)

    def is_changed(self, name: str, of: Remembered) -> bool:
        entry = of.entry
        if not self._is_text or not entry.head_bytes:
            return False
        with (
            typed_errors(self._folder.shown(unescaped(name))),
            open_file(self._folder, unescaped(name), "look") as file,
        ):
            begins = has_head(entry, file, is_text=True)
            return begins and (entry.whole or file.opened.reaches(entry.read))

    def may_be_renamed(self, name: str, of: Remembered, facts: Facts) -> bool:
        # (inodes are used again, but renaming changes no time)
        unchanged = of.entry.size == facts.size and of.entry.modified == facts.modified
        return unchanged or of.entry.size != facts.size or not self._folder.ids_return

    def is_packed(self, name: str) -> bool:
        return kind_of(name).compression is not None

    def is_packed_beside(self, name: str, lost: frozenset[int]) -> bool:
        stem = name.rpartition(".")[0]
        if not self._begin_alike(name, stem):
            return False
        state, original = self._state, self._known.get(stem)
        if stem in state.waiting or (stem in self._seen.facts and original is None):
            state.more = True  # the other one is read first, and then they are compared
            return True
        if original is None or name_hash(stem) in lost:
            return False
        now = self._folder.facts(unescaped(stem))
        if now is None or not self.same_id(original, now):
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

    def packed_of(self, name: str) -> Remembered | None:
        stem = name.rpartition(".")[0]
        original = self._known.get(stem)
        try:
            with open_file(self._folder, unescaped(name), "look") as file:
                if original is not None and has_print(original, file, is_text=True):
                    return Remembered(original, name_hash(stem))
                if not self._seen.hashes:
                    return None
                for other in self._known.with_head(prints_of_head(file)):
                    there = self._seen.is_listed(other.hash)
                    if not there and has_print(other.entry, file, is_text=True):
                        return other
        except OSError:
            pass
        return None
