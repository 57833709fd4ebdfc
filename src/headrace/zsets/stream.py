"""Streams of rows with weights, and what can be done with them: the way in for programs.

Each method returns a further stream. Linear ones (``select``, ``filter``, ``map``, ``flat_map``,
``union``, ``minus``) add nothing to the pipeline: they run inside the operator that reads them. The
others add a computation of the given name, which keys its state, metrics and commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any, cast, overload

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.pipeline import Hashed, Node, Pipeline, Stream
from headrace.pipeline.integrals import streams_with_rows
from headrace.pipeline.keys import KEY, KeySpec
from headrace.pipeline.sink import Sink
from headrace.schema.row_lists import is_list
from headrace.zsets.aggregates import Aggregate
from headrace.zsets.apply import Apply, AsUpserts
from headrace.zsets.by_clock import AtTime, ByClock, Moments
from headrace.zsets.group import Group
from headrace.zsets.join import How, Join, right_names
from headrace.zsets.lateness import LATE, Final, OnTime
from headrace.zsets.linear import (
    NO_STEPS,
    Expand,
    Linear,
    MapRows,
    Negate,
    Project,
    Select,
    Source,
    Step,
    Weigh,
    field_of,
    rows_schema,
)
from headrace.zsets.on_the_way import OnTheWay
from headrace.zsets.operator import NEVER, OUT, Branch, Operator, Until, common_schema
from headrace.zsets.ordering import Order
from headrace.zsets.rows import WEIGHT, Rows
from headrace.zsets.sets import SetOperation
from headrace.zsets.tables import Checked, KeyedView, Upserts
from headrace.zsets.top import Ranking, Top
from headrace.zsets.window import Over, Stage, Window

#: What a column of operations may say → the weight of the row.
OPERATIONS = {
    **dict.fromkeys(("I", "i", "insert", "c", "r", "read", "+I", "+U"), 1),
    **dict.fromkeys(("D", "d", "delete", "-D", "-U"), -1),
}
_DELETES = ("D", "d", "delete", "-D")


#: For each column of a key, the columns that are equal to it in every row.
KeyColumns = tuple[frozenset[str], ...]


@dataclass(frozen=True)
class _Branch:
    """A stream of the pipeline, and the linear operators that its rows go through.

    Attributes:
        stream: the stream.
        linear: the operators.
        key: the columns behind them whose hash is the key of the stream's producer; None if that is
            not known.
        inserted: whether no row of the stream is ever taken back, though it has weights.
        hashed: the types that the columns of the key had when they were hashed.
    """

    stream: Stream
    linear: Linear = NO_STEPS
    key: KeyColumns | None = None
    inserted: bool = False
    hashed: tuple[pa.DataType, ...] = ()

    def then(self, step: Step) -> _Branch:
        key = self.key
        if key is not None:
            key = tuple(frozenset(new for n in part for new in step.copies(n)) for part in key)
        return replace(self, linear=self.linear.then(step), key=key)

    def is_keyed_by(self, columns: Sequence[str]) -> bool:
        """Return whether the hash of some columns is the key that its rows have."""
        key = self.key
        return (
            key is not None
            and len(key) == len(columns)
            and all(name in part for name, part in zip(columns, key, strict=True))
        )


class ZStream:
    """A stream of changes of rows: each row has a weight, which says how often it is added.

    What has come so far, added up, is a *Z-set*: the rows with the number of times that each is
    there. Every operator keeps its result up to date: the changes that it produces in a step are
    exactly those by which its result over all input differs from that of the step before.

    :func:`headrace.zsets.table` makes one of a stream.

    Attributes:
        pipeline: the pipeline.
        schema: the columns of the rows.

    Example::

        rows = hr.zsets.table("rows", hits)
        slow = rows.filter(lambda r: r["ms"] > 100)
        spent = slow.group("spent", "user", n=hr.zsets.Count(), ms=hr.zsets.Sum("ms"))
        spent.view("time_of_users", key="user")
    """

    def __init__(
        self, pipeline: Pipeline, branches: Sequence[_Branch], place: str = "zsets"
    ) -> None:
        self.pipeline = pipeline
        self._branches = tuple(branches)
        self.schema = common_schema([_schema_of(branch, place) for branch in branches], place)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return f"<ZStream {columns}>"

    # -- linear operators ---------------------------------------------------------------------

    def select(
        self, *names: str, types: Mapping[str, Any] | None = None, **columns: Source
    ) -> ZStream:
        """Return rows with other columns.

        Args:
            names: columns that stay.
            types: name → type of each column that a function returns.
            columns: name → another column, or a function of :class:`Rows` that returns a column.

        Raises:
            PipelineError: for a column that is not there, or whose type is missing.
        """
        return self._with(Project({**{name: name for name in names}, **columns}, dict(types or {})))

    def filter(self, function: Callable[[Rows], Any]) -> ZStream:
        """Return the rows for which a function of :class:`Rows` is true. Null is not true."""
        return self._with(Select(function))

    def map(self, function: Callable[[Rows], Mapping[str, Any]], type: Any) -> ZStream:
        """Return other rows, one for each.

        Args:
            function: a function of :class:`Rows` that returns the new columns, by name.
            type: the new columns: name → type, a schema, or a class.
        """
        return self._with(MapRows(function, type))

    def flat_map(
        self, function: Callable[[Rows], tuple[Any, Mapping[str, Any]]], type: Any
    ) -> ZStream:
        """Return any number of rows for each.

        Args:
            function: returns the position of the row that each new row comes from, and the new
                columns.
            type: the new columns, as for :meth:`map`.
        """
        return self._with(Expand(function, type))

    def union(self, *others: ZStream) -> ZStream:
        """Return the rows of several streams: UNION ALL.

        Raises:
            PipelineError: if their columns differ.
        """
        branches = [*self._branches, *(branch for other in others for branch in other._branches)]
        return ZStream(self.pipeline, branches, "zsets.union")

    def minus(self, other: ZStream) -> ZStream:
        """Return the difference: rows of the other stream count negatively.

        The result may have weights below zero. For EXCEPT, see :meth:`except_rows`.
        """
        return self.union(other._with(Negate()))

    def _with(self, step: Step) -> ZStream:
        return ZStream(self.pipeline, [branch.then(step) for branch in self._branches])

    # -- operators with state -----------------------------------------------------------------

    def join(
        self,
        name: str,
        other: ZStream,
        on: str | Sequence[str | tuple[str, str]],
        how: How = "inner",
        **options: Any,
    ) -> ZStream:
        """Return the join with another stream. See :class:`Join` for kinds and options.

        Args:
            name: the name of the computation.
            other: the right side.
            on: columns that must be equal: names, or pairs (of the left, of the right).
            how: the kind of join.
            options: ``null_safe``, ``condition``, ``right_names``, ``suffix``, ``mark``, ``until``.

        Example::

            ordered = hr.zsets.table("ordered", orders)
            paid = ordered.join("paid", hr.zsets.table("money", payments), [("id", "order")], "left")
        """
        pairs = [
            (of, of) if isinstance(of, str) else of for of in ([on] if isinstance(on, str) else on)
        ]
        keys = [tuple(left for left, _ in pairs), tuple(right for _, right in pairs)]
        return self._compute(
            name,
            lambda sides: Join(pairs, how, sides=sides, **options),
            [(self, keys[0]), (other, keys[1])],
            key=_key_of_join(pairs, how, self.schema, other.schema, options),
            inserted=how in ("inner", "semi") and self.only_inserts and other.only_inserts,
        )

    def final(self, name: str, until: Until) -> ZStream:
        """Return each row once, when it is final. See :class:`Final`.

        Args:
            name: the name of the computation.
            until: column → duration: a row is final when the input watermark has got to the value of
                the column and this long behind it. That no such row changes any more follows from
                the rows' tables: they have a ``watermark``.

        Example::

            rows = hr.zsets.table("rows", orders, watermark="at", lateness="10s")
            rows.final("complete", {"at": "10s"})
        """
        self._check_not_delayed(f"computation {name!r}")
        return self._compute(
            name, lambda sides: Final(until, sides=sides), [(self, None)], inserted=True
        )

    def by_clock(self, name: str, condition: AtTime, moments: Moments) -> ZStream:
        """Return the rows for which a condition holds at the time of the step.

        Rows come and go by themselves as the clock goes on, also while there is no input. See
        :class:`ByClock`.

        Args:
            name: the name of the computation.
            condition: a function of :class:`Rows` and an array of times, one for each row, in
                microseconds. It returns which rows are in the result at that time.
            moments: a function of :class:`Rows` that returns arrays of times: when that changes.

        Example::

            minute = 60_000_000

            def is_old(rows, now_us):
                return rows["at"].astype("int64") + minute <= now_us

            def is_old_at(rows):
                return [rows["at"].astype("int64") + minute]

            rows = hr.zsets.table("rows", orders).by_clock("old", is_old, is_old_at)
            rows.group("of_shops", "shop", n=hr.zsets.Count())  # orders of over a minute ago
        """
        columns = self.schema.names
        return self._compute(
            name, lambda sides: ByClock(condition, moments, sides=sides), [(self, columns)]
        )

    def on_time(
        self,
        name: str,
        column: str | None,
        lateness: DurationLike = "0s",
        *,
        what: str | None = None,
        retain: bool = False,
    ) -> OnTimeRows:
        """Return rows that are only inserted, without those that come too late.

        Args:
            name: the name of the computation.
            column: the column of each row's time; None to check only that no row is deleted.
            lateness: how far a row may be behind the input watermark of the step before.
            what: what the rows are, for messages.
            retain: whether they are kept, too; see :func:`table`.
        """
        text = what or f"table {name!r}"
        if column is not None:
            self._check_not_delayed(text)
        wait = timedelta(microseconds=duration_micros(lateness, "lateness", place=text))
        made = self._compute(
            name,
            lambda sides: OnTime(column, wait, what=text, sides=sides),
            [(self, None)],
            retain=retain,
            inserted=True,
        )
        late = self.pipeline.nodes[name][LATE]
        return OnTimeRows(made, column, wait, ZStream(self.pipeline, [_Branch(late)]))

    def _check_not_delayed(self, place: str) -> None:
        """Check that rows do not wait on their way, while the watermark goes on.

        Raises:
            PipelineError: if they may.
        """
        streams = [branch.stream for branch in self._branches]
        seen: set[str] = set()
        while streams:
            node = self.pipeline.producer(streams.pop())
            if node is not None and node.name not in seen:
                seen.add(node.name)
                streams += node.inputs
                if getattr(node.computation, "delays_rows", False):
                    raise PipelineError(
                        f"{node.name!r} holds rows until their transaction is whole, and the watermark "
                        "does not wait for them",
                        place=place,
                        remedy="leave out the watermark of the table: rows would come too late for it",
                    )

    @property
    def only_inserts(self) -> bool:
        """Whether it is known that no row is ever deleted: no step on the way says so."""
        return all(
            (of.inserted or WEIGHT not in of.stream.values.schema.names)
            and not any(isinstance(step, Negate | Weigh) for step in of.linear.steps)
            for of in self._branches
        )

    @property
    def keeps_rows(self) -> bool:
        """Whether a computation that is added to a running pipeline can begin with these rows."""
        known = streams_with_rows(self.pipeline)
        return all(of.stream.name in known for of in self._branches)

    def group(
        self,
        name: str,
        by: str | Sequence[str],
        *,
        until: Until = NEVER,
        **aggregates: Aggregate,
    ) -> ZStream:
        """Return a row for each group, with aggregates. See :class:`Group`.

        Args:
            name: the name of the computation.
            by: the columns; an empty list for one group of all rows.
            until: column → duration: a group is let go when the input watermark has got to the value
                of the column, and this long behind it. The result stays as it is then.
            aggregates: name → aggregate.

        Example::

            rows = hr.zsets.table("rows", hits)
            rows.group("sums", "user", n=hr.zsets.Count(), ms=hr.zsets.Sum("ms"))
        """
        columns = _listed(by)
        grows = self.only_inserts
        return self._compute(
            name,
            lambda sides: Group(columns, aggregates, until=until, only_inserts=grows, sides=sides),
            [(self, columns)],
            inserted=grows and not aggregates,
        )

    def distinct(self, name: str, *, until: Until = NEVER) -> ZStream:
        """Return each row once, for as long as its weight is above zero."""
        return self.group(name, self.schema.names, until=until)

    def top(
        self,
        name: str,
        by: str | Sequence[str],
        order: str | Order | Sequence[str | Order],
        limit: int | None = None,
        *,
        offset: int = 0,
        ranking: Ranking = "row_number",
        number: str | None = None,
        until: Until = NEVER,
    ) -> ZStream:
        """Return the first rows of each group, or all with their number. See :class:`Top`."""
        columns = _listed(by)
        orders = [order] if isinstance(order, str | Order) else list(order)
        return self._compute(
            name,
            lambda sides: Top(
                columns,
                orders,
                limit,
                offset=offset,
                ranking=ranking,
                number=number,
                until=until,
                only_inserts=self.only_inserts,
                sides=sides,
            ),
            [(self, columns)],
        )

    def over(
        self,
        name: str,
        by: str | Sequence[str],
        order: str | Order | Sequence[str | Order],
        *,
        until: Until = NEVER,
        further: Sequence[Stage] = (),
        **functions: Over,
    ) -> ZStream:
        """Return all rows, each with functions of its place in its group. See :class:`Window`.

        Args:
            name: the name of the computation.
            by: the columns of the group; an empty list for one group of all rows.
            order: what the rows of a group are ordered by.
            until: see :meth:`group`.
            further: what is computed of these rows then, in the same groups and order.
            functions: name → function.

        Example::

            before = hr.zsets.Over("lag", "ms")
            hr.zsets.table("rows", hits).over("before", "page", "ms", before=before)
        """
        columns = _listed(by)
        orders = [order] if isinstance(order, str | Order) else list(order)
        return self._compute(
            name,
            lambda sides: Window(
                columns, orders, functions, further=further, until=until, sides=sides
            ),
            [(self, columns)],
        )

    def intersect(self, name: str, other: ZStream, *, all: bool = False) -> ZStream:
        """Return the rows that both streams have: INTERSECT, or INTERSECT ALL."""
        return self._set_operation(name, other, "intersect", all)

    def except_rows(self, name: str, other: ZStream, *, all: bool = False) -> ZStream:
        """Return the rows that the other stream does not have: EXCEPT, or EXCEPT ALL."""
        return self._set_operation(name, other, "except", all)

    def _set_operation(self, name: str, other: ZStream, kind: Any, all: bool) -> ZStream:
        columns = tuple(self.schema.names)
        return self._compute(
            name,
            lambda sides: SetOperation(kind, all=all, sides=sides),
            [(self, columns), (other, columns)],
        )

    def checked(self, name: str, what: str | None = None, *, retain: bool = False) -> ZStream:
        """Return the same rows, and keep them to check that none is deleted that is not there.

        Args:
            name: the name of the computation.
            what: what the rows are, for messages.
            retain: whether their changes are kept, too; see :func:`table`.
        """
        text = what or f"table {name!r}"
        return self._compute(
            name,
            lambda sides: Checked(text, sides=sides),
            [(self, tuple(self.schema.names))],
            retain=retain,
        )

    def view(self, name: str, key: str | Sequence[str] | None = None) -> View:
        """Keep the rows as a view, which can be read as of any step, and can go to sinks.

        Args:
            name: the name of the view, for ``headrace view``.
            key: the columns that are different for each row, if there are any. Then sinks can
                replace and delete rows.
        """
        text = f"view {name!r}"
        remedy = "a table below it deletes rows that it does not have: check it with checked()"
        if key is None:
            made = self._compute(
                name,
                lambda sides: Checked(text, remedy=remedy, sides=sides),
                [(self, tuple(self.schema.names))],
            )
        else:
            columns = _listed(key)
            made = self._compute(
                name,
                lambda sides: KeyedView(text, columns, remedy=remedy, sides=sides),
                [(self, columns)],
            )
        return View(made, name, None if key is None else _listed(key))

    # -- building -----------------------------------------------------------------------------

    @property
    def stream(self) -> Stream:
        """The stream of the pipeline, with the weight of each row in the column ``_weight``.

        Raises:
            PipelineError: if linear operators behind it have not been run: name them with
                :meth:`compute`, or make it a view.
        """
        (branch, *more) = self._branches
        if more or branch.linear.steps:
            raise PipelineError(
                "these rows are no stream of the pipeline yet",
                place="zsets",
                remedy='give them a computation: rows.compute("name").stream',
            )
        return branch.stream

    def compute(self, name: str, *, retain: bool = False) -> ZStream:
        """Run the linear operators in a computation of their own, under a name.

        Args:
            name: the name of the computation.
            retain: whether the changes that it produces are kept; see :func:`table`.
        """
        inserted = self.only_inserts
        return self._compute(name, Apply, [(self, None)], retain=retain, inserted=inserted)

    def _compute(
        self,
        name: str,
        operator: Callable[[list[list[Branch]]], Operator],
        inputs: Sequence[tuple[ZStream, Sequence[str] | None]],
        *,
        key: KeyColumns | None = None,
        retain: bool = False,
        inserted: bool = False,
    ) -> ZStream:
        """Add an operator to the pipeline.

        Args:
            name: the name of the computation.
            operator: makes it of its sides.
            inputs: for each side, the rows and the columns of its key; None for any key.
            key: the columns of its rows that are its key; by default those of the first input.
            retain: whether its changes are kept, so that later computations can begin with them.
            inserted: whether it never takes back a row.
        """
        read = _Inputs()
        sides = []
        for rows, columns in inputs:
            for column in columns or ():
                field_of(rows.schema, column, f"computation {name!r}")
            place = f"computation {name!r}"
            sides.append([read.add(branch, columns, place) for branch in rows._branches])
        hashed = read.hashed(f"computation {name!r}")
        kept = [OUT] if retain else []
        node = self.pipeline.compute(name, operator(sides), keys=read.keys, retain=kept)
        (rows, columns), *_ = inputs
        if columns is None:  # any key
            (branch, *more) = rows._branches
            key = branch.key if not more and read.keys == dict.fromkeys(read.keys, KEY) else None
            hashed = branch.hashed
        elif key is None:
            key = tuple(frozenset((name,)) for name in columns)
        made = _Branch(node[OUT], key=key, inserted=inserted, hashed=hashed)
        return ZStream(self.pipeline, [made])


def _schema_of(branch: _Branch, place: str) -> pa.Schema:
    where = f"{place}, stream {branch.stream.name!r}"
    return branch.linear.schema(rows_schema(branch.stream.values.schema, where), where)


class _Inputs:
    """The inputs of one operator: streams, each with its key, as the operator reads them.

    Linear operators behind a stream run where its rows are sent. So a stream may be read in several
    ways, by several keys.
    """

    def __init__(self) -> None:
        self.keys: dict[Stream, KeySpec] = {}
        self._hashed: dict[tuple[str, ...], tuple[pa.DataType, ...]] = {}

    def add(self, branch: _Branch, columns: Sequence[str] | None, place: str) -> Branch:
        """Add a branch, by a key of some columns, or by any. Return it as the operator reads it."""
        read = self._read(branch, columns, place)
        if columns is not None:
            kinds = tuple(read.values.schema.field(name).type for name in columns)
            self._hashed[read.label, *columns] = branch.hashed if self.keys[read] == KEY else kinds
        return Branch(read.label)

    def hashed(self, place: str) -> tuple[pa.DataType, ...]:
        """Return the types as which the columns of the key are hashed.

        Raises:
            PipelineError: for times of day in several units: equal ones would have several hashes,
                and rows that belong together would not meet. (The hashes cannot change, for state is
                kept by them.)
        """
        first, *others = self._hashed.values() or [()]
        for other in others:
            for one, of in zip(first, other, strict=True):
                if one != of and pa.types.is_time(one) and pa.types.is_time(of):
                    raise PipelineError(
                        f"rows are brought together by a time of day that is {one} in some, and {of} in "
                        "others",
                        place=place,
                        remedy="declare all as datetime.time, or select() the columns of each table first, "
                        "which makes time64[us] of them",
                    )
        return first

    def _read(self, branch: _Branch, columns: Sequence[str] | None, place: str) -> Stream:
        stream = branch.stream
        plain = not branch.linear.steps
        rewrite = OnTheWay.of(stream.values.schema, branch.linear, place)
        for known, key in self.keys.items():
            same = known.rewrite == rewrite or (plain and known.rewrite is None)
            if known.address == stream.address and same and key == _key_of(known, branch, columns):
                return known
        taken = {known.label for known in self.keys}
        numbers = range(2, len(taken) + 3)
        label = stream.name
        if label in taken:
            label = next(f"{label} ({n})" for n in numbers if f"{label} ({n})" not in taken)
        read = stream if plain and label == stream.name else stream.rewritten(rewrite, label)
        self.keys[read] = _key_of(read, branch, columns)
        return read


def _key_of(stream: Stream, branch: _Branch, columns: Sequence[str] | None) -> KeySpec:
    """Return the key by which an operator reads a stream: the producer's, if it is the same."""
    if columns is None:
        return _any_key(stream)
    if branch.is_keyed_by(columns) and _keeps_key(stream):
        return KEY
    return Hashed(tuple(columns))


