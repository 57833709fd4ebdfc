"""How far files were read: plain data whose field names say what they mean.

Files that were read lately are named one by one. Those before them are in *catalogs*, files in the
pipeline's storage that a position names: so a position stays small, however many files there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.errors import Damaged
from headrace.pipeline.source import Position
from headrace.sources.files.folders import Place

#: What positions of this form say of themselves.
FORM = "files-2"


class FileRead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that was read, wholly or in part, and what it is known by.

    Attributes:
        name: its name within the folder; see :func:`headrace.sources.files.names.escaped`.
        read: how far it was read: bytes of its content, or rows of Parquet.
        size: its size in bytes when it was last read, as it is stored.
        id: its inode, or an object's etag.
        modified: when it had been changed, in nanoseconds since 1970 UTC.
        head: a digest of its first ``head_bytes`` bytes.
        tail: a digest of the last bytes before ``read``.
        whole: whether ``read`` was all of it.
        unended: whether its last record was read without the newline that should end it.
        copy: whether it was not read, since a file beside it has the same content.
    """

    name: str
    read: int
    size: int = -1
    id: str = ""
    modified: int = 0
    head: str = ""
    head_bytes: int = 0
    tail: str = ""
    whole: bool = True
    unended: bool = False
    copy: bool = False


class CatalogRef(msgspec.Struct, frozen=True):
    """A file in the storage that says which files were read.

    Attributes:
        file: its name.
        files: of how many files it is.
    """

    file: str
    files: int


class PartRead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a file, as a step reads it.

    Attributes:
        name: the file's name.
        first, last: from where to where: bytes of its content, or rows of Parquet.
        id: what the file is known by, wherever it is by now.
        check: a digest of the part; ``""`` where it was not noted.
    """

    name: str
    first: int
    last: int
    id: str = ""
    check: str = ""


class FilesPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the files of a source were read.

    Attributes:
        form: says that it is one of these.
        folder: the folder that all names are relative to; None before anything was read.
        files: those that were read lately.
        catalogs: those that were read before.
        left: the names of which catalogs say what is not so any more: their hashes.
        parts: what the last division was made of.
        forgotten: how many files were read that are gone, and not remembered any more.
    """

    form: str = FORM
    folder: Place | None = None
    files: list[FileRead] = []
    catalogs: list[CatalogRef] = []
    left: list[str] = []
    parts: list[PartRead] = []
    forgotten: int = 0


class OldPosition(msgspec.Struct, frozen=True):
    """How far files were read, in positions of older versions, which read files in the order of names.

    Attributes:
        done: how many files sort before ``name``; all of them were read.
        name: the file at hand.
        offset: how far it was read.
        ended: whether that was all of it when it was last looked at.
        parts: what the last division was made of: (file, from, to).
        levels: of how many parts names are; 0 where that was not noted.
        read: how many files were read before ``name``, also those that are gone by now; -1 where that was
            not noted.
    """

    done: int = 0
    name: str = ""
    offset: int = 0
    ended: bool = False
    parts: list[tuple[str, int, int]] = []
    levels: int = 0
    read: int = -1


def decoded(position: Position) -> FilesPosition | OldPosition:
    """Return a position as it is stored.

    Raises:
        Damaged: for one that no folder can have: a manifest may be of somebody else's making.
    """
    try:
        if isinstance(position, dict) and position.get("form") == FORM:
            at = msgspec.convert(position, FilesPosition)
            names = [*(of.name for of in at.files), *(part.name for part in at.parts)]
            found: FilesPosition | OldPosition = at
        else:
            old = msgspec.convert(position, OldPosition)
            names = [old.name, *(name for name, _, _ in old.parts)]
            found = old
    except msgspec.ValidationError as error:
        raise _no_position(str(error)) from error
    for name in names:
        # (older versions noted whole paths; whether these are of the folder is seen when it is known)
        is_whole = name.startswith("/") and isinstance(found, FilesPosition)
        if is_whole or "\0" in name or ".." in name.split("/"):
            raise _no_position(f"{name[:80]!a} leads out of the folder")
    return found


def _no_position(why: str) -> Damaged:
    return Damaged(
        f"files were not read up to where the manifests say: {why}",
        remedy="restore the manifests from one copy of the storage",
    )


def encoded(position: FilesPosition) -> Any:
    """Return a position as plain data."""
    return {"form": FORM, **msgspec.to_builtins(position)}


def files_that_must_stay(position: Any, steps: Iterable[Any]) -> list[str]:
    """Return the files that a pipeline may have to read again, or has not read wholly.

    Args:
        position: how far an injector was read; of any source, and empty for those that read no files.
        steps: the positions after each step that is not in a checkpoint.
    """
    names: set[str] = set()
    for end in (position, *steps):
        if not isinstance(end, dict) or end.get("form") != FORM:
            continue
        of = decoded(end)
        assert isinstance(of, FilesPosition)
        if end is position:
            names.update(file.name for file in of.files if not file.whole)
        else:
            names.update(part.name for part in of.parts)
    return sorted(names)


def catalogs_of(positions: Iterable[Any]) -> list[str]:
    """Return the catalogs that positions name, each once: files in the storage, without which none is read.

    Args:
        positions: of any sources.
    """
    names: dict[str, None] = {}
    for position in positions:
        if isinstance(position, dict) and position.get("form") == FORM:
            of = decoded(position)
            assert isinstance(of, FilesPosition)
            names.update((ref.file, None) for ref in of.catalogs)
    return list(names)
