"""A pipeline that is built from a file of SQL."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import zsets
from headrace.errors import BadInput, HeadraceError, PipelineError
from headrace.eventtime.watermark import bounded_delay
from headrace.pipeline import Pipeline, Stream
from headrace.sql import Views
from headrace.sql.stored import PlannedView
from headrace.sqlfile.connectors import (
    NUMBER,
    TRANSACTION,
    Given,
    Made,
    Target,
    sink_of,
    source_of,
)
from headrace.sqlfile.statements import Declared, Insert, SinkOfView, Table, Text, declared
from headrace.sqlfile.tokens import Script
from headrace.zsets import ZStream
from headrace.zsets.rows import Rows

#: Where Spark says that something is wrong in a query.
_PLACE = re.compile(r"line (\d+),? pos (\d+)")
_NAME = "pipeline.name"
#: The option of a table whose records say what happened to a row.
_OP = "change.op-column"


class SqlFile:
    """What a file of SQL declares, and the pipeline that it makes.

    Args:
        text: the statements.
        name: the name of the file, for errors; by default also that of the pipeline.

    Raises:
        PipelineError: for what is no statement, with line, column and remedy.

    Example::

        shop = SqlFile(Path("shop.sql").read_text(), "shop.sql")
        print(shop.explained(spark))
    """

    def __init__(self, text: str, name: str) -> None:
        self._script = Script(text, name)
        self._declared: Declared = declared(self._script)
        for setting, value in self._declared.settings.items():
            if setting != _NAME:
                raise self._script.error(
                    f"there is no setting {setting!r}",
                    value.at,
                    f"there is '{_NAME}'; settings of a run are options of headrace sql",
                )
        chosen = self._declared.settings.get(_NAME)
        self.name = Path(name).stem if chosen is None else chosen.text

    def pipeline(
        self, spark: Any = None, *, planned: Mapping[str, PlannedView] | None = None
    ) -> Pipeline:
        """Return the pipeline.

        Args:
            spark: the session of Spark that plans queries, if any has to be planned; see
                :class:`headrace.sql.Views`.
            planned: views as they were planned before; see :func:`headrace.planned_views`.

        Raises:
            PipelineError: for what cannot be maintained or connected, with its place.
        """
        building = _Building(self._script, self._declared, self.name)
        building.build(Views(spark, planned=planned))
        return building.pipeline

    def explained(self, spark: Any = None) -> str:
        """Return how views and queries are maintained, and what state they keep.

        It is about those that EXPLAIN names, or else about all. Nothing is connected.
        """
        building = _Building(self._script, self._declared, self.name)
        return building.explained(Views(spark))


def read_sql_file(path: str | Path) -> SqlFile:
    """Return what a file of SQL declares.

    Args:
        path: the file.

    Raises:
        PipelineError: if it cannot be read, or for what is no statement.

    Example::

        shop = read_sql_file("shop.sql")
        print(shop.name)
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(
            f"{path} cannot be read: {error}", remedy="give a file of SQL, in UTF-8"
        ) from error
    return SqlFile(text, str(path))


