"""How far files were read, as plain data.

A position names the files that were read recently one by one. Earlier ones are in *catalogs*, files
in the pipeline's storage that the position names. So a position stays small, however many files
there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.errors import Damaged
from headrace.pipeline.source import Position
from headrace.sources.files.folders import Place

#: The value of ``form`` in positions of this version.
FORM = "files-2"


class FileRead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that was read, completely or in part, and what identifies it.

    Attributes:
        name: its name within the folder; see :func:`headrace.sources.files.names.escaped`.
        read: how far it was read: in bytes of its content, or in rows for Parquet.
        size: its size in bytes when it was last read, as it is stored.
        id: its inode, an object's etag, or its number in HDFS.
        modified: when it was last changed, in nanoseconds since 1970 UTC.
        head: a digest of its first ``head_bytes`` bytes.
        head_bytes: the number of bytes in that digest.
        tail: a digest of the last bytes before ``read``.
        whole: whether all of it was read.
        unended: whether its last record was read without the newline that should end it.
        copy: whether it was not read because a file beside it has the same content.
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
    """A reference to a catalog, a file in the storage that says which files were read.

    Attributes:
        file: its name.
        files: the number of files in it.
    """

    file: str
    files: int


class PartRead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a file, as a step reads it.

    Attributes:
        name: the file's name.
        first, last: the start and the end: bytes of its content, or rows for Parquet.
        id: what identifies the file, wherever it is by now.
        check: a digest of the part; ``""`` if none was recorded.
    """

    name: str
    first: int
    last: int
    id: str = ""
    check: str = ""


class FilesPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the files of a source were read.

    Attributes:
        form: marks this version of positions.
        folder: the folder that all names are relative to; None before anything was read.
        files: the files that were read recently.
        catalogs: the files that were read before.
        left: hashes of names that catalogs have, but that are no longer known.
        parts: the parts that make up the last division.
        forgotten: the number of files that were read, are gone, and are not remembered any more.
    """

    form: str = FORM
    folder: Place | None = None
    files: list[FileRead] = []
    catalogs: list[CatalogRef] = []
    left: list[str] = []
    parts: list[PartRead] = []
    forgotten: int = 0


class OldPosition(msgspec.Struct, frozen=True):
    """A position of older versions, which read files in the order of their names.

    Attributes:
        done: the number of files that sort before ``name``; all of them were read.
        name: the current file.
        offset: how far it was read.
        ended: whether that was all of it when it was last looked at.
        parts: the parts that make up the last division: (file, from, to).
        levels: the number of parts that names have; 0 if it was not recorded.
        read: the number of files that were read before ``name``, including those that are gone; -1
            if it was not recorded.
    """

    done: int = 0
    name: str = ""
    offset: int = 0
    ended: bool = False
    parts: list[tuple[str, int, int]] = []
    levels: int = 0
    read: int = -1


def decoded(position: Position) -> FilesPosition | OldPosition:
    """Return a position from the form in which it is stored.

    Raises:
        Damaged: for a position that no folder can have, since a manifest may have been forged.
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
        # Older versions recorded whole paths. They are checked against the folder later.
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
    """Return the files that a pipeline may have to read again, or has not read completely.

    Args:
        position: how far an injector was read. It may be a position of any source; the result is
            empty for sources other than files.
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
    """Return the catalogs that positions name, each once: storage files that reading depends on.

    Args:
        positions: positions of any sources.
    """
    names: dict[str, None] = {}
    for position in positions:
        if isinstance(position, dict) and position.get("form") == FORM:
            of = decoded(position)
            assert isinstance(of, FilesPosition)
            names.update((ref.file, None) for ref in of.catalogs)
    return list(names)
