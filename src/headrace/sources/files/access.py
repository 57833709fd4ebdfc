"""The part of a raw file that keeps track of where it is read."""

from __future__ import annotations

import io


class RandomAccess(io.RawIOBase):
    """A file that can be read at any position. Subclasses define how to seek and how to read."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at
