"""What comes next of a table that grows: in which order, and up to where it is complete.

A table is read in the order of its growing columns. A row that becomes visible below what was read
would never be read. So rows are read only up to a *bound*: a value below which no more rows are to
come. A bound is made of the newest value that is there. It counts when the transactions that ran
when it was seen have ended, where the database can list them, and when the delay is over.
"""

from __future__ import annotations

import itertools
import logging
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import BadInput, PipelineError, SourceChanged
from headrace.errors.user_code import shown
from headrace.schema.exact import family_of
from headrace.sinks.sql_database import MISSING, quoted
from headrace.sources.table_database import Row, SqlRows
from headrace.sources.table_types import SqlColumn

if MISSING is None:
    import sqlalchemy as sa

log = logging.getLogger("headrace")

#: No zone is further ahead of UTC.
_LARGEST_OFFSET = timedelta(hours=14)
#: A value of a growing column as plain data: its kind, and its text or number.
Encoded = list[Any]

#: Transactions that run now in a database of PostgreSQL, with those that are prepared to commit.
_RUNNING = """
SELECT DISTINCT CASE WHEN l.pid IS NULL THEN 'prepared ' ELSE '' END || l.virtualtransaction
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype IN ('virtualxid', 'transactionid') AND l.mode = 'ExclusiveLock' AND l.granted
AND (a.pid IS NULL OR a.datname = current_database() AND a.usesysid IS NOT NULL)
AND l.pid IS DISTINCT FROM pg_backend_pid()
"""
#: Times that sort as texts, in one form: with no zone, or in UTC.
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?)((?:Z|\+00:00)?)", re.ASCII
)


