"""Copying one checkpoint to another store, where it becomes a pipeline of its own.

**The order of writes** makes a copy all or nothing. Manifest 0 comes first, marked as that of a
copy. It claims the place, so that neither another copy nor a driver can start there. The files
follow, each verified as it is read, and read back after it was written. The last write is the
manifest of the step, with the sum of all manifests before it. It makes the copy a pipeline. A
reader that opens an unfinished copy gets an error that says so.

**A copy is not commanded.** Stops, pauses, migrations and updates that somebody asked the original
for are not those of the copy.

A copy is another *lineage*. From its step on the two pipelines go different ways, but both number
their steps on from there. See ``docs/how-to/back-up-and-verify.md``.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from headrace.checkpoints.verifying import Read, problems_of
from headrace.errors import AlreadyExists, Damaged, PipelineError, StorageError
from headrace.ledger.head import Head
from headrace.ledger.intent import FOLDER as INTENTS
from headrace.ledger.ledger import CLEANED_MARK, FILE_FOLDERS
from headrace.ledger.manifest import MANIFEST_FOLDER, MANIFESTS, Manifest, manifest_name
from headrace.ledger.packing import slice_with_files, unpacked, with_files
from headrace.ledger.records import Chain
from headrace.runfiles.format import FileRef
from headrace.sources.files.catalog import FOLDER as FILES_READ
from headrace.sources.files.catalog import read_catalog, rows_in
from headrace.storage.base import Store
from headrace.storage.local import LocalStore
from headrace.storage.probe import FOLDER as PROBES

_FOLDERS = (
    MANIFEST_FOLDER,
    *FILE_FOLDERS,
    FILES_READ,
    INTENTS,
    "commands/",
    "pins/",
    "measurements/",
    "",
)


class Copied(msgspec.Struct, frozen=True):
    """The result of a copy.

    Attributes:
        step: the step.
        files: how many files were copied: state, outputs, and catalogs of the files that sources
            have read.
        nbytes: the bytes in these files.
    """

    step: int
    files: int
    nbytes: int


def copy_files(files: list[FileRef], source: Store, to: Store) -> int:
    """Copy files, verifying each; return the number of bytes.

    Raises:
        NotFound: when a file is not there, or no longer.
        Damaged: when a file has changed since it was written.
        StorageError: when the target does not keep what is written to it.
    """
    for file in files:
        data = file.read(source.read)
        for problem in problems_of(_reading(data), unpacked(file)):
            raise Damaged(
                f"{file.shown} is damaged: {problem}",
                place=f"step {file.step}, worker {file.worker}",
                remedy="copy another checkpoint; nothing at the target is a pipeline yet",
            )
        _write(file.name, data, to)
    return sum(file.length for file in files)


def copy_catalogs(names: list[str], source: Store, to: Store) -> int:
    """Copy the catalogs of the files that were read, verifying each; return the number of bytes.

    Raises:
        NotFound: when a file is not there, or no longer.
        Damaged: when a file has changed since it was written.
        StorageError: when the target does not keep what is written to it.
    """
    length = 0
    for name in names:
        data = read_catalog(source, name)
        rows_in(name, data, source.location)
        _write(name, data, to)
        length += len(data)
    return length


def _write(name: str, data: bytes, to: Store) -> None:
    to.write(name, data)
    if to.read(name) != data:
        raise StorageError(
            f"{name} is not read back as it was written",
            place=to.location,
            remedy="see to the storage that is copied to, and copy again to a new place",
        )


def _reading(data: bytes) -> Read:
    """Return a function that reads from bytes in memory."""
    return lambda _, offset, length: data[offset : offset + length]


def check_place(source: Store, to: Store) -> None:
    """Check that a target directory is empty and not within the storage that is copied.

    Only local directories are checked here. Other storages have no folders beside names;
    :func:`take_place` looks for names of Headrace there.

    Raises:
        PipelineError: when it is not empty, or within that storage.
    """
    if not isinstance(to, LocalStore):
        return
    place = Path(to.location).resolve()
    if isinstance(source, LocalStore) and place.is_relative_to(Path(source.location).resolve()):
        raise _no_place(to, "is within the storage that is copied")
    there = (path.name for path in place.iterdir()) if place.is_dir() else ()
    for name in there:
        if f"{name}/" != PROBES:
            raise _no_place(to, f"is not empty: {name} is there")


def take_place(first: Manifest, step: int, to: Store) -> None:
    """Claim the target for a copy, which is unfinished until :func:`finish`.

    Raises:
        PipelineError: when something is there already.
    """
    names = (name for folder in _FOLDERS for name in to.list(folder))
    there = next((name for name in names if not name.startswith(PROBES)), None)
    if there is None:
        marked = msgspec.structs.replace(first, copied=step)
        if _is_created(to, manifest_name(0), MANIFESTS.encode(marked)):
            return
        there = manifest_name(0)
    raise _no_place(to, f"is not empty: {there} is there")


def _is_created(to: Store, name: str, data: bytes) -> bool:
    """Create a name; return whether it now has this content.

    It may have been created by this very call, or by another copy of the same step.
    """
    try:
        to.create(name, data)
    except AlreadyExists:
        return to.read(name) == data
    return True


def _no_place(to: Store, why: str) -> PipelineError:
    return PipelineError(
        f"{to.location} {why}",
        place=to.location,
        remedy="copy to a directory of its own that is not there yet",
    )


def finish(newest: Manifest, before: Head | None, to: Store) -> None:
    """Make the target a pipeline, by creating the manifest of the step.

    Args:
        newest: the manifest of the step that was copied.
        before: the sum of all manifests before it.
        to: the target, with all files.

    Raises:
        PipelineError: when another manifest is there by now.
    """
    newest, before = uncommanded(newest), before and head_uncommanded(before, newest.step)
    if newest.step > 1:
        with contextlib.suppress(AlreadyExists):
            to.create(CLEANED_MARK, b"")
    whole = msgspec.structs.replace(
        with_files(newest, unpacked),
        base=before and head_without_packs(before),
        boundary=newest.step,
        cleaned=newest.step,
        timing=None,
    )
    name = manifest_name(newest.step)
    if not _is_created(to, name, MANIFESTS.encode(whole)):
        raise _no_place(to, f"is not empty: {name} is there")


def uncommanded(manifest: Manifest) -> Manifest:
    """Return a manifest without what commands wanted of the original."""
    return msgspec.structs.replace(
        manifest,
        answers=[],
        paused=None,
        scheduled_stop=None,
        updates=[],
        withdrawn=False,
        migrations=[one for one in manifest.migrations if one.is_over],
    )


def head_uncommanded(head: Head, step: int) -> Head:
    """Return the head before the step of a copy, without what commands wanted of the original.

    A copy neither stops nor pauses by itself, and moves no state. Its commands have numbers of
    their own. What commands have changed stays: the layout, with updates that take effect at the
    step, removed computations, and drained hosts, since the machines are the same.
    """
    return msgspec.structs.replace(
        head,
        commands=0,
        answers=[],
        paused=False,
        scheduled_stop=None,
        updates=[update for update in head.updates if update.step <= step],
        migrations=[one for one in head.migrations if one.is_over],
    )


def head_without_packs(head: Head) -> Head:
    """Return a head that names all of its files as files of their own. Dead ones are not copied."""
    return msgspec.structs.replace(
        head,
        runs=_unpacked(head.runs),
        slices={n: slice_with_files(part, unpacked) for n, part in head.slices.items()},
        chains={at: _chain_without_packs(chain) for at, chain in head.chains.items()},
        unreleased={step: _unpacked(files) for step, files in head.unreleased.items()},
        dead=[],
    )


def _chain_without_packs(chain: Chain) -> Chain:
    return Chain(chain.digest, [(link[0], unpacked(link[1]), link[2]) for link in chain.recent])


def _unpacked(files: list[FileRef]) -> list[FileRef]:
    return [unpacked(file) for file in files]
