"""Copying one checkpoint to another store, where it is a pipeline of its own.

**The order of writes** makes a copy all or nothing. Manifest 0 comes first, marked as that of a copy: it
takes the place, so that neither another copy nor a driver can begin there. Then the files, each verified
as it is read and read back after it was written. Last comes one manifest, that of the step, with the sum
of all that came before: it makes the copy a pipeline. Who opens an unfinished copy is told that it is one.

A copy is another *lineage*: from its step on, what the two pipelines do is not the same, but both number
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
    """What was copied.

    Attributes:
        step: the step.
        files: how many files of state, outputs, and of what sources of files have read.
        nbytes: how long these are together.
    """

    step: int
    files: int
    nbytes: int


def copy_files(files: list[FileRef], source: Store, to: Store) -> int:
    """Copy files, each verified; return how many bytes.

    Raises:
        NotFound: when a file is not there (any more).
        Damaged: when one is not what was written.
        StorageError: when the other store does not keep what it is given.
    """
    for file in files:
        data = source.read(file.name, 0, file.length)
        for problem in problems_of(_reading(data), file):
            raise Damaged(
                f"{file.name} is damaged: {problem}",
                place=f"step {file.step}, worker {file.worker}",
                remedy="copy another checkpoint; nothing at the target is a pipeline yet",
            )
        _write(file.name, data, to)
    return sum(file.length for file in files)


def copy_catalogs(names: list[str], source: Store, to: Store) -> int:
    """Copy what says which files were read, each verified; return how many bytes.

    Raises:
        NotFound: when a file is not there (any more).
        Damaged: when one is not what was written.
        StorageError: when the other store does not keep what it is given.
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
    """Return what reads from bytes that are at hand."""
    return lambda _, offset, length: data[offset : offset + length]


def check_place(source: Store, to: Store) -> None:
    """Check that a directory that is copied to is not within the one that is copied, and empty.

    (Other storages have no folders beside names; there, what is ours is looked for: :func:`take_place`.)

    Raises:
        PipelineError: when it is.
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
    """Make the target the place of a copy, unfinished so far.

    Raises:
        PipelineError: when there is something already.
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
    """Create a name; say whether it is there with this content, by this very call or a copy of the same."""
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
    """Make the target a pipeline.

    Args:
        newest: the manifest of the step that was copied.
        before: the sum of all manifests before it.
        to: the target, with all files.

    Raises:
        PipelineError: when it is another one by now.
    """
    if newest.step > 1:
        with contextlib.suppress(AlreadyExists):
            to.create(CLEANED_MARK, b"")
    whole = msgspec.structs.replace(
        newest, base=before, boundary=newest.step, cleaned=newest.step, timing=None
    )
    name = manifest_name(newest.step)
    if not _is_created(to, name, MANIFESTS.encode(whole)):
        raise _no_place(to, f"is not empty: {name} is there")