class Growth:
    """The order in which a table grows, and the questions that it takes to follow it.

    Args:
        rows: the table or query.
        names: the growing columns.
        newest_too: whether rows with the newest value of the first column can be read; no more
            rows of that value come once it is a bound.
        may_shrink: whether the newest rows may be deleted.
    """

    def __init__(
        self, rows: SqlRows, names: Sequence[str], *, newest_too: bool, may_shrink: bool
    ) -> None:
        self._rows = rows
        self._names = list(names)
        self._newest_too = newest_too
        self._may_shrink = may_shrink
        self._may_be_null = self._names
        self._now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self._is_warned = False

    @property
    def _first(self) -> sa.ColumnElement[Any]:
        return sa.column(self._names[0])

    def check(self, delay: bool) -> None:
        """Check the columns, and what the database can tell of transactions.

        Args:
            delay: whether a delay was given.

        Raises:
            PipelineError: if rows could be missed.
        """
        family = self._rows.family
        if not delay and family not in ("postgresql", "sqlite"):
            raise PipelineError(
                f"{family} does not say which transactions are running, and rows of one that "
                "commits late would be missed",
                place=self._rows.place,
                remedy='say how long a transaction may take, in the worst case: delay="30s"',
            )
        if family == "postgresql" and not delay and self._is_replica():
            raise PipelineError(
                "a replica of PostgreSQL does not say which transactions are running, and rows of "
                "one that commits late would be missed",
                place=self._rows.place,
                remedy="read from the primary server, or say how long a transaction may take: "
                'delay="30s"',
            )
        if self._rows.name:
            self._check_table()

    def _is_replica(self) -> bool:
        return bool(
            self._rows.ask(lambda c: c.exec_driver_sql("SELECT pg_is_in_recovery()").scalar_one())
        )

    def _check_table(self) -> None:
        table = self._rows.reflected()
        for name in self._names:
            if name not in table.columns:
                raise PipelineError(
                    f"growing={self._names!r}: there is no column {name!r}",
                    place=self._rows.place,
                    remedy=f"the columns are: {', '.join(table.columns.keys())}",
                )
        if not any(unique <= set(self._names) for unique in unique_columns(table)):
            raise PipelineError(
                f"growing={self._names!r}: several rows may have the same values, and one could be "
                "missed where a step ends",
                place=self._rows.place,
                remedy=f"add a unique column: growing={[*self._names, 'id']!r}; or make these unique",
            )
        self._may_be_null = [name for name in self._names if table.columns[name].nullable]
        if self._rows.family == "postgresql":
            self._check_sequence(self._names[0])

    def _check_sequence(self, name: str) -> None:
        """Refuse a sequence of PostgreSQL whose numbers are not given in order."""
        wanted = sa.text(
            "SELECT seqcache, seqcycle, seqincrement FROM pg_sequence "
            "WHERE seqrelid = CAST(pg_get_serial_sequence(:of, :name) AS regclass)"
        )
        names = filter(None, [self._rows.schema, self._rows.name])
        of = ".".join(quoted(one, self._rows.engine.dialect) for one in names)
        found = self._rows.ask(lambda c: c.execute(wanted, {"of": of, "name": name}).one_or_none())
        if found is None:
            return
        why = ""
        if found.seqcache > 1:
            why = f"each connection takes {found.seqcache} of its numbers in advance (CACHE)"
        elif found.seqcycle or found.seqincrement < 0:
            why = "its numbers do not always go up"
        if why:
            raise PipelineError(
                f"growing={self._names!r}: column {name!r} has a sequence, and {why}, so rows come "
                "below those that were read",
                place=self._rows.place,
                remedy="let the sequence count up by CACHE 1 NO CYCLE, or read by another column",
            )

    # -- questions ----------------------------------------------------------------------------

    def newest(self, after: Sequence[Encoded] | None, until: Any = None) -> Any:
        """Return the newest value of the first column behind a position; None if there is none.

        Times in the future do not count: rows of today would come below them.
        """
        found = self._newest(after, until)
        last = _latest_now(found, self._now())
        if last is None or found <= last:
            return found
        if not self._is_warned:
            self._is_warned = True
            log.warning(
                "%s: column %r goes up to %s, which is in the future: such rows wait until then",
                self._rows.place,
                self._names[0],
                found,
            )
        return self._newest(after, last if until is None else min(last, until))

    def _newest(self, after: Sequence[Encoded] | None, until: Any) -> Any:
        wanted = self._rows.select(sa.func.max(self._first)).where(*self._behind(after))
        if until is not None:
            wanted = wanted.where(self._first <= _bound(until))
        return self._rows.ask(lambda connection: connection.execute(wanted).scalar_one())

    def running(self) -> set[str]:
        """Return the transactions that are running now, where the database can list them."""
        if self._rows.family != "postgresql":
            return set()
        return self._rows.ask(lambda c: {row[0] for row in c.exec_driver_sql(_RUNNING)})

    def check_order(self, newest: Any) -> None:
        """Check that all rows have a place in the order.

        Raises:
            BadInput: if a growing column is null, or if times as texts are not all in one form.
        """
        encoded(newest, self._names[0], self._rows.place)
        for name in self._may_be_null:
            if self._has_any(sa.column(name).is_(None)):
                raise BadInput(
                    f"column {name!r} is null in a row, which would never be read",
                    place=self._rows.place,
                    remedy="declare the column NOT NULL; or leave such rows out on purpose, with "
                    f"query= … WHERE {name} IS NOT NULL",
                )
        if self._rows.family == "sqlite":
            self._check_form(newest)

    def _check_form(self, newest: Any) -> None:
        """Check that all values in SQLite are of one type, and times in one form."""
        first = self._first
        if isinstance(newest, int):
            others = sa.func.typeof(first) != "integer"
        else:
            found = _TIME.fullmatch(newest)
            if found is None:
                raise self._other_form(f"{newest!r} is not a time that sorts as a text")
            form = re.sub(r"\d", "[0-9]", found[1]) + found[2]
            others = sa.not_(first.op("GLOB")(sa.literal(form)))
        if self._has_any(others):
            raise self._other_form(f"there are values of another form than {newest!r}")

    def _other_form(self, why: str) -> BadInput:
        return BadInput(
            f"column {self._names[0]!r} has no order: {why}",
            place=self._rows.place,
            remedy="SQLite compares texts: write all times alike, without a zone or in UTC "
            "(2024-01-01 12:00:00.000000); or read by an integer",
        )

    def _has_any(self, condition: sa.ColumnElement[bool]) -> bool:
        wanted = self._rows.select(sa.literal_column("1")).where(condition).limit(1)
        return self._rows.ask(lambda c: c.execute(wanted).first() is not None)

    def check_not_replaced(self, after: Sequence[Encoded] | None) -> None:
        """Check that the table still goes as far as it was read.

        Raises:
            SourceChanged: if its newest value is below. New rows may then be below, too.
        """
        if after is None or self._may_shrink:
            return
        newest, last = self.newest(None), decoded(after[0])
        if newest is None or newest >= last:
            return
        raise SourceChanged(
            f"column {self._names[0]!r} was read up to {shown(last)}, and goes up to {shown(newest)} "
            "now: the newest rows were deleted, or it is another table",
            place=self._rows.place,
            remedy="if its values may come again, start anew with a new storage. If rows are only "
            "deleted, say may_shrink=True",
        )

    # -- reading ------------------------------------------------------------------------------

    def selection(
        self,
        columns: Sequence[SqlColumn],
        after: Sequence[Encoded] | None,
        bound: Any,
        until: Any,
        rows: int,
    ) -> sa.Select[Any]:
        """Return the selection of the next rows, with the growing columns in front.

        Args:
            columns: the columns to read.
            after: the position to go on from.
            bound: the bound; see the module.
            until: the last value that is wanted; None for any.
            rows: the largest number of rows.
        """
        first = self._first
        up_to = first <= _bound(bound) if self._newest_too else first < _bound(bound)
        order: list[sa.ColumnElement[Any]] = [sa.column(name) for name in self._names]
        keys = [
            sa.type_coerce(of, sa.types.NullType()).label(f"key_{n}") for n, of in enumerate(order)
        ]
        found = self._rows.select(*keys, *(column.selected for column in columns))
        found = found.where(*self._behind(after), up_to)
        if until is not None:
            found = found.where(first <= _bound(until))
        return found.order_by(*order).limit(rows)

    def _behind(self, after: Sequence[Encoded] | None) -> list[sa.ColumnElement[bool]]:
        """Return the condition that rows come after a position."""
        if after is None:
            return []
        columns: list[sa.ColumnElement[Any]] = [sa.column(name) for name in self._names]
        values = [_bound(decoded(one)) for one in after]
        further: Any = columns[-1] > values[-1]
        for column, value in reversed(list(zip(columns[:-1], values[:-1], strict=True))):
            further = sa.or_(column > value, sa.and_(column == value, further))
        # (the first condition is for the index)
        return [columns[0] >= values[0], further] if len(columns) > 1 else [further]

    def keys_of(self, row: Row) -> list[Encoded]:
        """Return the position after a row of a :meth:`selection`."""
        return [
            encoded(value, name, self._rows.place)
            for value, name in zip(row, self._names, strict=False)
        ]

    def values_of(self, rows: Sequence[Row]) -> list[Row]:
        """Return the values of the columns in rows of a :meth:`selection`."""
        return [row[len(self._names) :] for row in rows]

    def check_apart(self, rows: Sequence[Row]) -> None:
        """Check that neighbours in the order differ.

        Raises:
            BadInput: if they do not: a step could end between them, and miss the second.
        """
        count = len(self._names)
        for one, other in itertools.pairwise(rows):
            if tuple(one[:count]) == tuple(other[:count]):
                raise BadInput(
                    f"two rows have the same {', '.join(self._names)}: {shown(tuple(one[:count]))}",
                    place=self._rows.place,
                    remedy="name columns that are unique together: growing=[…]",
                )


