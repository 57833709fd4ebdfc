"""How a program asks for whole transactions, and the part of a pipeline that comes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import pyarrow as pa

from headrace.errors import BadInput, PipelineError
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.pipeline import Hashed, Node, Pipeline, Stream
from headrace.zsets.linear import Linear, Project, Select, field_of, rows_schema
from headrace.zsets.on_the_way import OnTheWay
from headrace.zsets.rows import Mask, Rows
from headrace.zsets.stream import ZStream, of_stream, table_of
from headrace.zsets.transactions.counting import (
    NEWS,
    WAITING,
    CountRows,
    Overdue,
    Repeats,
    Rules,
)
from headrace.zsets.transactions.ends import NUMBER, TRANSACTION, Ends, ReadEnds, id_type
from headrace.zsets.transactions.gate import Gate, given_up, through
from headrace.zsets.transactions.ordering import RELEASED, TURN, OrderEnds

Outside = Literal["refuse", "pass"]


def transactions(
    name: str,
    tables: Mapping[str, Stream | Node],
    ends: Ends,
    *,
    transaction: str = "transaction",
    order: str | None = None,
    outside: Outside = "refuse",
    repeats: Repeats = "refuse",
    within: DurationLike | None = None,
    overdue: Overdue = "refuse",
    remember: DurationLike = "1h",
) -> Transactions:
    """Keep the transactions of several streams whole: rows that belong together come in one step.

    Rows are held until their transaction has ended and all of its rows are there, in all tables. Then
    they come in one step. Transactions come in the order of their ends. So what a view says after a
    step is the query over whole transactions: the first so many that were committed.

    A transaction waits for those that ended before it. Rows of a transaction that has no end wait,
    and nothing else waits for them.

    Args:
        name: the name of the computation that holds the rows. Two others are called
            ``NAME_counts`` and ``NAME_order``.
        tables: the streams, by the names that the ends have for their tables.
        ends: where it is said that a transaction has ended, and how many rows it has.
        transaction: the column with the id of each row's transaction. It is no column of the tables.
        order: a column with the number of each row in its transaction, or in its transaction and table.
            Then rows of a transaction are in this order, and it is known that a row is repeated. It
            is no column of the tables. By default they are in the order of their arrival.
        outside: what happens to rows without a transaction, whose id is null: ``"refuse"`` fails the
            step. ``"pass"`` lets each of them through at once, as a transaction of its own.
        repeats: what happens to rows and ends that are repeated: ``"refuse"`` fails the step,
            ``"ignore"`` counts them and leaves them out, and needs ``order``. Without ``order``, a row is
            known to be repeated only if its transaction was whole before.
        within: how long a transaction may wait for its rows and its end, by the clock. By default it
            may wait for any time.
        overdue: what happens to a transaction that has waited for longer: ``"refuse"`` fails the
            step, ``"give_up"`` counts it, leaves its rows out (they are in
            :meth:`Transactions.given_up`) and goes on with the next.
        remember: how long it is known which transactions were whole. What is repeated later is not
            recognised.

    Raises:
        PipelineError: for columns that are not there, or are of a wrong type.
        BadInput: in a step, for a transaction of which more rows have come than its end says, for
            two ends of one transaction that differ, and for what is refused.

    Example::

        ends = hr.zsets.Ends(commits, counts={"orders": "orders", "payments": "payments"})
        streams = {"orders": orders, "payments": payments}
        whole = hr.zsets.transactions("whole", streams, ends, transaction="order")
        paid = whole.table("paid", "orders", key="id")
        cents = whole.table("cents", "payments")
    """
    place = f"transactions {name!r}"
    for given, allowed in ((outside, Outside), (repeats, Repeats), (overdue, Overdue)):
        if given not in get_args(allowed):
            choice = " or ".join(map(repr, get_args(allowed)))
            raise PipelineError(f"{given!r} is not {choice}", place=place)
    if repeats == "ignore" and order is None:
        raise PipelineError(
            'repeats="ignore", and nothing says which row is repeated while its transaction waits',
            place=place,
            remedy="name the column that numbers the rows of a transaction: order=; or give records ids, "
            "so that none is read twice",
        )
    if not tables:
        raise PipelineError("there is no table", place=place)
    streams = {
        table: of.only_output() if isinstance(of, Node) else of for table, of in tables.items()
    }
    read = ReadEnds(ends, [*streams], place)
    _check_streams(streams, read, place)
    names = _names(streams, place)
    rules = Rules(
        place,
        tuple(streams),
        repeats,
        order is not None,
        None if within is None else _positive(within, "within", place),
        overdue,
        _positive(remember, "remember", place),
    )
    ways = {
        table: _Way(
            stream,
            transaction,
            order,
            read.id_type,
            outside == "refuse",
            f"{place}, table {table!r}",
        )
        for table, stream in streams.items()
    }
    pipeline = cast(Pipeline, read.stream.pipeline)
    pipeline.injectors[read.stream.name].in_order_for = place
    by = TRANSACTION
    counts = pipeline.compute(
        f"{name}_counts",
        CountRows(rules),
        keys={**{way.ids(): by for way in ways.values()}, read.counted(): by},
    )
    ordered = pipeline.compute(
        f"{name}_order", OrderEnds(), keys={read.ids(): Hashed(), counts[NEWS]: Hashed()}
    )
    gate = pipeline.compute(
        name,
        Gate([*names.values()], order is not None, place),
        keys={**{way.rows(): by for way in ways.values()}, counts[NEWS]: by, ordered[RELEASED]: by},
    )
    return Transactions(place, gate, counts, ways, names, outside == "pass")


class Transactions:
    """Tables whose transactions are kept whole; see :func:`transactions`.

    Attributes:
        waiting: the transactions that wait, as rows that are kept up to date: ``transaction``,
            ``since`` (when its first row or its end came, by the clock), ``ended`` (whether its end
            has come), and ``rows`` (how many have come). What is whole within one step never waits.

    Example::

        ends = hr.zsets.Ends(commits, counts={"payments": "payments"})
        whole = hr.zsets.transactions("whole", {"payments": payments}, ends, transaction="order")
        paid = whole.table("paid", "payments")
        paid.group("by_currency", "currency", cents=hr.zsets.Sum("cents"))
        whole.waiting.view("waiting", key="transaction")
    """

    def __init__(
        self,
        place: str,
        gate: Node,
        counts: Node,
        ways: Mapping[str, _Way],
        names: Mapping[str, str],
        passes: bool,
    ) -> None:
        self._place, self._gate, self._ways, self._names = place, gate, dict(ways), dict(names)
        self._passes = passes
        self.waiting: ZStream = of_stream(counts[WAITING])

    def table(
        self,
        name: str,
        table: str,
        *,
        key: str | Sequence[str] | None = None,
        op: str | None = None,
        weight: str | None = None,
        checked: bool = True,
        ignore_missing: bool = False,
        retain: bool = False,
    ) -> ZStream:
        """Return the rows of a table, of whole transactions.

        With a ``key``, the last row of a key counts in the order of transactions, and within one of
        them in that of arrival.

        Args:
            name: the name of the table.
            table: which one it is, as the ends call it.
            key, op, weight, checked, ignore_missing, retain: as for :func:`headrace.zsets.table`.

        Raises:
            PipelineError: if there is no such table, and for columns that are not there.
        """
        return table_of(
            self.rows(table),
            name,
            key=key,
            op=op,
            weight=weight,
            checked=checked,
            ignore_missing=ignore_missing,
            retain=retain,
            turn=(TURN, NUMBER),
        )

    def rows(self, table: str) -> ZStream:
        """Return the records of a table as they come, with their turn.

        Numbers in ``_turn`` ascend in the order of commits, and those in ``_number`` in the order of a
        transaction's rows. Both are -1 for a row without a transaction.

        Raises:
            PipelineError: if there is no such table.
        """
        rows = of_stream(self._gate[through(self._name_of(table))])
        if not self._passes:
            return rows
        return rows.union(self._ways[table].outside())

    def given_up(self, table: str) -> ZStream:
        """Return the records of transactions that were given up, since they waited for too long.

        Raises:
            PipelineError: if there is no such table.
        """
        return of_stream(self._gate[given_up(self._name_of(table))])

    def _name_of(self, table: str) -> str:
        if table not in self._names:
            raise PipelineError(
                f"there is no table {table!r}",
                place=self._place,
                remedy=f"the tables are {', '.join(self._names)}",
            )
        return self._names[table]


class _Way:
    """The records of one table on their way to the computations of a gate.

    Args:
        stream: the records.
        column: the column with the id of their transaction.
        order: the column with their number in it, if there is one.
        kind: the type of ids.
        refuses: whether a record without a transaction fails the step.
        place: the table, for messages.
    """

    def __init__(
        self,
        stream: Stream,
        column: str,
        order: str | None,
        kind: pa.DataType,
        refuses: bool,
        place: str,
    ) -> None:
        self._stream, self._place = stream, place
        self._inside = Select(_IsInside(column, refuses, place))
        self._outside = Select(_IsOutside(column))
        schema = rows_schema(stream.values.schema, place)
        own = id_type(stream.values.schema, column, place)
        if own != kind:
            raise PipelineError(
                f"transactions in column {column!r} are of type {own}, and those of the ends are {kind}",
                place=place,
                remedy="let both be texts, or both whole numbers",
            )
        number = pa.field(NUMBER, pa.int64(), nullable=False)
        self._id: dict[str, Any] = {TRANSACTION: _Id(column, kind)}
        self._types = {TRANSACTION: pa.field(TRANSACTION, kind, nullable=False)}
        if order is not None:
            if not pa.types.is_integer(field_of(schema, order, place).type):
                raise PipelineError(f"order={order!r}: the column is no whole number", place=place)
            self._id[NUMBER] = _Number(order, place)
            self._types[NUMBER] = number
        own_names = (column, order)
        self._columns = {field.name: field.name for field in schema if field.name not in own_names}
        for taken in (TRANSACTION, TURN, NUMBER):
            if taken in self._columns:
                raise PipelineError(
                    f"a column is called {taken!r}, which has a meaning", place=place
                )

    def ids(self) -> Stream:
        """Return the records with nothing but their transactions."""
        return self._rewritten(Linear((self._inside, Project(self._id, self._types))))

    def rows(self) -> Stream:
        """Return the records with their transactions."""
        columns = {**self._id, **self._columns}
        return self._rewritten(Linear((self._inside, Project(columns, self._types))))

    def outside(self) -> ZStream:
        """Return the records without a transaction, as rows."""
        turn = Project(
            {**self._columns, NUMBER: _no_turn, TURN: _no_turn},
            {of: pa.field(of, pa.int64(), nullable=False) for of in (NUMBER, TURN)},
        )
        return of_stream(self._stream, Linear((self._outside, turn)))

    def _rewritten(self, linear: Linear) -> Stream:
        way = OnTheWay.of(self._stream.values.schema, linear, self._place)
        return self._stream.rewritten(way, self._stream.name)


@dataclass(frozen=True)
class _IsInside:
    """Which records are of a transaction."""

    column: str
    refuses: bool
    place: str

    def __call__(self, rows: Rows) -> Mask:
        there: Mask = ~rows.nulls(self.column)
        if self.refuses and not there.all():
            raise BadInput(
                f"{int((~there).sum())} rows have no transaction: {self.column!r} is null",
                place=self.place,
                remedy="if such rows are to be seen at once, as those of a first snapshot, say "
                'outside="pass"; nothing of this step was committed',
            )
        return there


@dataclass(frozen=True)
class _IsOutside:
    """Which records are of no transaction."""

    column: str

    def __call__(self, rows: Rows) -> Mask:
        return rows.nulls(self.column)


@dataclass(frozen=True)
class _Id:
    """The transactions of records, in the type that all tables have in common."""

    column: str
    kind: pa.DataType

    def __call__(self, rows: Rows) -> pa.Array:
        return rows.arrow(self.column).cast(self.kind)


@dataclass(frozen=True)
class _Number:
    """The numbers of records in their transactions."""

    column: str
    place: str

    def __call__(self, rows: Rows) -> pa.Array:
        found = rows.arrow(self.column)
        if found.null_count:
            raise BadInput(
                f"{found.null_count} rows have no number in their transaction: {self.column!r} is null",
                place=self.place,
                remedy="correct the source, or leave out order=; nothing of this step was committed",
            )
        return found.cast(pa.int64())


def _no_turn(rows: Rows) -> Any:
    return np.full(len(rows), -1, dtype=np.int64)


def _check_streams(streams: Mapping[str, Stream], read: ReadEnds, place: str) -> None:
    """Check that each stream is read in one way.

    Raises:
        PipelineError: if not.
    """
    names = [stream.name for stream in (*streams.values(), read.stream)]
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise PipelineError(
            f"stream {twice!r} is given twice",
            place=place,
            remedy="give each table a stream of its own, and the ends, too",
        )


def _names(tables: Mapping[str, Any], place: str) -> dict[str, str]:
    """Return a name for each table that states and outputs can have.

    Raises:
        PipelineError: if two tables would have one name.
    """
    found = {table: re.sub(r"\W", "_", table) for table in tables}
    if len({*found.values()}) < len(found):
        raise PipelineError(
            f"names of tables differ by signs alone: {', '.join(tables)}",
            place=place,
            remedy="name one of them otherwise, or make two gates",
        )
    return found


def _positive(duration: DurationLike, what: str, place: str) -> int:
    micros = duration_micros(duration, what, place=place)
    if micros <= 0:
        raise PipelineError(f"{what}={duration!r} is not above 0", place=place)
    return micros