def _keeps_key(stream: Stream) -> bool:
    """Return whether ``"key"`` is the key of a stream's producer."""
    return bool(stream.key_fields) and KEY not in stream.values.schema.names


def _any_key(stream: Stream) -> KeySpec:
    """Return a key for code without state: the producer's, so that rows stay where they are."""
    if _keeps_key(stream):
        return KEY
    return Hashed(
        tuple(
            field.name
            for field in stream.values.schema
            if is_list(field.type) or not pa.types.is_nested(field.type)
        )
    )


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _key_of_join(
    pairs: Sequence[tuple[str, str]],
    how: How,
    left: pa.Schema,
    right: pa.Schema,
    options: Mapping[str, Any],
) -> KeyColumns | None:
    """Return the columns of a join's rows that are its key. Rows without a left one have none there."""
    if how in ("right", "full"):
        return None
    names = right_names(left, right, options.get("right_names"), options.get("suffix", "_right"))
    both = how == "inner"
    return tuple(
        frozenset((one, names.get(other, other)) if both else (one,)) for one, other in pairs
    )


class OnTimeRows(ZStream):
    """The rows of a table with a watermark: they are only inserted, and are on time.

    :func:`headrace.zsets.table` makes one.

    Attributes:
        watermark: the column of each row's time, or None.
        lateness: how far a row may be behind the watermark.
        late: the rows that came too late, as a stream of their own.

    Example::

        rows = hr.zsets.table("rows", orders, watermark="at", lateness="10s")
        rows.group("by_shop", "shop", n=hr.zsets.Count())  # those of rows.late are not in it
    """

    def __init__(
        self, rows: ZStream, watermark: str | None, lateness: timedelta, late: ZStream
    ) -> None:
        super().__init__(rows.pipeline, rows._branches)
        self.watermark, self.lateness, self.late = watermark, lateness, late


