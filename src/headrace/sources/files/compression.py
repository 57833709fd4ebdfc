"""Compressed files, read as if they were not: positions are positions in the unpacked content.

A compressed file can only be read from its start. So a stream is kept open for the next step, which
continues where this one ended. What was unpacked last is kept too, so that it can be read again.
"""

from __future__ import annotations

import lzma
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, BinaryIO

import pyarrow as pa

from headrace.errors import BadInput
from headrace.sources.files.access import RandomAccess
from headrace.sources.files.xz import XzStream

#: Maximum number of bytes that are unpacked at once.
_PIECE_BYTES = 1 << 20
#: Size of the most recent content that can be read again without unpacking from the start.
_WINDOW_BYTES = 32 << 20
#: Size of the start of a file, which is kept because it is read again and again, as for column
#: names.
_HEAD_BYTES = 64 << 10
#: Maximum number of streams that are kept open, each with a window.
_KEPT_STREAMS = 4


class Unpacked(RandomAccess):
    """The content of a compressed file.

    Several compressed files one after another (members of a gzip file, frames of zstd) are read as
    one.

    Attributes:
        torn: whether the compressed data ends in the middle, as it does while it is being written.

    Args:
        packed: the compressed file; it is closed with this object.
        compression: ``gzip``, ``bz2``, ``zstd``, ``lz4`` or ``xz``.
        name: the file's name in errors.
    """

    def __init__(self, packed: BinaryIO, compression: str, name: str) -> None:
        super().__init__()
        self._packed = packed
        self._compression = compression
        self._name = name
        self._head = b""
        self._begin()

    def _begin(self) -> None:
        self._packed.seek(0)
        self._stream: Any = _stream(self._packed, self._compression)
        self._window = bytearray()
        self._first = 0  # position of the start of the window
        self._all = False  # whether the window ends where the content does
        self.torn = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position. Moving to the end unpacks everything: only then the end is known."""
        if whence == os.SEEK_END:
            while self._unpack():
                pass
            offset += self._first + len(self._window)
        elif whence == os.SEEK_CUR:
            offset += self._at
        self._at = offset
        return offset

    def reaches(self, offset: int) -> bool:
        """Return whether the content that can be unpacked has at least ``offset`` bytes."""
        if offset < self._first:
            return True
        while self._first + len(self._window) < offset:
            if not self._unpack():
                return False
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = (1 << 62) - self._at
        found = self._read_at(self._at, size)
        self._at += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _read_at(self, offset: int, size: int) -> bytes:
        if offset + size <= len(self._head):
            return self._head[offset : offset + size]
        if offset < self._first:
            self._begin()
        pieces, wanted = [], size
        while wanted:
            end = self._first + len(self._window)
            if offset < end:
                start = offset - self._first
                piece = bytes(self._window[start : start + wanted])
                pieces.append(piece)
                offset, wanted = offset + len(piece), wanted - len(piece)
            elif not self._unpack():
                break
        return b"".join(pieces)

    def readline(self, size: int | None = -1) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            some = self._read_at(self._at, 4096)
            if not some:
                break
            cut = some[: some.find(b"\n") + 1] or some
            line += cut
            self._at += len(cut)
        return bytes(line)

    def _unpack(self) -> bool:
        """Unpack some more; return False if there was none."""
        if self._all:
            return False
        try:
            piece = bytes(self._stream.read(_PIECE_BYTES))
        except EOFError:
            piece, self.torn = b"", True
        except (OSError, lzma.LZMAError) as error:
            if "runcated" not in str(error):
                raise BadInput(
                    f"{self._name} cannot be unpacked: {error}",
                    place=self._name,
                    remedy="replace the file; nothing of this step was committed",
                ) from error
            piece, self.torn = b"", True
        if not piece:
            self._all = True
            self.torn = self.torn or not self._packed.seek(
                0, os.SEEK_END
            )  # an empty file has not been written yet
            return False
        if self._first + len(self._window) < _HEAD_BYTES:
            self._head = (
                bytes(self._window + piece)[:_HEAD_BYTES] if not self._first else self._head
            )
        self._window += piece
        if len(self._window) > 2 * _WINDOW_BYTES:
            gone = len(self._window) - _WINDOW_BYTES
            del self._window[:gone]
            self._first += gone
        return True

    def close(self) -> None:
        self._packed.close()
        super().close()


def _stream(packed: BinaryIO, compression: str) -> Any:
    if compression == "xz":
        return XzStream(packed)
    return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), compression)


class KeptStreams:
    """Streams that stay open from one use to the next, by key; only the latest few."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: OrderedDict[Hashable, Unpacked] = OrderedDict()

    def take(self, key: Hashable) -> Unpacked | None:
        """Return the stream of a key, or None. The caller owns it until it is given back."""
        with self._lock:
            return self._streams.pop(key, None)

    def give(self, key: Hashable, stream: Unpacked) -> None:
        """Keep a stream for its next user."""
        with self._lock:
            old = self._streams.pop(key, None)
            self._streams[key] = stream
            gone = [old] if old is not None else []
            while len(self._streams) > _KEPT_STREAMS:
                gone.append(self._streams.popitem(last=False)[1])
        for one in gone:
            one.close()


#: The streams of this process: a task continues where the task before it ended.
KEPT = KeptStreams()