class _Building:
    """Builds one pipeline."""

    def __init__(self, script: Script, declared: Declared, name: str) -> None:
        self._script, self._declared = script, declared
        self.pipeline = Pipeline(name)
        self._targets = {one.target for one in declared.inserts}

    def build(self, views: Views) -> None:
        what = self._declared
        if not (what.inserts or what.sinks or any(one.materialized for one in what.views)):
            raise self._script.error(
                "nothing is computed: no view is materialized, and no rows go anywhere",
                0,
                "write CREATE MATERIALIZED VIEW … AS, INSERT INTO … or CREATE SINK …",
            )
        tables = self._read_tables()
        read = {table.name: self._read(table) for table in tables}
        whole = self._whole(tables, read)
        for table in tables:
            with self._placed(table.at):
                self._declare(views, table, self._rows(table, read[table.name], whole))
        for view in what.views:
            rows = self._planned(views, view.name, view.query)
            if view.materialized:
                with self._placed(view.at):
                    rows.view(view.name, key=view.key or None)
        for insert in what.inserts:
            self._insert(views, insert)
        for sink in what.sinks:
            self._sink(views, sink)

    def explained(self, views: Views) -> str:
        what = self._declared
        for table in self._read_tables():
            rows = _never_read(self.pipeline, table.name, table.columns)
            if _loses_late_rows(table):
                assert table.watermark is not None
                rows = rows.on_time(
                    table.name, table.watermark.column, what=f"table {table.name!r}"
                )
            self._declare(views, table, rows)
        for view in what.views:
            self._planned(views, view.name, view.query)
        queries = {_of_target(one.target): one.query for one in what.inserts}
        queries |= {_of_target(one.name): one.query for one in what.sinks}
        shown = [one.what.text for one in what.explained if not one.is_query]
        for name in shown:
            if name not in {one.name for one in what.views}:
                at = next(one.what.at for one in what.explained if one.what.text == name)
                raise self._script.error(
                    f"there is no view {name!r}", at, "name one that CREATE VIEW declares"
                )
        for number, one in enumerate(one for one in what.explained if one.is_query):
            queries[f"query{number + 1}"] = one.what
            shown.append(f"query{number + 1}")
        for name, query in queries.items():
            self._planned(views, name, query)
        everything = [*(one.name for one in what.views), *queries]
        return "\n\n".join(views.explain(name) for name in shown or everything)

    # -- tables -------------------------------------------------------------------------------

    def _is_read(self, name: str) -> bool:
        """Return whether a query names a table."""
        what = self._declared
        texts = [view.query.text for view in what.views]
        texts += [insert.query.text for insert in what.inserts]
        texts += [sink.query.text for sink in what.sinks]
        texts += [one.what.text for one in what.explained]
        read = " ".join(texts).lower()
        return bool(re.search(rf"(?<!\w){re.escape(name.lower())}(?!\w)", read))

    def _read_tables(self) -> list[Table]:
        """Return the tables that a query names: others are sinks, or not needed."""
        found = []
        for table in self._declared.tables.values():
            late = _loses_late_rows(table) and self._is_read(f"{table.name}_late")
            if late or self._is_read(table.name):
                if table.name in self._targets:
                    raise self._script.error(
                        f"table {table.name!r} is read, and rows are inserted into it",
                        table.at,
                        "declare one table for reading and one for writing, or read a view",
                    )
                self._check_columns(table)
                found.append(table)
        return found

    def _check_columns(self, table: Table) -> None:
        """Check that columns can be read, each of which is a field of a record."""
        for name in table.columns.names:
            if not name.isidentifier() or name.startswith("__"):
                raise self._script.error(
                    f"column {name!r} of table {table.name!r} cannot be read: it is not called like a "
                    "field",
                    table.at,
                    "leave it out, or write the pipeline in Python: columns= of a source gives columns "
                    "other names, and hr.sql.Views has the same SQL",
                )

    def _read(self, table: Table) -> tuple[Stream, Made]:
        """Return the records of a table that is read."""
        given = Given(self._script, table.name, table.options)
        watermark = table.watermark
        time = None if watermark is None else watermark.column
        with self._placed(table.at):
            made = source_of(given, table.columns, time, table.key)
        assert made.source is not None
        delay = timedelta(microseconds=0 if watermark is None else watermark.delay_us)
        name = f"{table.name}_input"
        return self.pipeline.inject(name, made.source, watermark=bounded_delay(delay)), made

    def _whole(
        self, tables: Sequence[Table], read: Mapping[str, tuple[Stream, Made]]
    ) -> dict[str, zsets.Transactions]:
        """Return the transactions that tables have in common, by the topic of their ends."""
        by_topic: dict[str, list[Table]] = {}
        for table in tables:
            given = read[table.name][1].transactions
            if given is not None:
                by_topic.setdefault(given.topic, []).append(table)
        return {
            topic: self._transactions(topic, several, read) for topic, several in by_topic.items()
        }

    def _transactions(
        self, topic: str, tables: Sequence[Table], read: Mapping[str, tuple[Stream, Made]]
    ) -> zsets.Transactions:
        streams: dict[str, Stream] = {}
        rules: dict[str, Any] = {}
        ends = None
        for table in tables:
            stream, made = read[table.name]
            given = made.transactions
            assert given is not None
            ends = ends or given.ends
            if given.table in streams:
                raise self._script.error(
                    f"two tables are called {given.table!r} by the ends of transactions",
                    table.at,
                    "say what each is called there: 'transactions.table' = 'public.orders'",
                )
            streams[given.table] = stream
            for rule, value in given.rules.items():
                if rules.setdefault(rule, value) != value:
                    raise self._script.error(
                        f"'transactions.{rule}' is {value!r} here, and {rules[rule]!r} elsewhere",
                        table.at,
                        f"say the same for all tables whose transactions end in {topic!r}",
                    )
        assert ends is not None
        name = re.sub(r"\W", "_", topic)
        with self._placed(tables[0].at):
            found = zsets.Ends(self.pipeline.inject(f"{name}_ends", ends), status="status")
            return zsets.transactions(
                name, streams, found, transaction=TRANSACTION, order=NUMBER, **rules
            )

    def _rows(
        self,
        table: Table,
        read: tuple[Stream, Made],
        whole: Mapping[str, zsets.Transactions],
    ) -> ZStream:
        """Return the rows of a table that is read."""
        stream, made = read
        watermark = table.watermark
        if made.transactions is not None:
            return whole[made.transactions.topic].table(
                table.name, made.transactions.table, key=table.key or None, op=made.op
            )
        if watermark is not None and made.op is None and _loses_late_rows(table):
            return _with_required(
                zsets.table(table.name, stream, watermark=watermark.column), table, made.required
            )
        rows = zsets.table(
            table.name,
            stream,
            key=table.key or None,
            op=made.op,
            ignore_missing=made.ignore_missing,
        )
        return _with_required(rows, table, made.required)

    def _declare(self, views: Views, table: Table, rows: ZStream) -> None:
        """Declare a table, and another one for its rows that come too late, if that is read."""
        views.table(table.name, rows)
        late = f"{table.name}_late"
        is_own = late in self._declared.tables
        if isinstance(rows, zsets.OnTimeRows) and not is_own and self._is_read(late):
            views.table(late, rows.late)

    # -- where rows go ------------------------------------------------------------------------

    def _insert(self, views: Views, insert: Insert) -> None:
        table = self._declared.tables.get(insert.target)
        if table is None:
            raise self._script.error(
                f"there is no table {insert.target!r}",
                insert.at,
                f"declare it: CREATE TABLE {insert.target} (…) WITH ('connector' = …)",
            )
        if [one.target for one in self._declared.inserts].count(insert.target) > 1:
            raise self._script.error(
                f"rows are inserted into {insert.target!r} by several statements",
                insert.at,
                "insert the UNION ALL of the queries",
            )
        rows = self._planned(views, _of_target(insert.target), insert.query)
        target = Target(table.name, table.columns, table.key)
        rows = self._fitting(rows, target, insert.query)
        given = Given(self._script, table.name, table.options)
        self._send(rows, target, sink_of(given, target), insert.at)

    def _sink(self, views: Views, sink: SinkOfView) -> None:
        rows = self._planned(views, _of_target(sink.name), sink.query)
        for column in sink.key:
            if column not in rows.schema.names:
                raise self._script.error(
                    f"sink {sink.name!r} has no column {column!r}",
                    sink.at,
                    f"it has {', '.join(rows.schema.names)}",
                )
        target = Target(sink.name, rows.schema, sink.key)
        given = Given(self._script, sink.name, sink.options)
        self._send(rows, target, sink_of(given, target), sink.at)

    def _fitting(self, rows: ZStream, target: Target, query: Text) -> ZStream:
        """Return rows with the columns of a table, which they have by position.

        Raises:
            PipelineError: if they have others.
        """
        given, wanted = list(rows.schema), list(target.columns)
        if len(given) != len(wanted):
            raise self._script.error(
                f"the query has {len(given)} columns, and table {target.name!r} has {len(wanted)}",
                query.at,
                f"select {', '.join(target.columns.names)}",
            )
        for has, needs in zip(given, wanted, strict=True):
            if has.type != needs.type:
                raise self._script.error(
                    f"column {has.name!r} of the query is of type {has.type}, and {needs.name!r} of "
                    f"table {target.name!r} of type {needs.type}",
                    query.at,
                    "CAST it in the query, or declare the table so",
                )
            if has.nullable and not needs.nullable:
                raise self._script.error(
                    f"column {has.name!r} of the query may be NULL, and {needs.name!r} of table "
                    f"{target.name!r} may not",
                    query.at,
                    f"use coalesce({has.name}, …), or declare the tables that it comes from NOT NULL",
                )
        names: dict[str, Any] = {
            needs.name: has.name for has, needs in zip(given, wanted, strict=True)
        }
        return rows.select(**names)

    def _send(self, rows: ZStream, target: Target, made: Made, at: int) -> None:
        """Send rows to a sink. What a sink by key holds is kept, and can be read as a view."""
        assert made.sink is not None
        with self._placed(at):
            if made.upserts:
                rows.view(target.name, key=target.key).upserts_to(f"{target.name}_out", made.sink)
            else:
                changes = rows.compute(target.name)
                self.pipeline.sink(f"{target.name}_out", changes.stream, made.sink)

    # -- errors -------------------------------------------------------------------------------

    def _planned(self, views: Views, name: str, query: Text) -> ZStream:
        try:
            return views.view(name, query.text, emit="final" if query.final else "changes")
        except HeadraceError as error:
            what = error.what.split("\n", maxsplit=1)[0].rstrip(";")
            found = _PLACE.search(what)
            at = query.at if found is None else _offset(query, int(found[1]), int(found[2]))
            what = what if found is None else what[: found.start()].rstrip(" ;(")
            raise self._script.error(what, at, error.remedy or "correct the query") from error

    @contextmanager
    def _placed(self, at: int) -> Iterator[None]:
        """Give errors that have no place in the file the place of a statement."""
        try:
            yield
        except PipelineError as error:
            if error.place.startswith(f"{self._script.name}:"):
                raise
            raise self._script.error(error.what, at, error.remedy) from error