class View(ZStream):
    """Rows that are kept: the result of all input up to a step, which can be read.

    :meth:`ZStream.view` makes one. ``headrace view NAME`` shows it, and
    :func:`headrace.checkpoints.views.read_view` returns it.

    Attributes:
        name: its name.
        key: the columns that are different for each row, or None.

    Example::

        counts = hr.zsets.table("rows", hits).group("counts", "page", n=hr.zsets.Count())
        view = counts.view("visits_by_page", key="page")
        view.upserts_to("out", hr.sinks.Files("out/visits"))
    """

    def __init__(self, rows: ZStream, name: str, key: tuple[str, ...] | None) -> None:
        super().__init__(rows.pipeline, rows._branches)
        self.name, self.key = name, key

    def changes_to(self, name: str, sink: Sink, *, weak: bool | None = None) -> View:
        """Send the view's changes to a sink: rows with their weights in the column ``_weight``.

        Returns:
            The view.
        """
        self.pipeline.sink(name, self.stream, sink, weak=weak)
        return self

    def upserts_to(self, name: str, sink: Sink, *, weak: bool | None = None) -> View:
        """Send the view's rows to a sink that replaces rows of the same key.

        Each row has the view's columns and ``_deleted``, which is true if the key is gone. Of each
        key a step sends one row, even if it deletes and inserts. Kafka and the sinks of tables
        (``Delta``, ``Iceberg``, ``Table``) take them with ``mode="upsert", deletes="_deleted"``.

        Returns:
            The view.

        Raises:
            PipelineError: if the view has no key.
        """
        if self.key is None:
            names = msgspec.json.encode(self.schema.names).decode().replace(",", ", ")
            raise PipelineError(
                f"view {self.name!r} has no key, so no row of it can be replaced",
                remedy='give it one: view("name", key=["…"]); if equal rows may be there, count them '
                f'first: rows.group("name", {names}, copies=Count()).view("name", key={names}); or '
                "send changes_to()",
            )
        self.pipeline.sink(name, self._upserts[OUT], sink, weak=weak)
        return self

    @cached_property
    def _upserts(self) -> Node:
        """The computation that makes upserts of changes, for all sinks that want them."""
        key: KeySpec = _any_key(self.stream)
        if key != KEY:
            key = Hashed(self.key or ())
        return self.pipeline.compute(
            f"{self.name}_upserts", AsUpserts(self.key or ()), keys={self.stream: key}
        )


