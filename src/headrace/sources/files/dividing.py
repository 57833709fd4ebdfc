"""Division of files into steps: what comes after a position, and where its parts are today."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from headrace.errors import BadInput, PipelineError, SourceChanged
from headrace.pipeline.source import Limit, Offer, Part, Position, Split
from headrace.sources.files.catalog import Catalogs, name_hashes
from headrace.sources.files.copies import names_beside
from headrace.sources.files.folders import Facts, Folder
from headrace.sources.files.known import Known
from headrace.sources.files.names import Pattern, escaped, kind_of, unescaped
from headrace.sources.files.opening import (
    OpenFile,
    Recorded,
    check_of_parquet,
    has_print,
    open_file,
    typed_errors,
    with_print,
)
from headrace.sources.files.partitions import PartitionOf
from headrace.sources.files.position import (
    FileRead,
    FilesPosition,
    OldPosition,
    PartRead,
    decoded,
    encoded,
)
from headrace.sources.files.settling import is_settled
from headrace.sources.files.tracking import State, Tracker, Waiting
from headrace.sources.files.whereabouts import Whereabouts
from headrace.sources.formats import Cut, FileFormat, OpenedFile
from headrace.sources.formats.base import Wanted
from headrace.storage.base import Store

log = logging.getLogger("headrace")

#: Maximum number of files whose parts one step reads.
_STEP_FILES = 1_000
#: Maximum number of logs that are read on after they were rotated to names that are not input.
_ROTATED_LOGS = 64
#: No other files are looked for while at least this many wait to be read.
_ENOUGH_FILES = 256
_PARQUET_ENDS = (b"PAR1", b"PARE")

#: Returns up to where a file may be read, by its name and facts; None for not at all.
Bound = Callable[[str, Facts], "int | None"]
_NO_LIMIT = 1 << 62


class Divider:
    """Offers what comes after a position, for one reader of the files.

    Args:
        folder: the folder that the files are in.
        pattern: which files are read.
        format: the format of their content.
        wanted: returns the columns that are read of a file, by its name.
        partition_of: returns the partition of a file's records, by its name.
        watch: whether to wait for more.
        moved_from: where the folder was, if it was moved.
        passed_over: called with a name that is not read because of its suffix.
    """

    def __init__(
        self,
        folder: Folder,
        pattern: Pattern,
        format: FileFormat,
        wanted: Callable[[str], Wanted],
        partition_of: PartitionOf,
        *,
        watch: bool,
        moved_from: str | None,
        passed_over: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._pattern = pattern
        self._format = format
        self._wanted = wanted
        self._partition_of = partition_of
        self._watch = watch
        self._moved_from = moved_from
        self._tracker = Tracker(folder, pattern, format, passed_over)
        self._catalogs: Catalogs | None = None
        self._states: list[tuple[Position, State]] = []
        self._uncommitted: set[str] = (
            set()
        )  # files with parts that were read but are not in a checkpoint yet
        self._logged_nothing = False
        self._dry: dict[str, _Dry] = {}
        self._held: set[str] = set()  # incomplete files that have been logged

    def open(self, store: Store | None) -> None:
        """Start over: another run may have read more since."""
        self._states = []
        self._dry = {}
        self._uncommitted = set()
        self._catalogs = None if store is None else Catalogs(store, os.urandom(6).hex())

    # -- positions ------------------------------------------------------------------------------

    def _state(self, position: Position, *, go_on: bool = True) -> State:
        """Return the state at a position.

        Args:
            position: the position.
            go_on: whether this reader continues from it.
        """
        for at, state in self._states:
            if at == position:
                return state
        of = decoded(position)
        state = self._of_old(of) if isinstance(of, OldPosition) else self._of(of, go_on)
        self._remember(position, state)
        return state

    def _remember(self, position: Position, state: State) -> None:
        others = [(at, other) for at, other in self._states if at != position]
        self._states = [(position, state), *others[:1]]

    def _of(self, position: FilesPosition, go_on: bool) -> State:
        self._check_place(position)
        refs = position.catalogs
        if refs and self._catalogs is None:
            raise AssertionError("a position that names catalogs is read with a storage")
        catalogs = []
        if refs and self._catalogs is not None:
            catalogs = self._catalogs.load(refs, go_on=go_on)
        left = [int(of, 16) for of in position.left]
        return State(Known(position.files, refs, catalogs, left, position.forgotten))

    def _check_place(self, position: FilesPosition) -> None:
        """Check that a position belongs to this folder.

        Raises:
            SourceChanged: if it belongs to another one.
        """
        was, place = position.folder, self._folder.place()
        if was is None or was.is_that_of(place):
            return
        if self._moved_from is not None and was.path in (
            self._moved_from,
            escaped(os.path.realpath(self._moved_from)),
        ):
            return
        if self._pattern.names_one and was.path == self._folder.shown(self._pattern.parts[0]):
            raise SourceChanged(
                f"{self._pattern.shown} was a directory, and is none now",
                place=self._pattern.shown,
                remedy="bring it back (is it mounted?), then start again; to let the pipeline wait for it, "
                "end the path with '/'",
            )
        raise SourceChanged(
            f"what was read so far is not of {self._pattern.shown}, but of files in {was.path}",
            place=self._pattern.shown,
            remedy=f"if the folder was moved, say moved_from={was.path!r}; if these are other files, give "
            "the injector another name, or the pipeline another storage",
        )

    def _of_old(self, at: OldPosition) -> State:
        """Return the state at a position of an older version, which read files in order of names.

        Raises:
            SourceChanged: if it belongs to files elsewhere, or if new files sort before those read.
        """
        name = at.name
        if os.path.isabs(name):  # as in the oldest versions
            name = os.path.relpath(name, self._folder.location)
        elsewhere = name.startswith(os.pardir)
        if elsewhere or (at.levels and at.name and at.levels != self._pattern.levels):
            raise SourceChanged(
                f"what was read so far, up to {at.name!r}, is not of {self._pattern.shown}",
                place=self._pattern.shown,
                remedy="give the pattern that was given before; files may be moved together with "
                "their folders",
            )
        if not name:
            return State(Known())
        before = sorted(of for of in self.names() if of < name)
        if len(before) > at.done:
            raise SourceChanged(
                f"files have appeared that sort before {name!r}, while an older version was reading",
                place=self._pattern.shown,
                remedy=f"the first {at.done} files were read, the rest of these may not have been: "
                f"{', '.join(map(escaped, before[-3:]))}; take them away, and bring them back under other "
                "names once the pipeline has read on",
            )
        known = Known()
        for of in before:
            facts = self._folder.facts(of)
            if facts is not None:
                known.set(_as_of_old(escaped(of), facts, facts.size, whole=True))
        facts = self._folder.facts(name)
        if facts is not None and at.offset:
            known.set(_as_of_old(escaped(name), facts, at.offset, whole=False))
        elif at.offset and not at.ended:
            known.set(FileRead(escaped(name), at.offset, whole=False))
        known.forgotten = at.read - len(before) if at.read >= 0 else 0
        return State(known)

    def names(self) -> Iterator[str]:
        """Yield the names of all files that are read."""
        yield from (name for name, _ in self._listed())

    def _listed(self) -> Iterator[tuple[str, Facts | None]]:
        for some in self._folder.listed(self._pattern, changes_only=False):
            yield from (of for of in some if self._tracker.wants(of[0]))

    # -- offers ---------------------------------------------------------------------------------

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        """Return what comes after a position; None if nothing is there yet."""
        state = self._state(position)
        goes_on = state.goes_on = self._watch or limit.open_ended
        if not state.looked:
            self._look(state)
            self._check_there(state, goes_on=goes_on)
        elif state.undecided or (self._watch and limit.until is None and self._is_to_look(state)):
            self._look(state)
        self._warn_of_removed()
        new = state.copy()
        taken = self._take(new, limit, self._bound(limit), goes_on)
        was_stale = False
        while (taken.stale and not was_stale) or _is_behind(state, new, taken):
            if taken.stale:
                was_stale = True
            else:
                state = new  # files with nothing to take are not tried again
            state.looked = False
            self._look(state)
            new = state.copy()
            taken = self._take(new, limit, self._bound(limit), goes_on)
        if not goes_on and not new.waiting and new.more:
            new.looked = False  # the next offer looks for the rest
        is_all = not (new.waiting or new.more or new.undecided or taken.stale)
        final = not goes_on and is_all
        if not taken.parts and not final:
            self._remember(position, new)
            return None
        end = self._end(new, taken.parts)
        offer = Offer(
            end,
            taken.rows,
            taken.bytes,
            final=final,
            empty=not taken.parts,
            parts=self._parts(new, taken, goes_on),
        )
        self._remember(end, new)
        return offer

    def _is_to_look(self, state: State) -> bool:
        """Return whether to look for other files.

        Not while many files wait and some of them have not been tried, unless looking is due
        anyway.
        """
        few = len(state.waiting) < _ENOUGH_FILES
        return few or state.exhausted or self._tracker.is_time_to_look()

    def now(self, position: Position) -> Any:
        """Return a mark of what is there: what identifies a file → up to where it may be read."""
        state = self._state(position)
        self._look(state)
        self._check_there(state, goes_on=True)
        if state.more:
            return None
        facts = [of.facts for of in state.waiting.values()] + [*state.undecided.values()]
        return {_mark(of): of.size for of in facts}

    def _bound(self, limit: Limit) -> Bound:
        if limit.until is None:
            return lambda name, facts: _NO_LIMIT
        until: dict[str, int] = limit.until

        def bound(name: str, facts: Facts) -> int | None:
            size = until.get(_mark(facts))
            plain = self._format.is_text and kind_of(name).compression is None
            return size if plain or size is None else _NO_LIMIT

        return bound

    def _look(self, state: State) -> None:
        self._tracker.look(state)
        if state.more and self._partition_of.is_given:
            raise PipelineError(
                f"{self._pattern.shown} has too many files that wait to be read to know their partitions",
                place=self._pattern.shown,
                remedy="leave partition= out, or read fewer files at once",
            )

    def _check_there(self, state: State, *, goes_on: bool) -> None:
        """Check that files exist, unless the source waits for them.

        Raises:
            BadInput: if there never were any.
            SourceChanged: if there were, but are no longer.
        """
        known = len(state.known)
        if self._watch or state.there or (known and goes_on):
            return  # files may go once they have been read; the next run finds others
        if known:
            raise SourceChanged(
                f"{known} files were read, but now there are only {state.there}",
                place=self._pattern.shown,
                remedy="bring the files back (is the directory mounted?), then start again",
            )
        if goes_on and self._folder.is_there():
            if not self._logged_nothing:
                self._logged_nothing = True
                log.warning("%s matches no file so far", self._pattern.shown)
            return
        raise BadInput(
            f"{self._pattern.shown} matches no file",
            place=self._pattern.shown,
            remedy="fix the path; with watch=True, format= and a type that has the time's column "
            "the pipeline waits for files",
        )

    def _end(self, state: State, parts: list[PartRead]) -> Position:
        """Return the position after some parts."""
        known = state.known
        stay = {part.name for part in parts} | state.waiting.keys() | self._rotated(known)
        known.put_away(self._catalogs, stay)
        if state.there_hashes is not None:
            known.forget(self._catalogs, state.there_hashes)
            state.there_hashes = None
        position = FilesPosition(
            folder=self._folder.place(),
            files=[*known.recent.values()],
            catalogs=known.refs,
            left=[f"{of:016x}" for of in sorted(known.left)],
            parts=parts,
            forgotten=known.forgotten,
        )
        return encoded(position)

    def _rotated(self, known: Known) -> set[str]:
        """Return logs whose names are not input any more: no listing shows whether they grow."""
        names = [of for of in known.recent if not self._tracker.is_input(unescaped(of))]
        return {*names[-_ROTATED_LOGS:]}

    # -- taking parts -----------------------------------------------------------------------------

    def _take(self, state: State, limit: Limit, bound: Bound, goes_on: bool) -> _Taken:
        """Take what a step may, file by file; record in the state how far they are read then."""
        taken = _Taken()
        state.exhausted = True
        for name in self._order(state):
            if not taken.has_room(limit):
                state.exhausted = False
                break
            waiting = state.waiting[name]
            of = self._partition_of(name)
            if of in limit.paused:
                continue
            until = bound(name, waiting.facts)
            if until is None or (waiting.entry is not None and waiting.entry.read >= until):
                continue
            if goes_on and self._is_dry(name, waiting):
                continue
            rest = Limit(limit.rows - taken.rows, limit.bytes - taken.bytes)
            try:
                self._take_file(name, state, rest, until, goes_on, taken)
            except _NotAsItWas:
                taken.stale = True
            if not state.waiting.get(name):
                taken.finished.add(of)
        return taken

    def _is_dry(self, name: str, waiting: Waiting) -> bool:
        """Return whether a file had nothing to read when it was last opened, and is unchanged."""
        dry = self._dry.get(name)
        if dry is None or dry.read != _read_of(waiting.entry):
            return False
        facts = self._folder.facts(unescaped(name))
        return facts == dry.facts and dry.settled == is_settled(dry.facts)

    def _order(self, state: State) -> list[str]:
        """Return the waiting files in the order in which they are read, the one at hand first."""
        names = sorted(state.waiting)
        last = next(reversed(state.known.recent), None)
        if last is not None and last in state.waiting:
            names.remove(last)
            names.insert(0, last)
        return names

    def _take_file(
        self, name: str, state: State, limit: Limit, until: int, goes_on: bool, taken: _Taken
    ) -> None:
        waiting, raw = state.waiting[name], unescaped(name)
        shown = self._folder.shown(raw)
        with typed_errors(shown):
            try:
                opening = open_file(self._folder, raw, "cut")
                with opening as file:
                    entry = self._entry_now(name, waiting, file, state.known)
                    before = len(taken.parts)
                    if not self._is_begun(name, file, goes_on):
                        self._cut(name, entry, file, state, limit, until, goes_on, taken)
                    self._dry.pop(name, None)
                    if len(taken.parts) == before and name in state.waiting:
                        self._dry[name] = _Dry(file.facts, _read_of(entry), is_settled(file.facts))
            except FileNotFoundError as error:
                del state.waiting[name]
                if waiting.entry is not None or not goes_on:
                    raise _NotAsItWas from error

    def _may_be_copy(self, name: str, known: Known) -> bool:
        """Return whether a file may prove to be a copy of another one as it grows."""
        packed = kind_of(name).compression is not None
        return packed or any(known.get(of) is not None for of in names_beside(name))

    def _entry_now(
        self, name: str, waiting: Waiting, file: OpenFile, known: Known
    ) -> FileRead | None:
        """Return what was read of a file that is now open.

        Raises:
            _NotAsItWas: if it is not the file that was looked at.
        """
        entry = waiting.entry
        if file.facts == waiting.facts:
            return entry
        if file.facts.id != waiting.facts.id or (entry is None and self._may_be_copy(name, known)):
            raise _NotAsItWas  # it may be another file, and more of it can be seen now
        if entry is not None and not has_print(entry, file, is_text=self._format.is_text):
            raise _NotAsItWas
        return entry

    def _is_begun(self, name: str, file: OpenFile, goes_on: bool) -> bool:
        """Return whether a Parquet file has been started but not finished."""
        if self._format.is_text or not goes_on:
            return False
        size = file.facts.size
        file.raw.seek(max(0, size - 4))
        if size >= 12 and file.raw.read(4) in _PARQUET_ENDS:
            self._held.discard(name)
            return False
        self._hold(name, file, "has no footer")
        return True

    def _hold(self, name: str, file: OpenFile, why: str) -> None:
        """Log once that a file should be complete by now, and is waited for."""
        if is_settled(file.facts) and name not in self._held:
            self._held.add(name)
            log.warning(
                "%s is not whole: it %s, and has not changed for a minute; it is read once it is whole",
                file.opened.name,
                why,
            )

    def _cut(
        self,
        name: str,
        entry: FileRead | None,
        file: OpenFile,
        state: State,
        limit: Limit,
        until: int,
        goes_on: bool,
        taken: _Taken,
    ) -> None:
        """Take parts of a file, and record how far it is read then."""
        is_text = self._format.is_text
        offset = 0 if entry is None else entry.read
        if entry is not None and entry.unended:
            offset = self._after_newline(entry, file)
        recorded = Recorded(file.opened.file)
        opened = (
            OpenedFile(file.opened.name, cast(BinaryIO, recorded), file.facts)
            if is_text
            else file.opened
        )
        if until != _NO_LIMIT and is_text:  # (else a file is read by rows)
            limit = Limit(limit.rows, max(1, min(limit.bytes, until - offset)))
        may_grow = goes_on and is_text
        cut = self._format.cut(opened, offset, limit, self._wanted(name), may_grow=may_grow)
        if (
            may_grow
            and not cut.parts
            and not cut.ended
            and not file.torn
            and is_settled(file.facts)
        ):
            cut = self._format.cut(opened, offset, limit, self._wanted(name), may_grow=False)
        if taken.exact and until != _NO_LIMIT:
            cut = _up_to(cut, until)
        if file.torn and not goes_on and cut.ended:
            raise BadInput(
                f"{file.opened.name} is compressed, and ends in the middle",
                place=file.opened.name,
                remedy="replace it by the whole file; nothing of this step was committed",
            )
        if file.torn:
            self._hold(name, file, "is compressed, and ends in the middle")
        ended = cut.ended and not file.torn
        if ended:
            self._held.discard(name)
        of_file = "" if is_text or not cut.parts else check_of_parquet(file)
        for first, last in cut.parts:
            check = recorded.check(first, last) if is_text else of_file
            taken.parts.append(PartRead(name, first, last, file.facts.id, check))
        taken.rows, taken.bytes = taken.rows + cut.rows, taken.bytes + cut.bytes
        if not cut.parts and not ended and entry is not None and entry.read == offset:
            return
        read = cut.parts[-1][1] if cut.parts else offset
        unended = is_text and bool(cut.parts) and not _ends_line(file, read)
        after = with_print(
            FileRead(name, read, whole=ended, unended=unended), file, is_text=is_text
        )
        if cut.parts or ended or entry is not None:
            state.known.set(after)
        if ended:
            del state.waiting[name]
        elif cut.parts or entry is not None:
            state.waiting[name] = Waiting(file.facts, after)
        taken.files += bool(cut.parts)  # a file without parts does not use up the limit

    def _after_newline(self, entry: FileRead, file: OpenFile) -> int:
        """Return where reading continues after a last line that was read before its newline came.

        Raises:
            SourceChanged: if the line was continued.
        """
        file.opened.file.seek(entry.read)
        some = file.opened.file.read(2)
        if some[:1] == b"\n":
            return entry.read + 1
        if some == b"\r\n":
            return entry.read + 2
        if not some:
            return entry.read
        raise SourceChanged(
            f"the last line of {file.opened.name} went on after it was read as a whole one",
            place=f"{file.opened.name}, byte {entry.read}",
            remedy="let the program that writes end each record with its newline, at the latest a minute "
            "after it was begun; the record that was read is not the whole line",
        )

    def _parts(self, state: State, taken: _Taken, goes_on: bool) -> dict[str, Part]:
        """Return what is known of each partition."""
        if not self._partition_of.is_given:
            return {}
        names = [*state.waiting, *(part.name for part in taken.parts)]
        if goes_on:
            names += state.known.recent
        waiting = {self._partition_of(name) for name in state.waiting}
        parts = {
            of: Part(final=not goes_on and of not in waiting)
            for of in sorted({*map(self._partition_of, names), *taken.finished})
        }
        self._partition_of.check(parts)
        return parts

    # -- reading again ----------------------------------------------------------------------------

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        """Return what comes after a position and up to another one; None if nothing does."""
        end = self._state(until, go_on=False)  # a position of another reader
        if not end.looked or end.there_hashes is None:
            end.looked = False
            self._tracker.look(end)
        self._check_all_there(end)
        state = self._state(position)
        state.goes_on = False
        if not state.looked:
            self._tracker.look(state)
        self._remember(until, end)
        new = state.copy()
        taken = self._take_again(new, end.known, limit)
        if not taken.parts:  # what is to be read may have come after the last look
            state.looked = False
            self._tracker.look(state)
            new = state.copy()
            taken = self._take_again(new, end.known, limit)
        if not taken.parts:
            return None
        at = self._end(new, taken.parts)
        self._states = [(at, new), (until, end)]
        return Offer(at, taken.rows, taken.bytes, empty=False, parts=self._parts(new, taken, True))

    def _take_again(self, state: State, until: Known, limit: Limit) -> _Taken:
        taken = _Taken(exact=True)
        for name in self._order(state):
            if not taken.has_room(limit):
                break
            entry, waiting = until.get(name), state.waiting[name]
            if entry is None:
                continue
            bounded = self._format.is_text or not entry.whole
            if waiting.entry is not None and waiting.entry.read >= entry.read and bounded:
                continue
            rest = Limit(limit.rows - taken.rows, limit.bytes - taken.bytes)
            to = entry.read if bounded else _NO_LIMIT
            self._take_file(name, state, rest, to, not entry.whole, taken)
        return taken

    def _check_all_there(self, until: State) -> None:
        """Check that all files that were read up to a position can be read again.

        Raises:
            SourceChanged: if some are gone.
        """
        known = until.known
        there = until.there_hashes
        assert there is not None  # all files were looked at
        # A log that was rotated to a name that is not input counts as gone: it would not be read
        # again.
        recent = name_hashes(known.recent)
        gone = known.forgotten > 0 or bool((~np.isin(recent, there)).any())
        gone = gone or any(bool((~np.isin(of, there)).any()) for of in known.hashes_in_catalogs())
        if gone:
            raise SourceChanged(
                "files that were read are not there any more: what begins at the beginning would not "
                "read the same",
                place=self._pattern.shown,
                remedy="put the files back as they were read; or let it begin now",
            )

    # -- divisions --------------------------------------------------------------------------------

    def splits(self, end: Position) -> list[Split]:
        """Return the parts of a division, with the names that their files have today."""
        of = decoded(end)
        if isinstance(of, OldPosition):
            parts = [
                PartRead(escaped(self._of_today(name)), first, to) for name, first, to in of.parts
            ]
            entries: dict[str, FileRead] = {}
        else:
            self._check_place(of)
            parts, entries = of.parts, {entry.name: entry for entry in of.files}
        found: dict[str, str] = {}
        today = Whereabouts(self._folder, self._listed, is_text=self._format.is_text)
        splits = []
        for part in parts:
            if part.name not in found:
                found[part.name] = today.of(part, entries.get(part.name))
            shown = self._folder.shown(unescaped(found[part.name]))
            begin = self._format.place_of_part(part.first)
            spec = [
                escaped(self._folder.location),
                found[part.name],
                part.first,
                part.last,
                part.id,
                part.check,
                part.name,
            ]
            splits.append(
                Split(spec, place=f"{shown}, from {begin}", partition=self._partition_of(part.name))
            )
        return splits

    def _of_today(self, name: str) -> str:
        return os.path.relpath(name, self._folder.location) if os.path.isabs(name) else name

    # -- what must stay ---------------------------------------------------------------------------

    def taken(self, position: Position) -> None:
        """Record that a step has read some parts, which may be requested again."""
        of = decoded(position)
        if isinstance(of, FilesPosition):
            self._uncommitted.update(part.name for part in of.parts)

    def committed(self, position: Position) -> None:
        """Record that everything up to a position is in a checkpoint."""
        self._uncommitted.clear()
        of = decoded(position)
        if self._catalogs is not None and isinstance(of, FilesPosition):
            self._catalogs.clean(of.catalogs)

    def _warn_of_removed(self) -> None:
        """Warn of files that were removed before what was read of them is in a checkpoint."""
        if len(self._uncommitted) > _STEP_FILES:
            return
        gone = [name for name in self._uncommitted if self._folder.facts(unescaped(name)) is None]
        for name in gone:
            self._uncommitted.discard(name)
            log.warning(
                "%s was taken away before a checkpoint has what was read of it: until there is one, a "
                "crash could not be repaired without the file",
                self._folder.shown(unescaped(name)),
            )


class _Taken:
    """What a step takes.

    Attributes:
        parts, rows, bytes: the parts, and their sizes.
        files: the number of files with parts.
        finished: partitions with a file that was read to its end.
        stale: whether a file has changed since it was looked at.
        exact: whether bounds are ends of records, so that nothing beyond them is taken.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self.exact = exact
        self.parts: list[PartRead] = []
        self.rows = self.bytes = self.files = 0
        self.finished: set[str] = set()
        self.stale = False

    def has_room(self, limit: Limit) -> bool:
        """Return whether a step may take more."""
        return self.rows < limit.rows and self.bytes < limit.bytes and self.files < _STEP_FILES


