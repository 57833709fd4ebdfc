"""A snapshot of a table: read once, by one statement, and kept in the storage until it is read.

A step takes a few rows of it. So the whole snapshot is written to the storage first, page by page,
and then an index of the pages. A driver that is killed before begins anew: pages of two statements
are never mixed. The index is part of the position from the first step on.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Generator, Sequence

import pyarrow as pa
import sqlalchemy as sa

from headrace.pipeline.source import Limit, Offer, Position
from headrace.sources.table_database import SqlRows, joined, streamed
from headrace.sources.table_log import check_there, folder_of, rows_of, written
from headrace.sources.table_records import row_place
from headrace.sources.table_types import SqlColumn, table_of
from headrace.storage.base import Store

#: A page ends with the piece that reaches one of these.
_PAGE_ROWS, _PAGE_BYTES = 1 << 16, 32 << 20
#: Pages that are read in one call, so that a driver can do other things between them.
_PAGES = 8

#: A part of the log: file, first row in it, number of rows, rows of the table before it.
Part = tuple[str, int, int, int]


class Snapshot:
    """Reads a table once.

    Args:
        rows: the table or query.
        columns: the columns to read.
        store: the storage.
    """

    def __init__(self, rows: SqlRows, columns: Sequence[SqlColumn], store: Store) -> None:
        self._rows, self._columns, self._store = rows, columns, store
        self._copying: _Copying | None = None
        self._whole: Position = None  # the position at the first row of the whole copy
        self._index: tuple[str, pa.Table] | None = None

    @staticmethod
    def start(log: str) -> Position:
        return {"log": log, "index": None, "row": 0, "rows": 0, "bytes": 0, "at_us": 0}

    def now(self, position: Position) -> None:
        """A snapshot has an end, and needs no mark."""

    def offer(self, position: Position, limit: Limit) -> Offer:
        if position["index"] is not None and position["row"] == position["rows"]:
            return Offer(position, 0, 0, final=True, empty=True)
        at = position if position["index"] is not None else self._copied(position["log"])
        if at is None:
            return Offer(position, 0, 0, empty=True, pending=True)
        row_bytes = max(1, at["bytes"] // max(1, at["rows"]))
        rows = min(limit.rows, max(1, limit.bytes // row_bytes), at["rows"] - at["row"])
        end = {**at, "row": at["row"] + rows}
        return Offer(end, rows, rows * row_bytes, final=end["row"] == end["rows"])

    def _copied(self, log: str) -> Position | None:
        """Return the position at the first row of the copy; None if it is not whole yet."""
        if self._whole is None or self._whole["log"] != log:
            self._copying = self._copying or _Copying(self._rows, self._columns)
            try:
                self._whole = self._copying.go_on(self._store, log)
            except BaseException:
                self.close()
                raise
            if self._whole is not None:
                self.close()
        return self._whole

    def close(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.close()

    def parts(self, start: Position, end: Position) -> list[Part]:
        """Return the parts of the log between two positions; at least one."""
        found, first, pages = [], 0, self._pages(end)
        for name, rows in pages:
            low, high = max(start["row"], first), min(end["row"], first + rows)
            if low < high or len(pages) == 1:
                found.append((name, low - first, high - low, low))
            first += rows
        return found

    def _pages(self, position: Position) -> list[tuple[str, int]]:
        """Return the files of the pages, and how many rows each has."""
        name = position["index"]
        if self._index is None or self._index[0] != name:
            self._index = name, rows_of(self._store.location, name, self._rows.place)
        return [(page["name"], page["rows"]) for page in self._index[1].to_pylist()]

    def recover(self, start: Position, end: Position) -> None:
        check_there(self._store, [end["index"]])
        check_there(self._store, [name for name, *_ in self.parts(start, end)])

    def committed(self, position: Position) -> None:
        """Delete the pages that were read, and those of copies that were given up."""
        if position["index"] is None:
            return
        at_end = position["row"] == position["rows"]
        kept: set[str] = set()
        if not at_end:
            kept = {
                name for name, *_ in self.parts(position, {**position, "row": position["rows"]})
            }
            kept.add(position["index"])
        for name in self._store.list(folder_of(position["log"])):
            if name not in kept:
                self._store.delete(name)


class _Copying:
    """A copy that is being made: the statement is still running."""

    def __init__(self, rows: SqlRows, columns: Sequence[SqlColumn]) -> None:
        self._rows, self._columns = rows, columns
        self._id = secrets.token_hex(8)
        self._at_us = time.time_ns() // 1_000
        self._index: list[dict[str, object]] = []
        self._read = self._bytes = 0
        self._connection: sa.Connection | None = None
        self._pages: Generator[pa.Table, None, None] | None = None

    def go_on(self, store: Store, log: str) -> Position | None:
        """Copy some pages. Return the position at the first row, or None if there is more to do."""
        with self._rows.errors():
            if self._pages is None:
                self._connection = self._rows.connected()
                self._pages = self._read_pages(self._connection)
            for _ in range(_PAGES):
                page = next(self._pages, None)
                if page is None:
                    return self._finished(store, log)
                self._keep(page, store, log)
        return None

    def _keep(self, page: pa.Table, store: Store, log: str) -> None:
        name = written(store, log, f"{self._id}-{len(self._index):09d}", page)
        self._index.append({"name": name, "rows": page.num_rows})
        self._read += page.num_rows
        self._bytes += page.nbytes

    def _finished(self, store: Store, log: str) -> Position:
        if not self._index:
            self._keep(table_of([], self._columns, str), store, log)
        index = written(store, log, f"{self._id}-index", pa.Table.from_pylist(self._index))
        return {
            "log": log,
            "index": index,
            "row": 0,
            "rows": self._read,
            "bytes": self._bytes,
            "at_us": self._at_us,
        }

    def _read_pages(self, connection: sa.Connection) -> Generator[pa.Table, None, None]:
        selection = self._rows.select(*(column.selected for column in self._columns))
        page: list[pa.Table] = []
        read = size = 0
        with contextlib.closing(streamed(connection, selection)) as pieces:
            for rows in pieces:
                page.append(table_of(rows, self._columns, row_place(self._rows.place, read)))
                read += len(rows)
                size += page[-1].nbytes
                if size >= _PAGE_BYTES or sum(map(len, page)) >= _PAGE_ROWS:
                    yield joined(page, self._columns)
                    page, size = [], 0
        if page:
            yield joined(page, self._columns)

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        if self._connection is not None:
            self._connection.close()
