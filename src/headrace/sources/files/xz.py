"""Reading xz files: several streams one after another, perhaps with zeros between and after them.

``lzma.LZMAFile`` silently ignores whatever it cannot read after a complete stream, so data that
follows would be lost.
"""

from __future__ import annotations

import lzma
from typing import BinaryIO

#: Number of bytes that are read from the file at once.
_READ_BYTES = 64 << 10
#: Zeros between streams come in multiples of this.
_PADDING = 4
#: The first bytes of a stream.
_MAGIC = b"\xfd7zXZ\0"


class XzStream:
    """The content of an xz file, read from its start.

    Args:
        packed: the file.
    """

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._stream: lzma.LZMADecompressor | None = None  # None between streams
        self._format = lzma.FORMAT_AUTO  # the first stream may be in the older format
        self._rest = b""  # bytes that were read from the file but not used yet

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end.

        Raises:
            EOFError: if the file ends in the middle of a stream, or of the zeros after one.
            lzma.LZMAError: if it contains anything else.
        """
        while True:
            if self._stream is None and not self._begin():
                return b""
            assert self._stream is not None
            given = b""
            if self._stream.needs_input:
                given = self._rest or self._packed.read(_READ_BYTES)
                self._rest = b""
                if not given:
                    raise EOFError("it ends in the middle of a stream")
            piece = self._stream.decompress(given, size)
            if self._stream.eof:
                self._rest, self._stream = self._stream.unused_data, None
            if piece:
                return piece

    def _begin(self) -> bool:
        """Start the next stream; return False if there is none."""
        if self._format == lzma.FORMAT_AUTO:
            self._rest = self._packed.read(_READ_BYTES)
        else:
            self._skip_padding()
        if not self._rest:
            return False
        self._stream = lzma.LZMADecompressor(self._format)
        self._format = lzma.FORMAT_XZ
        return True

    def _skip_padding(self) -> None:
        """Skip zeros, up to the next stream or the end."""
        zeros = 0
        while True:
            self._rest = self._rest or self._packed.read(_READ_BYTES)
            left = self._rest.lstrip(b"\0")
            zeros += len(self._rest) - len(left)
            at_end, self._rest = not self._rest, left
            if left or at_end:
                break
        if not _MAGIC.startswith(left[: len(_MAGIC)]):
            raise lzma.LZMAError("something else follows behind a stream")
        if zeros % _PADDING:
            if at_end:
                raise EOFError("it ends in the middle of the zeros behind a stream")
            raise lzma.LZMAError(
                f"{zeros:,} zeros are behind a stream, which is not a multiple of four"
            )
