"""Comparison of files whose names differ only in their compression: does one contain the other?

``app.jsonl.gz`` may have been made from ``app.jsonl``, or the other way round. Either may have
grown since then, or in the meantime. Content that both have counts once; content that only one of
them has is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from headrace.errors import BadInput
from headrace.pipeline.source import Limit
from headrace.sources.files.names import COMPRESSIONS, kind_of
from headrace.sources.files.opening import PRINT_BYTES, OpenFile, with_print
from headrace.sources.files.position import FileRead
from headrace.sources.files.settling import is_settled
from headrace.sources.formats import FileFormat

_ONE_RECORD = Limit(1, 1 << 16)


class Copy(NamedTuple):
    """The verdict on a file that has the content of another file beside it.

    Attributes:
        entry: what is known of the file; None if this cannot be decided yet.
        soon: whether it can be decided once the other file has been read.
    """

    entry: FileRead | None
    soon: bool = False


#: Verdicts to be made later: once the other file has been read, or once this file is complete.
SOON, LATER = Copy(None, soon=True), Copy(None)


def names_beside(name: str) -> list[str]:
    """Return the names that differ only in the compression, the uncompressed one first."""
    stem = stem_of(name)
    return [of for of in (stem, *(stem + ending for ending in COMPRESSIONS)) if of != name]


def stem_of(name: str) -> str:
    """Return a name without the suffix of its compression."""
    return name.rpartition(".")[0] if kind_of(name).compression else name


def holds_records(file: OpenFile, format: FileFormat) -> bool:
    """Return whether a file has a record, perhaps an unfinished one, and not only column names."""
    try:
        return bool(format.cut(file.opened, 0, _ONE_RECORD, {}, may_grow=False).parts)
    except BadInput:
        return True  # the error is raised when it is read


def begin_alike(one: OpenFile, other: OpenFile) -> bool:
    """Return whether two files start with the same bytes, as far as both can be read."""
    heads = []
    for file in (one, other):
        file.opened.file.seek(0)
        heads.append(file.opened.file.read(PRINT_BYTES))
    common = min(map(len, heads))
    return common > 0 and heads[0][:common] == heads[1][:common]


def comes_first(one: OpenFile, other: OpenFile) -> bool:
    """Return whether the first of two files is to be read before the other.

    A complete file comes before a torn one, and an uncompressed one before a compressed one.
    """
    ranks = [_rank(one), _rank(other)]
    return ranks[0] < ranks[1]


def _rank(file: OpenFile) -> tuple[bool, bool, str]:
    name = file.opened.name
    file.opened.file.seek(0, os.SEEK_END)  # only then it is known whether the file is torn
    return file.torn, kind_of(name).compression is not None, name


def compared(
    name: str, file: OpenFile, original: FileRead, beside: OpenFile, *, goes_on: bool
) -> Copy | None:
    """Compare a file with one beside it that was read; return None if their contents differ.

    Args:
        name: the file's name.
        file: the file.
        original: what is known of the other file.
        beside: the other file, which starts with what was read of it.
        goes_on: whether either file may still be written.
    """
    size = file.opened.file.seek(0, os.SEEK_END)
    packed = kind_of(name).compression is not None
    if not _same_up_to(min(size, original.read), (file, beside)):
        return None
    if size <= original.read:
        is_whole = not file.torn and (packed or size == original.read or is_settled(file.facts))
        if goes_on and not is_whole:
            return LATER
        return Copy(_read_up_to(name, size, file))
    being_unpacked = (
        packed and not is_settled(beside.facts) and beside.facts.modified >= file.facts.modified
    )
    return LATER if goes_on and being_unpacked else Copy(gone_on(name, original, file))


def gone_on(name: str, original: FileRead, file: OpenFile) -> FileRead:
    """Return the entry of a file that contains what was read of another one, and more."""
    entry = msgspec.structs.replace(original, name=name, whole=False, copy=False)
    return with_print(entry, file, is_text=True)


def _read_up_to(name: str, size: int, file: OpenFile) -> FileRead:
    file.opened.file.seek(max(0, size - 1))
    unended = file.opened.file.read(1) != b"\n"
    return with_print(FileRead(name, size, unended=unended, copy=True), file, is_text=True)


def _same_up_to(size: int, files: Iterable[OpenFile]) -> bool:
    """Return whether files agree in their first ``size`` bytes, by the first and last of these."""
    first = max(0, size - PRINT_BYTES)
    seen = set()
    for file in files:
        file.opened.file.seek(0)
        head = file.opened.file.read(min(size, PRINT_BYTES))
        file.opened.file.seek(first)
        seen.add((head, file.opened.file.read(size - first)))
    return len(seen) == 1
