"""What has happened to files since the last look: new, longer, renamed, rewritten or gone.

``matching`` decides which file is which. This module collects the evidence for it, and records what
it finds.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import BadInput, SourceChanged
from headrace.sources.files.catalog import id_number, name_hash, name_hashes
from headrace.sources.files.copies import (
    LATER,
    SOON,
    Copy,
    begin_alike,
    comes_first,
    compared,
    gone_on,
    holds_records,
    names_beside,
)
from headrace.sources.files.folders import Facts, Folder, Listed
from headrace.sources.files.known import Known
from headrace.sources.files.matching import Matches, NotLookedAt, Remembered, match
from headrace.sources.files.names import (
    NameEndings,
    Pattern,
    escaped,
    is_hidden,
    kind_of,
    unescaped,
)
from headrace.sources.files.opening import (
    OpenFile,
    has_head,
    has_print,
    open_file,
    prints_of_head,
    typed_errors,
)
from headrace.sources.files.position import FileRead
from headrace.sources.formats import FileFormat

log = logging.getLogger("headrace")

#: Maximum number of waiting files that are remembered. The rest are looked for again.
_WAITING_FILES = 100_000
#: Up to this number of files, every look examines all of them.
_FEW_FILES = 2_000
#: Minimum pause between looks at many files, in multiples of the time that the last one took.
_SHARE = 20


class Waiting(NamedTuple):
    """A file that has something to read.

    Attributes:
        facts: its facts when it was looked at.
        entry: what was read of it; None for nothing.
    """

    facts: Facts
    entry: FileRead | None


class State:
    """What is known at a position, and what there is to read.

    Attributes:
        known: what was read.
        waiting: the files that have something to read, by their (escaped) names.
        more: whether more files wait than are remembered.
        looked: whether the files were looked at, at this position or an earlier one.
        exhausted: whether all waiting files were tried when something was last taken.
        goes_on: whether files may still be written.
        undecided: files that will be compared with others beside them once these have been read.
        there: the number of files that existed when all of them were last looked at.
        there_hashes: the hashes of their names; None after they were compared with what is known.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.waiting: dict[str, Waiting] = {}
        self.more = False
        self.looked = False
        self.exhausted = False
        self.goes_on = True
        self.undecided: dict[str, Facts] = {}
        self.there = 0
        self.there_hashes: npt.NDArray[np.uint64] | None = None

    def copy(self) -> State:
        """Return a copy that can be changed."""
        other = State(self.known.copy())
        other.waiting = {**self.waiting}
        other.more, other.looked, other.there = self.more, self.looked, self.there
        other.there_hashes, other.exhausted = self.there_hashes, self.exhausted
        other.goes_on, other.undecided = self.goes_on, self.undecided
        return other


class _Seen:
    """What one look at the files shows.

    Attributes:
        everything: whether all files were looked at.
        facts: the facts of files that are new or have changed, by name.
        given: the facts of recent files, if the listing includes them.
        hashes: the hashes of the names of all files that were listed.
    """

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        self.facts: dict[str, Facts] = {}
        self.given: dict[str, Facts] = {}
        self.hashes: list[npt.NDArray[np.uint64]] = []
        self._names: dict[int, str] | None = None

    def name_of(self, hash_: int) -> str | None:
        """Return the name of a file that is new or has changed, by its hash."""
        if self._names is None:
            self._names = {name_hash(name): name for name in self.facts}
        return self._names.get(hash_)

    def is_listed(self, hash_: int) -> bool:
        """Return whether a name was listed. Valid only if everything was."""
        return any(bool((part == np.uint64(hash_)).any()) for part in self.hashes)


