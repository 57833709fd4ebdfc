"""What is in an xz file: several streams one after another, perhaps with zeros between and behind them.

``lzma.LZMAFile`` takes whatever it cannot read behind a whole stream for nothing: what follows would be
lost without a word.
"""

from __future__ import annotations

import lzma
from typing import BinaryIO

#: What is read at once of the file.
_READ_BYTES = 64 << 10
#: Zeros between streams come in fours.
_PADDING = 4
#: What a stream begins with.
_MAGIC = b"\xfd7zXZ\0"


class XzStream:
    """The content of an xz file, from its beginning.

    Args:
        packed: the file.
    """

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._stream: lzma.LZMADecompressor | None = None  # None between streams
        self._format = lzma.FORMAT_AUTO  # (the first may be of the older kind)
        self._rest = b""  # read of the file, and not looked at yet

    def read(self, size: int) -> bytes:
        """Return some bytes, at most so many; none at the end.

        Raises:
            EOFError: where the file ends in the middle of a stream, or of the zeros behind one.
            lzma.LZMAError: where it holds something else.
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
        """Begin the next stream; say whether there is one."""
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
        """Go to where a stream begins, or to the end."""
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
                f"{zeros:,} zeros are behind a stream, which is no multiple of four"
            )
