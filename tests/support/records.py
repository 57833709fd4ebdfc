"""Records that many tests use."""

from __future__ import annotations

import msgspec


class Item(msgspec.Struct):
    """A number under a key, at a time in microseconds."""

    key: str
    n: int
    at: int
