"""A source that reads a table of an SQL database: once, or as it grows.

Rows are read in the driver, and written to the storage before they are offered. So a step reads the
same rows again after a crash, whatever has happened to the table since.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.eventtime.parsing import TimeUnit
from headrace.pipeline.source import Limit, Offer, Position, Source, Split
from headrace.schema import ValueType
from headrace.sinks.sql_database import MISSING
from headrace.sources.table_records import TableRecords
from headrace.storage.base import Store

if MISSING is None:
    from headrace.sources.table_database import SqlRows
    from headrace.sources.table_growing import Growing
    from headrace.sources.table_growth import Growth, check_can_grow
    from headrace.sources.table_snapshot import Snapshot
    from headrace.sources.table_types import usable

if TYPE_CHECKING:
    import sqlalchemy as sa


class Table(Source):
    """Reads a table of PostgreSQL, MySQL, MariaDB, SQLite or another database of SQLAlchemy.

    It needs SQLAlchemy and a driver: ``pip install "headrace[sql]" "psycopg[binary]"`` for
    PostgreSQL, and ``pip install "headrace[mysql]"`` for MySQL and MariaDB. A table is read in one
    of two ways:

    - as a *snapshot*: all rows that are there when the pipeline first asks, as one statement sees
      them. Then the input has ended.
    - as it *grows* (``growing=``): each step reads the next rows in the order of a column that goes
      up, such as a serial number or the time of the last change.

    Args:
        database: its URL, such as ``postgresql://ann@host/shop`` or ``sqlite:///shop.db``, or a
            function that returns an engine of SQLAlchemy.
        name: the name of the table.
        query: a query to read in place of a table. It needs ``type=``.
        type: the type of the records: a struct, a dataclass or a type of one column. By default it
            is made of the table's columns, when the source is made.
        columns: the columns to read: a list of names, or field → column.
        growing: the column by which the table grows, or several. Together they must be unique and
            never null, and the first must be an integer or a time: ``["updated_at", "id"]``.
        delay: how long rows wait until they are read, counted from when a value was first seen; see
            below.
        may_shrink: whether the newest rows may be deleted. By default that is refused, since a
            table that begins anew looks so (``SourceChanged``).
        every: how often to look for new rows when there are none.
        event_time: the column that holds the event time. Without it, rows have the time at which
            they were read.
        partition: the column, or columns, that name a record's partition.
        schema: the schema in which the table is; by default that of the connection.
        time_zone: the zone of times that do not name one.
        time_unit: the unit of numeric event times.

    Rows of transactions that commit late: rows get their numbers and times before they are
    committed, so a row may become visible below others that were read already. Such a row would be
    lost. So rows are read only up to the newest value for which nothing below can come any more:

    - PostgreSQL lists its transactions. Rows wait for all that were running in the database when
      the newest row was seen. This covers numbers and times that the writing transaction got from
      the database. A transaction that stays open for hours holds the reading back for as long, and
      a warning says so.
    - SQLite has one writer at a time.
    - Others, and replicas, need ``delay=``: a transaction that takes longer than that loses rows.
    - Nowhere can numbers and times be waited for that a program makes by itself, or fetches in
      advance in blocks. Give a ``delay=`` that is longer than they stay unused. Sequences of
      PostgreSQL with ``CACHE`` above 1, or that go down or around, are refused.

    Rows with the same first value: with several growing columns, rows with the newest value of the
    first one wait for a newer value, since more of them may come. With ``delay=``, they wait for
    that long instead. It must be longer than the column's times are apart. Rows whose time is in the
    future wait until then, and a warning says so.

    What a growing table does not show: deleted rows; rows that changed without a new value in the
    growing column; all but the last of several changes of a row between two looks. SQLite gives the
    number of a deleted last row to the next one, unless the column is ``AUTOINCREMENT``.

    Guarantees: each row that is read is in one step, whatever crashes. Rows are written to the
        storage before a step begins to read them, and are deleted with its checkpoint. So a step
        that is repeated has the same rows, even if the table has changed.

    Nothing is converted with loss. Columns of types that cannot be read so are refused by name. JSON
    is read as text. In MySQL, ``TINYINT(1)`` is a boolean, and ``TIME`` a time of day. Times in
    SQLite are texts. Neither passwords nor addresses are stored.

    Cost: all rows pass through the driver, a step or a page of a snapshot at a time: some 50,000 to
    100,000 rows of four columns a second. A look at a growing table takes one or two queries, which
    an index on the growing columns makes fast.

    Example::

        import sqlite3

        with sqlite3.connect("shop.db") as shop:
            shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, at TIMESTAMP)")
            shop.execute("INSERT INTO orders VALUES (1, 'book', '2024-05-01 12:00:00')")
        shop.close()
        bought = hr.sources.Table("sqlite:///shop.db", "orders", event_time="at")
        p.inject("bought", bought)

    Raises:
        PipelineError: for columns that are missing or cannot be read, for growing columns that are
            not unique, and for a URL that is none.
    """

    def __init__(
        self,
        database: str | Callable[[], sa.Engine],
        name: str = "",
        *,
        query: str = "",
        type: Any = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        growing: str | Sequence[str] = (),
        delay: DurationLike | None = None,
        may_shrink: bool = False,
        every: DurationLike = "1s",
        event_time: str | None = None,
        partition: str | Sequence[str] | None = None,
        schema: str | None = None,
        time_zone: str = "UTC",
        time_unit: TimeUnit | None = None,
    ) -> None:
        if MISSING is not None:
            raise PipelineError(
                f"sources.Table needs a package that is not there: {MISSING}",
                remedy='pip install "headrace[sql]"',
            )
        growing = [growing] if isinstance(growing, str) else list(growing)
        _check_given(name, query, type, growing, delay)
        self._rows = SqlRows(database, name, schema, query)
        self._growing = growing
        self.source_kind = "a growing table" if growing else "a table"
        self.bounded = not growing
        self._delay_s = None if delay is None else duration_micros(delay, "delay") / 1e6
        self._every_s = duration_micros(every, "every") / 1e6
        self._records = TableRecords(
            self._rows, type, columns, event_time, partition, zone=time_zone, unit=time_unit
        )
        self.partitioned = bool(self._records.by)
        self._growth = Growth(
            self._rows,
            growing,
            newest_too=len(growing) == 1 or delay is not None,
            may_shrink=may_shrink,
        )
        self._read_by = query, columns, growing, event_time, partition, time_zone, time_unit
        self._store: Store | None = None
        self._way: Snapshot | Growing | None = None
        self._offered: tuple[Position, Limit, Offer] | None = None

    def read_by(self) -> Any:
        return self._read_by

    def values(self) -> ValueType:
        return self._records.values

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._records.reading.times_of(values)

    def open(self, store: Store) -> None:
        self._store, self._offered = store, None
        columns = self._records.look()
        if not self._growing:
            self._way = Snapshot(self._rows, columns, store)
            return
        if self._rows.name:
            first = usable(self._records.found, self._growing, self._rows.place)[0]
            check_can_grow(first, self._rows.place)
        self._growth.check(delay=self._delay_s is not None)
        self._way = Growing(
            self._rows,
            self._growth,
            columns,
            store,
            delay_s=self._delay_s or 0.0,
            every_s=self._every_s,
            clock=monotonic,
        )

    def start(self) -> Position:
        name = f"rows-{secrets.token_hex(8)}"
        return Growing.start(name) if self._growing else Snapshot.start(name)

    @property
    def _opened(self) -> Snapshot | Growing:
        assert self._way is not None
        return self._way

    def now(self, position: Position) -> Any:
        return self._opened.now(position)

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        if self._offered is not None:
            at, given, offer = self._offered
            fits = offer.rows <= limit.rows and (offer.bytes <= limit.bytes or offer.rows == 1)
            if at == position and given.until == limit.until and fits:
                return offer
        found = self._opened.offer(position, limit)
        self._offered = (position, limit, found) if found is not None and found.rows else None
        return found

    def recover(self, start: Position, end: Position) -> bool:
        self._opened.recover(start, end)
        return True

    def splits(self, start: Position, end: Position) -> list[Split]:
        assert self._store is not None
        whose = None if self.partitioned else ""
        return [
            Split([self._store.location, end["at_us"], *part], b"", self._rows.place, whose)
            for part in self._opened.parts(start, end)
        ]

    def read(self, split: Split) -> pa.Table:
        return self._records.reading.read(split)

    def for_tasks(self) -> Source:
        return self._records.reading

    def committed(self, position: Position) -> None:
        self._opened.committed(position)

    def close(self) -> None:
        if self._way is not None:
            self._way.close()
        self._offered = None
        self._rows.close()


def _check_given(
    name: str, query: str, type: Any, growing: Sequence[str], delay: DurationLike | None
) -> None:
    """Check that the arguments fit together.

    Raises:
        PipelineError: if they do not.
    """
    if bool(name) == bool(query):
        raise PipelineError(
            "a source reads one table or one query",
            remedy='name the table, as in Table(url, "orders"), or give query="SELECT …"',
        )
    if query and type is None:
        raise PipelineError(
            "the types of a query are not known", remedy="declare the type of its rows with type="
        )
    if delay is not None and not growing:
        raise PipelineError(
            "delay= is for tables that grow, and this one is read once",
            remedy="name the column by which it grows: growing=",
        )