class Bound:
    """Up to which value rows may be read, and what is still waited for.

    Args:
        delay_s: how long to wait after a value was seen.
        clock: a clock in seconds that does not go back.

    Attributes:
        value: the bound; None if there is none.
    """

    def __init__(self, delay_s: float, clock: Callable[[], float]) -> None:
        self._delay_s, self._clock = delay_s, clock
        self.value: Any = None
        self._next: Any = None
        self._since = 0.0
        self._running: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        return self._next is not None

    @property
    def waited_s(self) -> float:
        """How long the next bound has been waited for."""
        return self._clock() - self._since

    def propose(self, newest: Any, running: set[str]) -> None:
        """Note the newest value, and the transactions that were running after it was seen."""
        self._next, self._since, self._running = newest, self._clock(), set(running)

    def waits_for(self, running: Callable[[], set[str]]) -> int:
        """Return how many transactions are waited for, after another look at what is running.

        The value becomes the bound if there are none, and if the delay is over.
        """
        if self._running:
            found = running()
            # A transaction that prepares itself gets another name.
            self._running = self._running & found | {
                of for of in found if of.startswith("prepared")
            }
        if not self._running and self.waited_s >= self._delay_s:
            self.value, self._next = self._next, None
        return len(self._running)


def unique_columns(table: sa.Table) -> list[set[str]]:
    """Return the sets of columns of which a table has no two rows with the same values."""
    found = [set(table.primary_key.columns.keys())]
    found += [{of.name for of in index.columns} for index in table.indexes if is_whole(index)]
    found += [
        {column.name for column in of.columns}
        for of in table.constraints
        if isinstance(of, sa.UniqueConstraint)
    ]
    return [one for one in found if one]