@dataclass(frozen=True)
class _Required:
    """A column that no row of a table may lack."""

    column: str
    table: str

    def __call__(self, rows: Rows) -> Any:
        found = rows.columns[self.column]
        if found.null_count:
            raise BadInput(
                f"{found.null_count} new rows of table {self.table!r} have no {self.column!r}, "
                "which is declared NOT NULL",
                place=f"table {self.table!r}",
                remedy="correct the messages, or declare the column without NOT NULL; "
                "nothing of this step was committed",
            )
        return found


def _with_required(rows: ZStream, table: Table, required: Collection[str]) -> ZStream:
    """Return the rows of a table, of which none may lack one of some columns."""
    if not required:
        return rows
    columns: dict[str, Any] = {
        name: _Required(name, table.name) if name in required else name
        for name in rows.schema.names
    }
    types = {name: table.columns.field(name) for name in required}
    return rows.select(types=types, **columns)


def _loses_late_rows(table: Table) -> bool:
    """Return whether rows of a table that come too late are in no view: they are only inserted."""
    watermark = table.watermark
    if watermark is None or table.key or _OP in table.options.values:
        return False
    changes = table.options.values.get("format")
    is_time = pa.types.is_timestamp(table.columns.field(watermark.column).type)
    return is_time and (changes is None or changes.text != "debezium-json")


def _of_target(name: str) -> str:
    """Return the name of the view whose rows go to a table."""
    return f"{name}_rows"


def _offset(query: Text, line: int, column: int) -> int:
    """Return the place in the file of a place in a query, whose lines count from 1."""
    lines = query.text.split("\n")
    return query.at + sum(len(one) + 1 for one in lines[: line - 1]) + column


def _never_read(pipeline: Pipeline, name: str, columns: pa.Schema) -> ZStream:
    """Return a table of these columns that nothing is read from."""
    from headrace.sources import Iterable

    time = pa.field("", pa.timestamp("us", "UTC"))
    free = next(f"at{n}" for n in range(len(columns) + 1) if f"at{n}" not in columns.names)
    schema = columns.append(time.with_name(free))
    stream = pipeline.inject(f"{name}_input", Iterable([], schema, event_time=free))
    return zsets.table(name, stream).select(*columns.names)