@overload
def table(
    name: str,
    stream: Stream | Node,
    *,
    watermark: str,
    lateness: DurationLike = "0s",
    retain: bool = False,
) -> OnTimeRows: ...
@overload
def table(
    name: str,
    stream: Stream | Node,
    *,
    key: str | Sequence[str] | None = None,
    op: str | None = None,
    weight: str | None = None,
    checked: bool = True,
    ignore_missing: bool = False,
    retain: bool = False,
) -> ZStream: ...
def table(
    name: str,
    stream: Stream | Node,
    *,
    key: str | Sequence[str] | None = None,
    op: str | None = None,
    weight: str | None = None,
    checked: bool = True,
    ignore_missing: bool = False,
    watermark: str | None = None,
    lateness: DurationLike = "0s",
    retain: bool = False,
) -> ZStream:
    """Return the rows of a table whose changes a stream brings.

    - Without more, each record is an insertion.
    - With ``op``, a column says what happens: ``"I"`` or ``"insert"``, ``"D"`` or ``"delete"`` (also
      ``c``, ``r``, ``d`` of Debezium, and ``+I``, ``-U``, ``+U``, ``-D`` of Flink). A deletion has
      all columns of the row. An update is a deletion and an insertion.
    - With ``weight``, a column of integers says how often the row is added.
    - With ``key``, each record is the new row of its key. With ``op``, a deletion deletes the row,
      and everything else, such as ``"U"`` or ``"update"``, replaces it. This is what
      ``hr.messages.Debezium`` reads. A column of booleans says which records are deletions:
      ``kafka.tombstone`` is one.
    - With ``watermark``, each record is an insertion, and those that come too late are left out.

    Args:
        name: the name of the table: that of its computation, if it has state.
        stream: the stream.
        key: the columns of the primary key. Then the table keeps its rows.
        op: the column that says what happens. It is no column of the table.
        weight: the column of weights. It is no column of the table.
        checked: with ``op`` or ``weight``, whether the table keeps its rows, to check that none is
            deleted that is not there.
        ignore_missing: with ``key``, whether the deletion of a row that is not there is counted, and
            no error.
        watermark: the column of each row's time. A row is late if it is behind the watermark of the
            stream, as it was after the step before, by more than ``lateness``. Late rows are counted,
            and are in ``rows.late``. What is kept for rows that none can join any more is let go.
        lateness: see above.
        retain: whether the storage keeps all changes of the table, too. A view that is added to a
            running pipeline begins with the rows of a table that keeps its rows. Of one that keeps
            none, such as a table of insertions, it can begin with the retained changes:
            ``job.change(new, begin={name: "beginning", …})``, for all of its computations. What is
            retained grows with every change.

    Raises:
        PipelineError: for columns that are not there.
        BadInput: in a step, for a deletion of a row that is not there, and for an operation that is
            none.

    Example::

        newest = hr.zsets.table("newest", hits, key="user")  # the last hit of each user
        newest.group("users", "page", n=hr.zsets.Count())
    """
    of = stream.only_output() if isinstance(stream, Node) else stream
    place = f"table {name!r}"
    rows = of_stream(of, place=place)
    if watermark is not None:
        if key is not None or op is not None or weight is not None:
            raise PipelineError(
                "watermark= is for rows that are only inserted, and key, op or weight may delete",
                place=place,
                remedy="leave out watermark=, or the others",
            )
        return rows.on_time(name, watermark, lateness, retain=retain)
    return table_of(
        rows,
        name,
        key=key,
        op=op,
        weight=weight,
        checked=checked,
        ignore_missing=ignore_missing,
        retain=retain,
    )


