"""Open files: unpacked if they are compressed, and identified by what is in them.

The *print* of a file is its fingerprint. It consists of a digest of the first bytes and one of the
last bytes that were read. So a file is recognised under another name, and a file that was truncated
and written again is not mistaken for the old one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa
import xxhash

from headrace.errors import BadInput, SourceChanged
from headrace.sources.files.compression import KEPT, Unpacked
from headrace.sources.files.folders import Facts, Folder
from headrace.sources.files.names import kind_of
from headrace.sources.files.position import FileRead
from headrace.sources.formats import OpenedFile

#: Number of bytes that go into a print: at the start, and before the place where reading ended.
PRINT_BYTES = 1024
#: A Parquet file ends with the length of its footer and four letters.
_FOOTER_END_BYTES = 8
_MOST_FOOTER_BYTES = 16 << 20


@dataclass(frozen=True)
class OpenFile:
    """A file that is open.

    Attributes:
        opened: the file as formats read it.
        facts: what identifies it.
        raw: its bytes as they are stored.
    """

    opened: OpenedFile
    facts: Facts
    raw: BinaryIO

    @property
    def torn(self) -> bool:
        """Whether it is compressed and ends in the middle, as far as it has been read."""
        return isinstance(self.opened.file, Unpacked) and self.opened.file.torn


@contextlib.contextmanager
def open_file(folder: Folder, name: str, use: str) -> Iterator[OpenFile]:
    """Open a file.

    Args:
        folder: the folder that the file is in.
        name: its name there.
        use: the purpose. A compressed file continues where the last use for the same purpose ended.
    """
    compression = kind_of(name).compression
    if compression is None:
        raw, facts = folder.open(name)
        with raw:
            yield OpenFile(OpenedFile(folder.shown(name), raw, facts), facts, raw)
        return
    raw, facts = folder.open(name)
    key = (use, folder.location, name, facts)
    kept = KEPT.take(key)
    if kept is None:
        kept = Unpacked(raw, compression, folder.shown(name))
    else:
        raw.close()
    try:
        kept.seek(0)
        yield OpenFile(OpenedFile(folder.shown(name), cast(BinaryIO, kept), facts), facts, raw)
    except BaseException:
        kept.close()
        raise
    KEPT.give(key, kept)


@contextlib.contextmanager
def typed_errors(shown: str) -> Iterator[None]:
    """Turn errors of the file system and of the format into typed errors with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # raised by Arrow, for what it cannot unpack or decode
            raise _not_of_its_format(shown, error) from error
        raise SourceChanged(
            f"{shown} cannot be read: {error.strerror or error}",
            place=shown,
            remedy="bring the file back; input must stay until a checkpoint has what was read of it",
        ) from error
    except pa.ArrowInvalid as error:
        raise _not_of_its_format(shown, error) from error


def _not_of_its_format(shown: str, error: Exception) -> BadInput:
    return BadInput(
        f"{shown} is not what its format says: {error}",
        place=shown,
        remedy="fix or remove the file; nothing of this step was committed",
    )


# -- prints -------------------------------------------------------------------------------------


def with_print(entry: FileRead, file: OpenFile, *, is_text: bool) -> FileRead:
    """Return an entry with the file's facts and print, as of the place up to which it was read."""
    head = _head(file, PRINT_BYTES, is_text=is_text)
    tail = _tail(file, entry.read) if is_text else b""
    return FileRead(
        entry.name,
        entry.read,
        file.facts.size,
        file.facts.id,
        file.facts.modified,
        _digest(head),
        len(head),
        _digest(tail) if tail else "",
        entry.whole,
        entry.unended,
        entry.copy,
    )


def has_print(entry: FileRead, file: OpenFile, *, is_text: bool) -> bool:
    """Return whether a file is the one that was read so far: the same, or longer."""
    if is_text and not file.opened.reaches(entry.read):
        return False
    if not has_head(entry, file, is_text=is_text):
        return False
    if is_text:
        return not entry.tail or _digest(_tail(file, entry.read)) == entry.tail
    return entry.size in (-1, file.facts.size)


def has_head(entry: FileRead, file: OpenFile, *, is_text: bool) -> bool:
    """Return whether a file starts with the same bytes as one that was read."""
    head = _head(file, entry.head_bytes, is_text=is_text)
    return len(head) == entry.head_bytes and (not head or _digest(head) == entry.head)


def prints_of_head(file: OpenFile, *, is_text: bool) -> Callable[[int], str]:
    """Return a function from n to the digest of a file's first n bytes; ``""`` if too few."""
    head = _head(file, PRINT_BYTES, is_text=is_text)

    def print_of(size: int) -> str:
        some = head[:size] if is_text else head[max(0, len(head) - size) :]
        return _digest(some) if len(some) == size else ""

    return print_of


def _head(file: OpenFile, size: int, *, is_text: bool) -> bytes:
    if is_text:
        file.opened.file.seek(0)
        return file.opened.file.read(size)
    size = min(size, file.facts.size)  # a Parquet file's metadata is at its end
    file.raw.seek(file.facts.size - size)
    return file.raw.read(size)


def _tail(file: OpenFile, end: int) -> bytes:
    first = max(0, end - PRINT_BYTES)
    file.opened.file.seek(first)
    return file.opened.file.read(end - first)


def _digest(data: bytes) -> str:
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


# -- checks of parts ------------------------------------------------------------------------------


def check_of_parquet(file: OpenFile) -> str:
    """Return a digest of a Parquet file's size and footer, which describes all of its content."""
    size = file.facts.size
    file.raw.seek(max(0, size - _FOOTER_END_BYTES))
    footer = int.from_bytes(file.raw.read(4), "little") + _FOOTER_END_BYTES
    first = max(0, size - min(footer, _MOST_FOOTER_BYTES))
    file.raw.seek(first)
    return _digest(size.to_bytes(8, "little") + file.raw.read(size - first))


class Recorded:
    """A file that remembers what was read of it: a part's digest is that of the bytes it gave."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pieces: list[tuple[int, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        data = self._file.read(size)
        if size != 1:
            self._pieces.append((at, data))
        return data

    def check(self, first: int, last: int) -> str:
        """Return the digest of a part that was read.

        Raises:
            OSError: if less of it was there in the end, because the file was truncated meanwhile.
        """
        found = xxhash.xxh3_64()
        for at, data in self._pieces:
            end = at + len(data)
            if at <= first < end:
                found.update(memoryview(data)[first - at : min(last, end) - at])
                first = min(last, end)
        if first != last:
            raise OSError(errno.ESTALE, "it became shorter while it was read")
        return f"{found.intdigest():016x}"


class Checked:
    """A file of which one part is read at once, and then given to readers unchanged.

    Args:
        file: the file.
        first, last: where the part starts and ends.
    """

    def __init__(self, file: BinaryIO, first: int, last: int) -> None:
        self._file = file
        self._first = first
        file.seek(first)
        self.data = file.read(last - first)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if size == len(self.data) and self._file.tell() == self._first:
            self._file.seek(self._first + size)
            return self.data
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    @property
    def check(self) -> str:
        """The digest of the part."""
        return _digest(self.data)