class Tracker:
    """Looks at files and finds out what has happened to them.

    Args:
        folder: the folder that the files are in.
        pattern: which files are read.
        format: the format of their content.
        unread: called with a name that is not read because of its suffix.
    """

    def __init__(
        self,
        folder: Folder,
        pattern: Pattern,
        format: FileFormat,
        unread: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._pattern = pattern
        self._format = format
        self._unread = unread
        self._next_sweep = self._next_look = 0.0
        self._sought: dict[int, FileRead] = {}  # files that are gone, by the hashes of their names

    # -- looking --------------------------------------------------------------------------------

    def look(self, state: State) -> None:
        """Find what there is to read, and the current names of what was read.

        Raises:
            SourceChanged: if a file that was read has changed, or is gone before all of it was
                read.
        """
        everything = self._wants_everything(state)
        began = time.monotonic()
        try:
            is_complete = self._look(state, everything)
        except SourceChanged:
            # A look is not atomic: it may miss a file that is renamed meanwhile under both names.
            is_complete = False
        if not is_complete:
            everything = True
            self._look(state, everything)
        now = time.monotonic()
        self._next_look = now + _SHARE * (now - began)
        if everything:
            self._next_sweep = self._next_look
        state.looked = True

    def is_time_to_look(self) -> bool:
        """Return whether enough time has passed that looking again takes only its share of it."""
        return time.monotonic() >= self._next_look

    def _wants_everything(self, state: State) -> bool:
        if not state.looked or state.more or state.undecided:
            return True
        if len(state.known) > 2 * state.there + 10_000:
            return True  # many may be gone, and are to be forgotten
        return state.there <= _FEW_FILES or time.monotonic() >= self._next_sweep

    def _look(self, state: State, everything: bool) -> bool:
        """Look once; return False if more must be looked at to decide."""
        seen = _Seen(everything=everything)
        if everything:
            state.waiting, state.more = {}, False
        for listed in self._folder.listed(self._pattern, changes_only=not everything):
            self._note(listed, state, seen)
        gone = self._of_late(state, seen)
        evidence = _Evidence(self._folder, self._format, state, seen)
        try:
            matches = match(seen.facts, gone, evidence)
        except NotLookedAt:
            return False
        if not everything and not all(of.entry.whole for of in matches.lost):
            return False  # it may now be the name of a file that was not looked at
        self._follow(matches, seen, evidence)
        self._refuse(matches)
        self._apply(state, seen, matches)
        if everything:
            there = np.concatenate(seen.hashes) if seen.hashes else np.empty(0, np.uint64)
            state.there, state.there_hashes = len(there), there
        return True

    def _note(self, listed: Listed, state: State, seen: _Seen) -> None:
        """Record which of some files are new or have changed."""
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
        over: list[int] = []  # more than can be remembered; some may be renamed files
        for at, name in enumerate(names):
            if name in recent or name in waiting:
                if name in recent and (of := facts[at]) is not None:
                    seen.given[name] = of
                continue  # examined by name
            if in_catalogs[at] and not seen.everything and facts[at] is None:
                continue  # examined when everything is
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
        """Return whether a file is read, judged by its suffixes."""
        kind = kind_of(name)
        if not self._pattern.is_folder:
            return True
        if reads(self._format.name, kind):
            return True
        self._unread(name)
        return False

    def _of_late(self, state: State, seen: _Seen) -> list[Remembered]:
        """Look at the files that were read recently; return those whose names are gone."""
        gone = []
        for name, entry in state.known.recent.items():
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

    def _follow(self, matches: Matches, seen: _Seen, evidence: _Evidence) -> None:
        """Find files whose new names are not input, such as a log rotated to ``app.jsonl.1``."""
        if not self._format.is_text or not matches.lost:
            return
        lost: list[Remembered] = []
        directories: dict[str, dict[str, list[str]]] = {}
        for of in matches.lost:
            name = self._name_elsewhere(of, directories)
            if name is None or name in seen.facts or name in matches.same:
                lost.append(of)
                continue
            facts = self._folder.facts(unescaped(name))
            if facts is None or not evidence.begins_with(name, of):
                lost.append(of)
            else:
                seen.facts[name], matches.same[name] = facts, of
        matches.lost = lost

    def _name_elsewhere(
        self, of: Remembered, directories: dict[str, dict[str, list[str]]]
    ) -> str | None:
        """Return the name in its directory that a lost file has now, and that is not input."""
        entry = of.entry
        if not entry.name or not entry.id or self._sought.get(of.hash) == entry:
            return None
        raw = unescaped(entry.name)
        directory = raw[: raw.rfind("/") + 1]
        if directory not in directories:
            directories[directory] = self._folder.names_by_id(directory)
        for name in sorted(directories[directory].get(entry.id, ())):
            if not is_hidden(name.rpartition("/")[2]) and not self.is_input(name):
                return escaped(name)
        self._sought[of.hash] = entry  # it is gone; do not look for it each time
        return None

    def is_input(self, name: str) -> bool:
        """Return whether a name is input. A rotated log may be read on under a name that is not."""
        if self._pattern.is_folder:
            return reads(self._format.name, kind_of(name))
        return self._pattern.matches(name)

    # -- results --------------------------------------------------------------------------------

    def _refuse(self, matches: Matches) -> None:
        """Raise an error for what makes it impossible to continue.

        Raises:
            SourceChanged: if a file that was read has changed, or is gone before all of it was
                read.
        """
        for of in matches.changed:
            raise self._changed(of.entry)
        for of in matches.lost:
            if not of.entry.whole:
                raise self._lost(of.entry)
        for name, of in matches.doubtful:
            raise self._doubtful(name, of.entry)

    def _apply(self, state: State, seen: _Seen, matches: Matches) -> None:
        """Record the result of matching in the state."""
        known = state.known
        for name, of in matches.same.items():
            if of.hash != name_hash(name):
                known.drop(of.hash)
                state.waiting.pop(of.entry.name, None)
        elsewhere = {of.hash for of in matches.same.values()}  # their old content has another name
        for name in matches.rewritten:
            known.drop(name_hash(name))
            if self.is_input(unescaped(name)) and name_hash(name) not in elsewhere:
                shown = self._folder.shown(unescaped(name))
                log.warning("%s was written again, and is read from its beginning", shown)
        for name, of in matches.same.items():
            self._go_on(name, seen.facts[name], of.entry, state)
        for name, entry in matches.copies.items():
            known.set(entry)
            if entry.whole:
                state.waiting.pop(name, None)
            else:
                state.waiting[name] = Waiting(seen.facts[name], entry)
        state.undecided = {of: seen.facts[of] for of, soon in matches.waiting.items() if soon}
        for name in (*matches.fresh, *matches.rewritten):
            if self.is_input(unescaped(name)):
                state.waiting[name] = Waiting(seen.facts[name], None)

    def _go_on(self, name: str, facts: Facts, entry: FileRead, state: State) -> None:
        """Record the current name of a file, and whether there may be more of it."""
        is_other = not _has_id(entry, facts)  # sizes cannot be compared then: it may be compressed
        is_plain = kind_of(name).compression is None
        as_read = is_other and is_plain and facts.size == entry.read
        longer = self._format.is_text and (is_other or facts.size != entry.size) and not as_read
        entry = msgspec.structs.replace(
            entry,
            name=name,
            id=facts.id,
            size=facts.size,
            modified=facts.modified,
            whole=entry.whole and not longer,
        )
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


def reads(format: str, kind: NameEndings) -> bool:
    """Return whether a file of a kind is read as a format. Parquet is compressed inside only."""
    return kind.format == format and not (format == "parquet" and kind.compression)


def _has_id(entry: FileRead, facts: Facts) -> bool:
    return bool(entry.id) and id_number(entry.id) == id_number(facts.id)


class _Evidence:
    """What can be seen of the files; see :class:`headrace.sources.files.matching.Evidence`."""

    def __init__(self, folder: Folder, format: FileFormat, state: State, seen: _Seen) -> None:
        self._folder = folder
        self._format = format
        self._is_text = format.is_text
        self._state = state
        self._known = state.known
        self._seen = seen
        self._begin: dict[tuple[str, int], bool] = {}
        self._waiting: dict[str, str] | None = None
        self._by_name: dict[str, list[str]] | None = None

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
            raise NotLookedAt
        if not self._seen.is_listed(of.hash):
            return None
        return Facts(of.entry.id, of.entry.size, of.entry.modified, -1)  # as it was then

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
            return False  # if it still exists, the error is raised when it is read

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
        # Inodes are reused, but renaming does not change a file's modification time.
        unchanged = of.entry.size == facts.size and of.entry.modified == facts.modified
        return unchanged or of.entry.size != facts.size or not self._folder.ids_return

    def is_packed(self, name: str) -> bool:
        return kind_of(name).compression is not None

    def head_of(self, name: str) -> Callable[[int], str]:
        try:
            with self._open(name) as file:
                return prints_of_head(file, is_text=self._is_text)
        except OSError:
            return lambda size: ""

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[OpenFile]:
        with open_file(self._folder, unescaped(name), "look") as file:
            yield file

    # -- files beside each other ------------------------------------------------------------------

    def copy_of(self, name: str) -> Copy | None:
        if not self._is_text:
            return None
        beside = self._names_beside().get(name)
        if not beside:
            return None
        try:
            with self._open(name) as file:
                if not holds_records(file, self._format):
                    return None
                found = [of for of in (self._beside(name, file, other) for other in beside) if of]
                best = max((of for of in found if of.entry is not None), key=_how_far, default=None)
                if best is not None and self._has_more_of_gone(file, beside, best):
                    return None  # it is the file that is gone
        except OSError:
            return LATER
        except BadInput:
            return None  # the error is raised when it is read
        waits = [of for of in found if of.entry is None]
        return waits[0] if waits else best

    def _names_beside(self) -> dict[str, list[str]]:
        """Return, for each new name, the names beside it under which files exist or were read."""
        if self._by_name is None:
            pairs = [(name, other) for name in self._seen.facts for other in names_beside(name)]
            known = self._known.in_catalogs(name_hashes([other for _, other in pairs])).tolist()
            places = self._known.recent, self._state.waiting, self._seen.facts
            self._by_name = {}
            for (name, other), is_known in zip(pairs, known, strict=True):
                if is_known or any(other in place for place in places):
                    self._by_name.setdefault(name, []).append(other)
        return self._by_name

    def _beside(self, name: str, file: OpenFile, other: str) -> Copy | None:
        """Compare a file with another one beside it."""
        entry = self._known.get(other)
        if entry is not None and entry.read == 0:
            entry = None
        facts = self._folder.facts(unescaped(other))
        if facts is None:
            return self._beside_gone(name, file, entry)
        with self._open(other) as one:
            if not begin_alike(file, one) or not holds_records(one, self._format):
                return None
            if entry is None:
                waits = other in self._state.waiting or other in self._seen.facts
                return SOON if waits and comes_first(one, file) else None
            as_read = (facts.id, facts.size, facts.modified) == _as_read(entry, facts)
            is_all_read = entry.whole and as_read
            if not is_all_read and not has_print(entry, one, is_text=True):
                return SOON
            found = compared(name, file, entry, one, goes_on=self._state.goes_on)
            is_known = found is None or (found.entry is not None and found.entry.whole)
            return found if is_all_read or is_known else SOON

    def _has_more_of_gone(self, file: OpenFile, beside: list[str], best: Copy) -> bool:
        """Return whether a file holds one that is gone, with more read of it than of the best."""
        if best.entry is None or best.entry.whole:
            return False
        for other in beside:
            entry = self._known.get(other)
            if entry is None or entry.read <= best.entry.read:
                continue
            gone = self._folder.facts(unescaped(other)) is None
            if gone and has_print(entry, file, is_text=True):
                return True
        return False

    def _beside_gone(self, name: str, file: OpenFile, original: FileRead | None) -> Copy | None:
        """Return the verdict on a copy whose original grew and is gone: the copy continues it."""
        own = self._known.get(name)
        if original is None or own is None or not own.copy or own.read >= original.read:
            return None
        if not original.whole or not has_print(original, file, is_text=True):
            return None
        return Copy(gone_on(name, original, file))

    def gone_in(self, name: str) -> Remembered | None:
        if not self._is_text:
            return None
        beside = [of for of in self._names_beside().get(name, ()) if self._known.get(of)]
        by_head = self.is_packed(name) and self._seen.hashes and self._known.catalogs
        if not beside and not by_head:
            return None
        try:
            with self._open(name) as file:
                for other in beside:
                    original = self._known.get(other)
                    there = self._folder.facts(unescaped(other))
                    if original is None or not original.read or there is not None:
                        continue
                    if has_print(original, file, is_text=True):
                        return Remembered(original, name_hash(other))
                if not by_head:
                    return None
                for of in self._known.with_head(prints_of_head(file, is_text=True)):
                    is_gone = not self._seen.is_listed(of.hash)
                    if is_gone and has_print(of.entry, file, is_text=True):
                        return of
        except OSError:
            pass
        return None


def _how_far(copy: Copy) -> int:
    return 0 if copy.entry is None else copy.entry.read


def _as_read(entry: FileRead, facts: Facts) -> tuple[str, int, int]:
    """Return the facts at the last read, with the id written as in ``facts`` if it is the same."""
    return facts.id if _has_id(entry, facts) else entry.id, entry.size, entry.modified