def of_stream(stream: Stream, linear: Linear = NO_STEPS, *, place: str = "zsets") -> ZStream:
    """Return the records of a stream as rows.

    Args:
        stream: the stream.
        linear: the operators that they go through first.
        place: what they are, for messages.
    """
    return ZStream(cast(Pipeline, stream.pipeline), [_Branch(stream, linear)], place)


def table_of(
    rows: ZStream,
    name: str,
    *,
    key: str | Sequence[str] | None,
    op: str | None,
    weight: str | None,
    checked: bool,
    ignore_missing: bool,
    retain: bool,
    turn: Sequence[str] = (),
) -> ZStream:
    """Return the rows of a table whose changes come as rows; see :func:`table`.

    Args:
        rows: the changes.
        name, key, op, weight, checked, ignore_missing, retain: see :func:`table`.
        turn: columns of numbers. With a key, the row of the highest counts, in the place of the one
            that comes last; see :class:`headrace.zsets.Upserts`. They are no columns of the table.
    """
    place = f"table {name!r}"
    for column in [*_listed(key or ()), *([op] if op else []), *([weight] if weight else [])]:
        field_of(rows.schema, column, place)
    if turn and key is None:
        rows = rows.select(*(of for of in rows.schema.names if of not in turn))
    if key is not None:
        deletes = None if op is None else _Deletes(op, place)
        dropped = [*([] if op is None else [op]), *turn]
        return rows._compute(
            name,
            lambda sides: Upserts(
                _listed(key),
                what=place,
                deletes=deletes,
                dropped=dropped,
                ignore_missing=ignore_missing,
                turn=turn,
                sides=sides,
            ),
            [(rows, _listed(key))],
            retain=retain,
        )
    if op is None and weight is None:
        return rows.compute(name, retain=True) if retain else rows
    if op is not None and rows.schema.field(op).type == pa.bool_():
        raise PipelineError(
            f"column {op!r} says which records are deletions, and nothing says of what",
            place=place,
            remedy="give the columns of the key that a deletion has: key=",
        )
    function = _Weights(op, place) if op is not None else _Column(weight or "")
    weighed = rows._with(Weigh(function, (op or weight or "",)))
    if checked:
        return weighed.checked(name, retain=retain)
    return weighed.compute(name, retain=True) if retain else weighed