def is_whole(index: sa.Index) -> bool:
    """Return whether an index is unique for all rows, by whole columns."""
    partial = index.dialect_options["postgresql"].get("where") is not None
    partial = partial or index.dialect_options["sqlite"].get("where") is not None
    by_columns = len(index.columns) == len(index.expressions)
    return bool(index.unique) and not partial and by_columns


# -- values -----------------------------------------------------------------------------------


def check_can_grow(column: SqlColumn, place: str) -> None:
    """Check that a column may be the first growing one.

    Raises:
        PipelineError: if its values are not integers or times.
    """
    kind = column.raw
    if kind is None or family_of(kind) in ("int", "point in time", "time without a zone"):
        return
    if column.is_time:
        return
    raise PipelineError(
        f"growing={column.name!r}: a column of type {kind} does not grow",
        place=place,
        remedy="name a column of integers or of times; unique ones of any order may follow",
    )


def encoded(value: Any, name: str, place: str) -> Encoded:
    """Return a value of a growing column as plain data.

    Raises:
        BadInput: for a value by which rows cannot be found again.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return ["local", value.isoformat()]
        return ["point", value.astimezone(UTC).isoformat()]
    if type(value) is int:
        return ["int", value]
    if isinstance(value, str):
        return ["text", value]
    if isinstance(value, uuid.UUID):
        return ["uuid", str(value)]
    raise BadInput(
        f"column {name!r} is {shown(value)}, by which rows cannot be read in order",
        place=place,
        remedy="use integers or times; texts and UUIDs may follow. Let no value be null",
    )


def decoded(value: Encoded) -> Any:
    kind, text = value
    if kind in ("local", "point"):
        return datetime.fromisoformat(text)
    return uuid.UUID(text) if kind == "uuid" else text


def _latest_now(value: Any, now: datetime) -> Any:
    """Return the latest value that a time like this one may have now; None for other values.

    A time that names no zone may be ahead of UTC by the largest offset that there is.
    """
    if isinstance(value, datetime):
        return now if value.tzinfo else now.replace(tzinfo=None) + _LARGEST_OFFSET
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    local = now.replace(tzinfo=None) + (timedelta(0) if found[2] else _LARGEST_OFFSET)
    separator = found[1][10:11] or " "
    return local.isoformat(separator, "microseconds")[: len(found[1])] + found[2]


def _bound(value: Any) -> sa.BindParameter[Any]:
    """Return a value as a parameter of its type."""
    if isinstance(value, datetime):
        return sa.literal(value, sa.DateTime(timezone=value.tzinfo is not None))
    if isinstance(value, int):
        return sa.literal(value, sa.BigInteger())
    if isinstance(value, uuid.UUID):
        return sa.literal(value, sa.Uuid())
    return sa.literal(value, sa.Text())
