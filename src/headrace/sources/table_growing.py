"""The steps of a table that grows: what is read next, and when rows must wait."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from headrace.pipeline.source import Limit, Offer, Position
from headrace.sources.table_database import Row, SqlRows, joined, streamed
from headrace.sources.table_growth import Bound, Encoded, Growth
from headrace.sources.table_log import check_there, folder_of, written
from headrace.sources.table_records import row_place
from headrace.sources.table_snapshot import Part
from headrace.sources.table_types import SqlColumn, table_of
from headrace.storage.base import Store

log = logging.getLogger("headrace")

#: Most rows that one task reads.
_ROWS = 500_000
#: The shortest time between two looks at the transactions that rows wait for.
_SHORTEST_S = 0.02
#: How long rows wait for transactions before a warning says so.
_LONG_S = 60.0


class Growing:
    """Reads a table as it grows.

    Args:
        rows: the table or query.
        growth: its order.
        columns: the columns to read.
        store: the storage.
        delay_s: how long rows wait.
        every_s: how long to wait between two looks for new rows.
        clock: a clock in seconds that does not go back.
    """

    def __init__(
        self,
        rows: SqlRows,
        growth: Growth,
        columns: Sequence[SqlColumn],
        store: Store,
        *,
        delay_s: float,
        every_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._rows, self._growth, self._columns, self._store = rows, growth, columns, store
        self._every_s, self._clock = every_s, clock
        self._bound = Bound(delay_s, clock)
        self._look_at: float | None = None  # when to look again; None for at once
        self._is_warned = False

    @staticmethod
    def start(log: str) -> Position:
        return {
            "log": log,
            "number": 0,
            "read": 0,
            "file": None,
            "rows": 0,
            "at_us": 0,
            "after": None,
        }

    def now(self, position: Position) -> Any:
        return [self._growth.newest(position["after"])]

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        until = None
        if limit.until is not None:
            (until,) = limit.until
            if until is None:
                return None
        found = self._next(position, limit, until)
        if found is None and not self._is_early(catches_up=limit.open_ended):
            if self._look(position["after"], until):
                found = self._next(position, limit, until)
            if found is None and not self._bound.is_waiting:
                self._look_at = self._clock() + self._every_s
        return self._waiting(position) if found is None else found

    def _is_early(self, *, catches_up: bool) -> bool:
        """Return whether it is too early to ask the database again."""
        early = self._look_at is not None and self._clock() < self._look_at
        return early and (self._bound.is_waiting or not catches_up)

    def _waiting(self, position: Position) -> Offer | None:
        """Return the offer for rows that wait; None if there are none."""
        if self._bound.is_waiting:
            return Offer(position, 0, 0, empty=True, pending=True)
        return None

    def _look(self, after: Sequence[Encoded] | None, until: Any) -> bool:
        """Look for new rows, and whether they can be read. Return whether there is a new bound."""
        if not self._bound.is_waiting:
            newest = self._growth.newest(after, until)
            if newest is None:
                self._growth.check_not_replaced(after)
                return False
            self._growth.check_order(newest)
            self._bound.propose(newest, self._growth.running())
        count = self._bound.waits_for(self._growth.running)
        if self._bound.is_waiting:
            self._look_at = self._clock() + self._pause_s()
            self._warn(count)
            return False
        self._look_at, self._is_warned = None, False
        return True

    def _pause_s(self) -> float:
        """Return how long to wait for the next look: longer, the longer rows have waited."""
        return min(self._every_s, max(_SHORTEST_S, self._bound.waited_s / 4))

    def _warn(self, count: int) -> None:
        if count and self._bound.waited_s >= _LONG_S and not self._is_warned:
            self._is_warned = True
            log.warning(
                "%s: new rows wait for %d transactions that began before: one of them may write "
                "rows that come first",
                self._rows.place,
                count,
            )

    # -- reading ------------------------------------------------------------------------------

    def _next(self, position: Position, limit: Limit, until: Any) -> Offer | None:
        """Read the next rows up to the bound, and log them; None if there are none."""
        if self._bound.value is None:
            return None

        def read(connection: sa.Connection) -> tuple[pa.Table, list[Encoded]] | None:
            return self._taken(connection, position, limit, until)

        found = self._rows.ask(read)
        if found is None:
            self._bound.value = None
            return None
        table, after = found
        number = position["number"] + 1
        end = {
            "log": position["log"],
            "number": number,
            "read": position["read"] + position["rows"],
            "file": written(self._store, position["log"], f"{number:012d}", table),
            "rows": table.num_rows,
            "at_us": time.time_ns() // 1_000,
            "after": after,
        }
        return Offer(end, table.num_rows, table.nbytes)

    def _taken(
        self, connection: sa.Connection, position: Position, limit: Limit, until: Any
    ) -> tuple[pa.Table, list[Encoded]] | None:
        """Return the next rows and the position of the last one; None if there are none.

        One more row is read, to see that a step does not end between two that are equal.
        """
        selection = self._growth.selection(
            self._columns, position["after"], self._bound.value, until, limit.rows + 1
        )
        before = position["read"] + position["rows"]
        tables: list[pa.Table] = []
        last: Row | None = None
        read = size = 0
        with contextlib.closing(streamed(connection, selection)) as pieces:
            for rows in pieces:
                self._growth.check_apart([*([] if last is None else [last]), *rows])
                taken = rows[: limit.rows - read]
                if not taken or size >= limit.bytes:
                    break
                last = taken[-1]
                values = self._growth.values_of(taken)
                tables.append(
                    table_of(values, self._columns, row_place(self._rows.place, before + read))
                )
                read += len(taken)
                size += tables[-1].nbytes
        if last is None:
            return None
        return joined(tables, self._columns), self._growth.keys_of(last)

    # -- the log ------------------------------------------------------------------------------

    def parts(self, start: Position, end: Position) -> list[Part]:
        """Return the parts of the log between two positions; at least one."""
        firsts = range(0, max(1, end["rows"]), _ROWS)
        return [(end["file"], first, _ROWS, end["read"] + first) for first in firsts]

    def recover(self, start: Position, end: Position) -> None:
        check_there(self._store, [end["file"]])

    def committed(self, position: Position) -> None:
        """Delete what was read, and what drivers left that ended before their commit."""
        folder = folder_of(position["log"])
        for name in self._store.list(folder):
            if int(name.removeprefix(folder).partition("-")[0]) <= position["number"]:
                self._store.delete(name)

    def close(self) -> None:
        """There is nothing to close."""