@dataclass(frozen=True)
class _Column:
    """The weights in a column."""

    column: str

    def __call__(self, rows: Rows) -> Any:
        if rows.columns[self.column].null_count:
            raise ValueError(f"column {self.column!r} has a null, and is the weight of its row")
        return rows[self.column]


@dataclass(frozen=True)
class _Weights:
    """The weights that a column of operations says."""

    column: str
    place: str

    def __call__(self, rows: Rows) -> Any:
        codes = pc.dictionary_encode(rows.columns[self.column])
        known = codes.dictionary.to_pylist()
        unknown = [code for code in known if code not in OPERATIONS]
        if unknown or codes.null_count:
            text = f"{unknown[0]!r}" if unknown else "null"
            also = (
                "; updates need key="
                if unknown and str(unknown[0]).lower() in ("u", "update")
                else ""
            )
            raise ValueError(
                f"{self.place}: {text} in column {self.column!r} is neither an insertion nor a "
                f"deletion{also}"
            )
        return np.array([OPERATIONS[code] for code in known] or [0])[codes.indices.to_numpy()]


@dataclass(frozen=True)
class _Deletes:
    """Which rows a column of operations says are deleted."""

    column: str
    place: str

    def __call__(self, rows: Rows) -> Any:
        column = rows.columns[self.column]
        if pa.types.is_boolean(column.type):
            return column.fill_null(False).to_numpy(zero_copy_only=False)
        found = pc.is_in(column, pa.array(_DELETES))
        return found.to_numpy(zero_copy_only=False)


__all__ = ["WEIGHT", "OnTimeRows", "View", "ZStream", "table"]
