"""Verifying: checks that every byte that a checkpoint needs is unchanged, and makes sense.

Every manifest back to a base, and every file that they name, is read whole. Problems are returned
as findings and not raised, because one damaged file must not hide another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa

from headrace.checkpoints.state_files import catalogs_of_head
from headrace.errors import Damaged, NewerFormat, NotFound
from headrace.keyspace.layout import Layout
from headrace.keyspace.owners import PastOwners
from headrace.keyspace.ranges import Ranges
from headrace.ledger.commands import CommandLog, command_name
from headrace.ledger.head import Head
from headrace.ledger.intent import intent_name
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import Manifest, manifest_name
from headrace.ledger.packing import end_of_pack
from headrace.runfiles.format import FileRef, RunReader, Section
from headrace.runfiles.sections import is_whole
from headrace.schema.reserved import HASH
from headrace.sources.files.catalog import read_catalog, rows_in
from headrace.storage.base import Store

_RESTORE = "restore the file from a copy of the storage, or go on from another step"

Read = Callable[[str, int, int], bytes]


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong.

    Attributes:
        file: its name in the store.
        step: the checkpoint in which it was found.
        what: what is wrong.
        remedy: what to do.
    """

    file: str
    step: int
    what: str
    remedy: str


class Verifier:
    """Verifies checkpoints of one store, each manifest and each file once.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ledger = Ledger(store)
        self._manifests: dict[int, tuple[Manifest, str]] = {}
        self._checked: set[str] = set()  # files checked, manifests reported

    def step(self, step: int) -> Iterator[Finding]:
        """Yield what is wrong with the checkpoint of a step, without what was yielded before."""
        broken = self._broken_link(step)
        for finding in (broken, self._wrong_first(step)):
            if finding is not None and finding.file not in self._checked:
                self._checked.add(finding.file)
                yield finding
        if broken is not None:
            return  # which files there should be is unknown
        head = self._ledger.open(step)
        assert head is not None
        yield from self._state(head)
        for files in (*head.unreleased.values(), head.retained):
            for file in files:
                yield from self._file(file, step)
        yield from self._catalogs(head)

    def pending(self, head: Head) -> Iterator[Finding]:
        """Yield what is wrong with what the next step starts from: its intent, and commands."""
        name = intent_name(head.done + 1)
        try:
            self._ledger.intent(head.done + 1)
        except (Damaged, NewerFormat) as error:
            yield Finding(name, head.step, error.what, error.remedy)
        for request in CommandLog(self._store).pending(head.commands):
            if request.command is None:
                remedy = "it will be refused; ask again"
                yield Finding(command_name(request.number), head.step, request.problem, remedy)

    # -- manifests ----------------------------------------------------------------------------

    def _broken_link(self, step: int) -> Finding | None:
        """Return the first problem on the way from a step back to a base."""
        after: Manifest | None = None
        for at in range(step, -1, -1):
            found = self._manifest(at, step)
            if isinstance(found, Finding):
                return found
            wrong = _wrong_link(*found, after)
            if wrong:
                return Finding(manifest_name(at), step, wrong, _RESTORE)
            after = found[0]
            if after.base is not None:
                break
        return None

    def _wrong_end(self, manifest: Manifest) -> str:
        """Return what is wrong with the end of a manifest with packed files; "" if nothing is."""
        end = end_of_pack(manifest)
        longer = end is not None and self._store.read(manifest_name(manifest.step), end, 1)
        return "it is longer than it was written" if longer else ""

    def _wrong_first(self, step: int) -> Finding | None:
        """Return what is wrong with manifest 0, which says whose storage it is."""
        first, found = self._manifest(0, step), self._manifest(step, step)
        if isinstance(first, Finding):
            return first
        if isinstance(found, Finding) or first[0].pipeline == found[0].pipeline:
            return None
        what = f"it is of pipeline {first[0].pipeline!r}, not of {found[0].pipeline!r}"
        return Finding(manifest_name(0), step, what, _RESTORE)

    def _manifest(self, at: int, step: int) -> tuple[Manifest, str] | Finding:
        """Return a manifest and its digest, which are read once; or why it cannot be read."""
        if at not in self._manifests:
            try:
                found = self._ledger.read(at)
                wrong = self._wrong_end(found[0])
            except (Damaged, NewerFormat, NotFound) as error:  # (it may be cleaned meanwhile)
                return Finding(manifest_name(at), step, error.what, error.remedy)
            if wrong:
                return Finding(manifest_name(at), step, wrong, _RESTORE)
            self._manifests[at] = found
        return self._manifests[at]

    # -- files --------------------------------------------------------------------------------

    def _state(self, head: Head) -> Iterator[Finding]:
        """Check the files of state, and whose rows are in them."""
        layout = Layout.from_wire(head.layout)
        past = PastOwners(Ranges.everything(), layout, head.relocated)
        nothing = Ranges.of([])

        def owned(file: FileRef) -> Ranges:
            if file.layout != (head.lineage or layout.digest):
                return Ranges.everything()  # the owners at that time are no longer known
            return past.held(file.worker, file.step) or nothing

        for part in head.slices.values():
            for file in part.files:
                yield from self._file(file, head.step, owned(file), Ranges.of([part.range]))
        for file in head.runs:
            yield from self._file(file, head.step, owned(file))

    def _catalogs(self, head: Head) -> Iterator[Finding]:
        """Check the catalogs of the files that were read."""
        for name in catalogs_of_head(head):
            if name not in self._checked:
                self._checked.add(name)
                try:
                    rows_in(name, read_catalog(self._store, name), self._store.location)
                except (Damaged, NotFound) as error:
                    yield Finding(name, head.step, error.what, _RESTORE)

    def _file(
        self, file: FileRef, step: int, owned: Ranges | None = None, part: Ranges | None = None
    ) -> Iterator[Finding]:
        """Check a file, once.

        Args:
            file: the file, as the manifest names it.
            step: the step of the checkpoint.
            owned: the hashes that its worker owned; None if it may hold any.
            part: the hashes of its slice.
        """
        if file.name in self._checked:
            return
        self._checked.add(file.name)
        for what in problems_of(self._store.read, file, owned, part):
            yield Finding(file.place, step, what, _RESTORE)


def _wrong_link(manifest: Manifest, digest: str, after: Manifest | None) -> str:
    """Return what is wrong between a manifest and the next, or its own base; "" if nothing is."""
    if after is not None and after.predecessor != digest:
        return f"it is not the one that manifest {after.step} follows"
    if after is not None and after.pipeline != manifest.pipeline:
        return f"it is of pipeline {manifest.pipeline!r}, not of {after.pipeline!r}"
    base = manifest.base
    if base is not None and (base.step, base.digest) != (manifest.step - 1, manifest.predecessor):
        return "its sum of all that came before is not that of its predecessor"
    if manifest.copied > manifest.step:
        return f"this is an unfinished copy of step {manifest.copied}"
    return ""


def problems_of(
    read: Read, file: FileRef, owned: Ranges | None = None, part: Ranges | None = None
) -> Iterator[str]:
    """Yield what is wrong with a file: length, checksums, Arrow data, order of rows, whose rows.

    Args:
        read: ``(name, offset, length) -> bytes``.
        file: the file, as the manifest names it.
        owned: the hashes that its worker owned; None if it may hold any.
        part: the hashes of its slice, for sections that are whole.
    """
    reader = RunReader(read, file)
    try:
        reader.open()
        if file.pack is None and read(file.name, file.length, 1):
            yield "it is longer than it was written"
        end = 0
        for section in reader.sections:
            yield from _problems_of_section(reader, section, end, owned, part)
            end += sum(block.length for block in section.blocks)
    except NotFound:
        yield "it is missing"
    except (Damaged, NewerFormat) as error:
        yield error.what


def _problems_of_section(
    reader: RunReader, section: Section, begins: int, owned: Ranges | None, part: Ranges | None
) -> Iterator[str]:
    name = f"section {section.kind!r} of {section.owner!r}"
    last = -1
    for block in section.blocks:
        if block.offset != begins:
            yield f"{name}: bytes before byte {block.offset} belong to no block"
        begins = block.offset + block.length
        batch = reader.block(section, block)
        try:
            batch.validate(full=True)
        except pa.ArrowException as error:
            yield f"{name}: the block at byte {block.offset} is not valid Arrow data: {error}"
            continue
        hashes = batch.column(HASH).to_numpy()
        ends = (int(hashes[0]), int(hashes[-1])) if len(hashes) else (block.first, block.last)
        if (len(hashes), *ends) != (block.rows, block.first, block.last):
            yield f"{name}: the block at byte {block.offset} has other rows than its footer says"
        if ends[0] < last or bool((hashes[1:] < hashes[:-1]).any()):
            yield f"{name}: rows are not in the order of their hashes"
        if owned is not None and not owned.contain(hashes).all():
            yield f"{name}: it has rows of bins that worker {reader.ref.worker} did not own"
        if part is not None and is_whole(section.kind) and not part.contain(hashes).all():
            yield f"{name}: it has rows that are not of its slice"
        last = ends[1]