class _Dry(NamedTuple):
    """A file that had nothing to read when it was opened.

    Attributes:
        facts: its facts at that time.
        read: how far it had been read.
        settled: whether it had not changed for a while.
    """

    facts: Facts
    read: int
    settled: bool


def _read_of(entry: FileRead | None) -> int:
    return 0 if entry is None else entry.read


class _NotAsItWas(Exception):
    """A file was renamed, replaced or removed since it was looked at."""


def _as_of_old(name: str, facts: Facts, read: int, *, whole: bool) -> FileRead:
    return FileRead(name, read, facts.size, facts.id, facts.modified, whole=whole)


def _mark(facts: Facts) -> str:
    """Return what distinguishes a file from all others: two disks may use the same number."""
    return f"{facts.device}:{facts.id}" if facts.device > 0 else facts.id


def _is_behind(state: State, new: State, taken: _Taken) -> bool:
    """Return whether nothing was taken, although there is now room for files that are not known."""
    return not taken.parts and new.more and len(new.waiting) < len(state.waiting)


def _up_to(cut: Cut, until: int) -> Cut:
    """Return a cut with only what is before a position, which is the end of a record."""
    parts = [(first, min(last, until)) for first, last in cut.parts if first < until]
    return cut._replace(parts=parts, ended=cut.ended and (not parts or parts == cut.parts))


def _ends_line(file: OpenFile, end: int) -> bool:
    file.opened.file.seek(end - 1)
    return file.opened.file.read(1) == b"\n"
