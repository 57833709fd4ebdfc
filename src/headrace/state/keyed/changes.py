"""What a step has changed of keys, in columns.

A step may touch a hundred thousand keys once each, and what it does for each of them then costs as
much as the handlers do. Looking at a key twice is dear, too, since so many keys fit no cache. So
changes are encoded while their key is at hand, and put down in one list a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.schema.keys import columns_of_keys
from headrace.state.keyed.cells import KeyCells
from headrace.state.keyed.expiring import NEVER


class CellChanges:
    """The changed rows of one declaration: a value, a map, a list, or the timers of one name.

    Whoever adds a row appends to ``hashes``, ``keys`` and ``values``. A row of anything but a value
    also goes to ``subs``, and one of state with a time to live to ``until``.

    Args:
        has_subs: whether its rows have a part below their key: a tag, the key of a map, a position.
        is_dated: whether its values are times.

    Attributes:
        hashes, keys: the keys of the rows.
        subs: what the rows have below their keys, encoded; of timers the tags, as they are.
        values: the values, encoded; of timers the times, as they are. None means deleted.
        until: when the rows expire, or ``NEVER``.
    """

    __slots__ = (
        "has_subs",
        "hashes",
        "is_dated",
        "keys",
        "subs",
        "until",
        "values",
    )

    def __init__(self, *, has_subs: bool, is_dated: bool) -> None:
        self.has_subs = has_subs
        self.is_dated = is_dated
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.hashes: list[int] = []
        self.keys: list[Any] = []
        self.subs: list[Any] = []
        self.values: list[Any] = []
        self.until: list[int] = []

    def __bool__(self) -> bool:
        return bool(self.keys)

    def add(self, cells: KeyCells, sub: Any, value: Any) -> None:
        """Add a row that does not expire."""
        self.hashes.append(cells.hash)
        self.keys.append(cells.key)
        self.values.append(value)
        if self.has_subs:
            self.subs.append(sub)

    def add_expiring(self, cells: KeyCells, sub: bytes, value: bytes | None, until: int) -> None:
        """Add a row of state with a time to live."""
        self.add(cells, sub, value)
        self.until.append(until)

    def keep_newest(self) -> None:
        """Of the rows with one identity, keep the last. Bring the rows into the order of hashes."""
        subs = self.subs if self.has_subs else [b""] * len(self.keys)
        identities = zip(self.hashes, self.keys, subs, strict=True)
        last = {identity: row for row, identity in enumerate(identities)}
        rows = sorted(last.values(), key=lambda row: (self.hashes[row], row))
        for column in ("hashes", "keys", "subs", "values", "until"):
            found = getattr(self, column)
            if found:
                setattr(self, column, [found[row] for row in rows])

    def key_columns(self, fields: Sequence[pa.Field]) -> list[pa.Array]:
        """Return the hashes, and the parts of the keys."""
        return [pa.array(self.hashes, pa.uint64()), *columns_of_keys(self.keys, fields)]

    def sub_column(self) -> pa.Array:
        """Return what the rows have below their keys."""
        if not self.has_subs:
            return pa.repeat(pa.scalar(b"", pa.binary()), len(self.keys))
        if self.is_dated:
            return pa.array(self.subs, pa.string()).cast(pa.binary())
        return pa.array(self.subs, pa.binary())

    def value_column(self) -> pa.Array:
        """Return the values, encoded, or null for what was deleted."""
        return _times(self.values) if self.is_dated else pa.array(self.values, pa.binary())

    def until_column(self) -> pa.Array:
        """Return when the rows expire, or null for never."""
        if not self.until:
            return pa.nulls(len(self.keys), pa.int64())
        return pa.array([None if until == NEVER else until for until in self.until], pa.int64())


def _times(times: list[int | None]) -> pa.Array:
    """Return times as they are stored: eight bytes each."""
    known = pa.array(times, pa.int64())
    eight = pa.Array.from_buffers(pa.binary(8), len(known), list(known.buffers()), known.null_count)
    return eight.cast(pa.binary())
