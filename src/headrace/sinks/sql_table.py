"""A sink of tables in SQL databases: the rows of a delivery and its id in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Unpack

import pyarrow as pa

from headrace.errors import PipelineError, SinkConflict, StorageError
from headrace.errors.user_code import error_text
from headrace.pipeline.sink import Deliverer, Delivery
from headrace.sinks.mysql_tables import check_keys, check_transactional
from headrace.sinks.sql_database import (
    MISSING,
    engine_maker,
    family_of,
    keep_sessions_exact,
    location_of,
    may_pass,
    quoted,
)
from headrace.sinks.sql_types import (
    bound_type,
    check_lengths,
    copy_text,
    fits,
    key_types,
    pieces,
    plain_type,
    shown,
    sql_type,
    values_of,
)
from headrace.sinks.table_columns import Changes, added_columns
from headrace.sinks.table_sink import TableOptions, TableSink, check_installed, with_retries

try:
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql, postgresql, sqlite
    from sqlalchemy.exc import DBAPIError, NoSuchTableError, OperationalError, SQLAlchemyError
    from sqlalchemy.schema import CreateTable
except ImportError:  # pragma: no cover - an installation without the extra
    pass

Mode = Literal["append", "upsert"]

#: The table that says which deliveries the sinks' tables have.
STEPS = "headrace_steps"
_STAGE = "headrace_stage"
_DATABASES = ("postgresql", "mysql", "sqlite")
_DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql"}


#: Options of tables that are made in MySQL: rows and step are in one transaction, texts are whole.
_OF_MYSQL: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"))
}


class Table(TableSink):
    """Writes each step that produced something to a table in PostgreSQL, MySQL, MariaDB or SQLite.

    It needs SQLAlchemy and a driver: ``pip install "headrace[sql]" "psycopg[binary]"`` for
    PostgreSQL, and ``pip install "headrace[mysql]"`` for MySQL and MariaDB.

    Args:
        database: its URL, such as ``postgresql://ann@host/shop``, ``mysql://ann@host/shop`` or
            ``sqlite:///out/shop.db``, or a function that returns an engine of SQLAlchemy.
        name: the name of the table.
        mode: ``append`` adds the rows. ``upsert`` replaces the rows of the same ``keys``, and adds
            the others. The keys are the primary key of a table that the sink makes, and must be
            unique in another one.
        schema: the schema in which the table is; by default that of the connection.
        create: whether to make tables that are missing, and to add columns.
        options: ``keys``, ``deletes``, ``columns`` and ``take_over``, as all sinks of tables have
            them (:class:`TableOptions`).

    Guarantees: exactly once. One transaction writes the rows and the id of their delivery, which is
    in a row of the table ``headrace_steps`` beside it. A delivery that is recorded there is skipped.
    The transaction begins with an update of that row, so drivers wait for each other, and one that a
    newer driver has replaced is refused by the table itself (``Fenced``). Others may write to the
    table as they like.

    A new column of the stream is added to the table. A column that the stream does not have gets
    its default, or null. Any other difference is refused in words before anything is written
    (``SinkConflict``), and so are new and missing columns at once, since a renamed column looks so.

    Nothing is converted with loss. Durations are whole microseconds. Lists, structs and maps are
    JSON, as ``sinks.Files`` writes it; values that are JSON are texts. Points in time are
    ``timestamptz`` in PostgreSQL, and ``datetime(6)`` in UTC in MySQL. SQLite holds them as texts in
    UTC, and decimals as texts. NaN in SQLite and MySQL, which have none, is refused, and so are
    infinite numbers in MySQL, the character NUL in texts of PostgreSQL, and texts that are longer
    than their column.

    MySQL and MariaDB: the tables must be InnoDB, since others know no transactions. Keys that are
    texts have at most 768 characters in tables that the sink makes. In a table that is there, an
    upsert is refused if a key has a collation that takes different texts for equal, or if there is
    another unique key: MySQL would replace the row that has that one.

    Cost: one transaction a step: about 4 ms for 1,000 rows in PostgreSQL, which gets them by ``COPY``,
    and 15 ms in SQLite; 15 and 20 ms for an upsert. If the database cannot be
    reached or is locked, the delivery is tried again for about 20 s.

    Example::

        totals = hr.sinks.Table("sqlite:///totals.db", "totals", mode="upsert", keys=["key"])
        p.sink("totals", visits, totals)

    Raises:
        PipelineError: for an unknown mode, for keys that do not go with it, and for a URL that is
            none or of another database.
    """

    def __init__(
        self,
        database: str | Callable[[], sa.Engine],
        name: str,
        *,
        mode: Mode = "append",
        schema: str | None = None,
        create: bool = True,
        **options: Unpack[TableOptions],
    ) -> None:
        check_installed("Table", "sql", MISSING)
        super().__init__(
            "SQL",
            plain_type,
            mode=mode,
            modes=("append", "upsert"),
            options=options,
        )
        self._make = (
            engine_maker(database, "sinks.Table", _check_database)
            if isinstance(database, str)
            else database
        )
        self._name, self._schema, self._create = name, schema, create
        self._location = location_of(database) if isinstance(database, str) else "a database"
        self._engine: sa.Engine | None = None
        self._lengths: dict[str, int] = {}  # of columns of texts that have one
        self._ready: pa.Schema | None = None  # the columns of which the table is known to have all
        self._steps = sa.Table(
            STEPS,
            sa.MetaData(),
            # (MySQL would take capitals, and spaces at the end, for equal)
            sa.Column(
                "sink_id",
                sa.String(255).with_variant(
                    mysql.VARCHAR(1020, charset="binary"), "mysql", "mariadb"
                ),
                primary_key=True,
            ),
            sa.Column("lineage", sa.String(255), nullable=False),
            sa.Column("storage", sa.Text, nullable=False),
            sa.Column("delivery", sa.BigInteger, nullable=False),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            schema=schema,
            **_OF_MYSQL,
        )

    @property
    def _place(self) -> str:
        of = f"{self._schema}.{self._name}" if self._schema else self._name
        return f"table {of} of {self._location}"

    def _id(self, run: Deliverer) -> str:
        return f"{run.pipeline}/{run.sink}/{self._name}"

    @property
    def _opened(self) -> sa.Engine:
        """The engine.

        Raises:
            PipelineError: if it is of another database.
        """
        if self._engine is None:
            engine = self._make()
            self._location = location_of(engine.url)
            _check_database(engine.dialect.name, engine.dialect.driver)
            keep_sessions_exact(engine)
            self._engine = engine
        return self._engine

    @property
    def _family(self) -> str:
        return family_of(self._opened.dialect.name)

    # -- before a run -------------------------------------------------------------------------

    def _open(self, deliverer: Deliverer) -> None:
        self._ready = None
        with self._errors():
            self._with_attempts(lambda: self._check(deliverer))

    def _check(self, run: Deliverer) -> None:
        engine = self._opened
        with engine.begin() as connection:
            self._check_transactions(connection)
            there = self._reflected(connection)
            if there is not None and self._declared is not None:
                self._surely_lacking(connection, there, self._declared)
            if not sa.inspect(connection).has_table(STEPS, self._schema):
                if not self._create:
                    raise self._has_no(STEPS, str(CreateTable(self._steps).compile(engine)))
                connection.execute(CreateTable(self._steps, if_not_exists=True))
            elif there is None or self._may_take_over:
                # What was delivered to a table that is not there any more does not count.
                connection.execute(
                    sa.update(self._steps)
                    .where(
                        self._steps.c.sink_id == self._id(run),
                        self._steps.c.lineage != run.lineage,
                    )
                    .values(lineage=run.lineage, storage=run.location, delivery=-1, epoch=0)
                )
            if self._family == "mysql":
                check_transactional(connection, self._schema, STEPS, self._place)
            found = connection.execute(self._recorded(run)).one_or_none()
            if found is not None and found.lineage != run.lineage:
                raise self._belongs_to(run.pipeline, run.sink, found.storage)

    def _check_transactions(self, connection: sa.Connection) -> None:
        """Check that the engine does not commit each statement by itself.

        Raises:
            PipelineError: if it does.
        """
        of_driver: Any = connection.connection.dbapi_connection
        if connection.dialect.detect_autocommit_setting(of_driver):
            raise PipelineError(
                "the engine commits each statement by itself (AUTOCOMMIT), so rows and step are "
                "not in one transaction",
                place=self._place,
                remedy="make the engine without isolation_level='AUTOCOMMIT'",
            )

    def _recorded(self, run: Deliverer) -> sa.Select[Any]:
        return sa.select(self._steps).where(self._steps.c.sink_id == self._id(run))

    def _reflected(self, connection: sa.Connection) -> sa.Table | None:
        try:
            return sa.Table(
                self._name, sa.MetaData(), schema=self._schema, autoload_with=connection
            )
        except NoSuchTableError:
            return None

    def _surely_lacking(
        self, connection: sa.Connection, there: sa.Table, given: pa.Schema
    ) -> list[str]:
        """Return the columns that the table lacks; see :meth:`_lacking`.

        A table is looked at part by part. If another driver makes it meanwhile, its key may be
        missing from what was seen. So a conflict counts only if a second look shows it, too.
        """
        try:
            return self._lacking(connection, there, given)
        except SinkConflict:
            again = self._reflected(connection)
            if again is None:
                raise
            return self._lacking(connection, again, given)

    def _lacking(self, connection: sa.Connection, there: sa.Table, given: pa.Schema) -> list[str]:
        """Return the columns that the table lacks, if it may get them.

        Raises:
            SinkConflict: for any other difference.
        """

        def misfit(name: str) -> str:
            column, kind = there.c[name], given.field(name).type
            if fits(kind, column.type, self._family):
                return ""
            return f"is of type {shown(column.type)} there, and {kind} here"

        required = {
            column.name: not (
                column.nullable
                or column.server_default is not None
                or column.identity is not None
                or column.computed is not None
                or column is there.autoincrement_column
            )
            for column in there.columns
        }
        lacking = added_columns(required, given.names, misfit, self._place)
        if self._keys and not _is_unique(there, self._keys):
            raise SinkConflict(
                f"several rows of the table may have the same {', '.join(self._keys)}",
                place=self._place,
                remedy="make these columns its primary key, or unique, so that upsert finds one row",
            )
        if self._family == "mysql":
            check_transactional(connection, self._schema, self._name, self._place)
            if self._keys:
                check_keys(connection, there, self._keys, given.names, self._place)
        return lacking

    # -- a delivery ---------------------------------------------------------------------------

    def _write(self, run: Deliverer, delivery: Delivery, changes: Changes) -> None:
        rows = changes.rows

        def attempt() -> None:
            try:
                if self._ready != rows.schema:
                    self._prepare(rows.schema)
                with self._opened.begin() as connection:
                    if self._is_next(connection, run, delivery):
                        if changes.gone is not None and changes.deletes:
                            self._delete(connection, changes.gone)
                        if rows.num_rows:
                            self._insert(connection, rows)
            except BaseException:
                self._ready = None  # whatever is known of the table may be out of date
                raise

        with self._errors():
            self._with_attempts(attempt)
        self._ready = rows.schema

    def _is_next(self, connection: sa.Connection, run: Deliverer, delivery: Delivery) -> bool:
        """Record a delivery. Return False if it is recorded already.

        The update locks the row until the transaction ends.

        Raises:
            Fenced: if a newer driver has delivered.
            SinkConflict: if this sink of another storage has.
        """
        steps = self._steps
        updated = connection.execute(
            sa.update(steps)
            .where(
                steps.c.sink_id == self._id(run),
                steps.c.lineage == run.lineage,
                steps.c.epoch <= delivery.epoch,
                steps.c.delivery < delivery.id,
            )
            .values(delivery=delivery.id, epoch=delivery.epoch, storage=run.location)
        )
        if updated.rowcount:
            return True
        found = connection.execute(self._recorded(run)).one_or_none()
        if found is None:
            connection.execute(
                sa.insert(steps).values(
                    sink_id=self._id(run),
                    lineage=run.lineage,
                    storage=run.location,
                    delivery=delivery.id,
                    epoch=delivery.epoch,
                )
            )
            return True
        if found.lineage != run.lineage:
            raise self._belongs_to(run.pipeline, run.sink, found.storage)
        if found.epoch > delivery.epoch:
            raise self._superseded(delivery.epoch, found.epoch)
        return False

    def _prepare(self, schema: pa.Schema) -> None:
        """Make the table if it is missing, and add the columns that it lacks."""
        engine = self._opened
        with engine.begin() as connection:
            there = self._reflected(connection)
            wanted = self._wanted(connection, schema)
            if self._family != "sqlite":  # (it cuts nothing)
                self._lengths = _lengths(wanted if there is None else there)
            if there is None:
                if not self._create:
                    raise self._has_no(self._name, str(CreateTable(wanted).compile(engine)))
                connection.execute(CreateTable(wanted, if_not_exists=True))
                return
            for name in self._surely_lacking(connection, there, schema):
                kind = wanted.c[name].type.compile(dialect=engine.dialect)
                change = f"ALTER TABLE {self._quoted_name} ADD COLUMN {self._quoted(name)} {kind}"
                if not self._create:
                    raise self._has_no(name, change)
                _execute(connection, change)

    def _wanted(self, connection: sa.Connection, schema: pa.Schema) -> sa.Table:
        """Return the table as the sink would make it."""
        kinds = {field.name: sql_type(field.type, self._family) for field in schema}
        if self._family == "mysql":
            keys = {name: schema.field(name).type for name in self._keys}
            kinds |= key_types(keys, connection.dialect)
        columns = [
            sa.Column(name, kind, primary_key=name in self._keys, autoincrement=False)
            for name, kind in kinds.items()
        ]
        return sa.Table(self._name, sa.MetaData(), *columns, schema=self._schema, **_OF_MYSQL)

    @property
    def _quoted_name(self) -> str:
        names = [self._name] if self._schema is None else [self._schema, self._name]
        return ".".join(map(self._quoted, names))

    def _quoted(self, name: str) -> str:
        return quoted(name, self._opened.dialect)

    def _insert(self, connection: sa.Connection, rows: pa.Table) -> None:
        check_lengths(rows, self._lengths)
        if self._family == "postgresql":
            self._copy(connection, rows)
            return
        table = self._with_columns(rows.schema)
        in_mysql = self._family == "mysql"
        insert: Any = mysql.insert(table) if in_mysql else sqlite.insert(table)
        if self._keys:
            upsert = _mysql_upsert if in_mysql else _upsert
            insert = upsert(insert, rows.column_names, self._keys)
        # (PyMySQL does not unescape percent signs behind the values of many rows)
        one_by_one = in_mysql and any("%" in name for name in rows.column_names)
        for piece in pieces(rows):
            given = _dicts(piece, piece.column_names, self._family)
            for part in [[row] for row in given] if one_by_one else [given]:
                connection.execute(insert, part[0] if one_by_one else part)

    def _delete(self, connection: sa.Connection, keys: pa.Table) -> None:
        """Delete the rows of some keys."""
        if self._family == "postgresql":
            stage = self._staged(connection, keys, "gone")
            same = " AND ".join(
                f"t.{self._quoted(key)} = s.{self._quoted(key)}" for key in self._keys
            )
            _execute(connection, f"DELETE FROM {self._quoted_name} t USING {stage} s WHERE {same}")
            return
        table = self._with_columns(keys.schema)
        names = [f"key{number}" for number in range(keys.num_columns)]
        same_keys = [
            table.c[key] == sa.bindparam(name)
            for key, name in zip(keys.column_names, names, strict=True)
        ]
        delete = sa.delete(table).where(*same_keys)
        for piece in pieces(keys):
            connection.execute(delete, _dicts(piece, names, self._family))

    def _with_columns(self, schema: pa.Schema) -> sa.TableClause:
        """Return the table with some columns, of the types as which values are sent."""
        kinds = [bound_type(sql_type(field.type, self._family)) for field in schema]
        columns = [sa.column(name, kind) for name, kind in zip(schema.names, kinds, strict=True)]
        return sa.table(self._name, *columns, schema=self._schema)

    def _copy(self, connection: sa.Connection, rows: pa.Table) -> None:
        """Send rows to PostgreSQL: to the table, or for an upsert to one beside it."""
        if not self._keys:
            self._send(connection, rows, self._quoted_name)
            return
        stage = sa.table(
            self._staged(connection, rows, "rows"), *(sa.column(name) for name in rows.column_names)
        )
        table = sa.table(
            self._name, *(sa.column(name) for name in rows.column_names), schema=self._schema
        )
        insert = postgresql.insert(table).from_select(rows.column_names, sa.select(stage))
        connection.execute(_upsert(insert, rows.column_names, self._keys))

    def _staged(self, connection: sa.Connection, rows: pa.Table, what: str) -> str:
        """Send rows to a table of this transaction, and return its name."""
        stage = f"{_STAGE}_{what}"
        columns = ", ".join(map(self._quoted, rows.column_names))
        _execute(
            connection,
            f"CREATE TEMPORARY TABLE {stage} ON COMMIT DROP AS "
            f"SELECT {columns} FROM {self._quoted_name} WITH NO DATA",
        )
        self._send(connection, rows, stage)
        return stage

    def _send(self, connection: sa.Connection, rows: pa.Table, into: str) -> None:
        """Send rows to a table of PostgreSQL, by COPY."""
        columns = ", ".join(map(self._quoted, rows.column_names))
        cursor = connection.connection.cursor()
        with contextlib.closing(cursor), _translated():
            copy: Any = cursor
            with copy.copy(f"COPY {into} ({columns}) FROM STDIN") as stream:
                for piece in pieces(rows):
                    stream.write(copy_text(piece))

    # -- errors -------------------------------------------------------------------------------

    def _with_attempts(self, attempt: Callable[[], None]) -> None:
        with_retries(attempt, _may_pass)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Make errors of the database ours: with a place, without statements and passwords."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StorageError(
                f"the database refused the delivery: {error_text(cause)}",
                place=self._place,
                remedy="the step is committed, and is delivered again at the next start",
            ) from cause

    def _has_no(self, what: str, statement: str) -> SinkConflict:
        return SinkConflict(
            f"the database has no {what}, and create=False",
            place=self._place,
            remedy=f"make it: {' '.join(statement.split())}",
        )

    def close(self) -> None:
        super().close()
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


# -- the database -----------------------------------------------------------------------------


def _check_database(name: str, driver: str) -> None:
    family = family_of(name)
    if family not in _DATABASES or driver != _DRIVERS.get(family, driver):
        raise PipelineError(
            f"sinks.Table cannot write to {name} by {driver or 'its driver'}",
            remedy="use PostgreSQL (postgresql+psycopg://), MySQL or MariaDB (mysql+pymysql://), or "
            "SQLite; for others write rows and step in one transaction with sinks.Calls",
        )


def _may_pass(error: Exception) -> bool:
    """Return whether an error may be gone at the next attempt."""
    return may_pass(error, _is_of_headrace)


def _is_of_headrace(statement: str) -> bool:
    """Return whether a statement makes what another driver may have just made."""
    return statement.lstrip().startswith(("CREATE TABLE", "ALTER TABLE")) or STEPS in statement


def _execute(connection: sa.Connection, statement: str) -> None:
    """Execute a statement without parameters. (Some drivers look for these behind percent signs.)"""
    if connection.dialect.paramstyle in ("format", "pyformat"):
        statement = statement.replace("%", "%%")
    connection.exec_driver_sql(statement)


def _dicts(rows: pa.Table, names: Sequence[str], family: str) -> list[dict[str, Any]]:
    """Return rows as a driver takes them, with other names of their columns."""
    values = [values_of(column, family) for column in rows.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _is_unique(there: sa.Table, keys: Sequence[str]) -> bool:
    """Return whether at most one row of a table has the same keys."""
    wanted = set(keys)
    unique = [set(there.primary_key.columns.keys())]
    unique += [{column.name for column in index.columns} for index in there.indexes if index.unique]
    unique += [
        {column.name for column in of.columns}
        for of in there.constraints
        if isinstance(of, sa.UniqueConstraint)
    ]
    return wanted in unique


def _upsert(insert: Any, columns: Sequence[str], keys: Sequence[str]) -> Any:
    """Return an insert that replaces the rows of the same keys."""
    others = {name: insert.excluded[name] for name in columns if name not in keys}
    if not others:
        return insert.on_conflict_do_nothing(index_elements=list(keys))
    return insert.on_conflict_do_update(index_elements=list(keys), set_=others)


def _mysql_upsert(insert: Any, columns: Sequence[str], keys: Sequence[str]) -> Any:
    """Return the same for MySQL."""
    others = [name for name in columns if name not in keys] or keys[:1]
    # (SQLAlchemy escapes a percent sign in such a name twice)
    new = {
        name: sa.literal_column(f"VALUES(`{name.replace('`', '``')}`)")
        if "%" in name
        else insert.inserted[name]
        for name in others
    }
    return insert.on_duplicate_key_update(new)


def _lengths(there: sa.Table) -> dict[str, int]:
    """Return the lengths of the columns of texts that have one, in characters."""
    return {
        column.name: column.type.length
        for column in there.columns
        if isinstance(column.type, sa.String) and column.type.length
    }


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise what the driver raises as SQLAlchemy does."""
    import psycopg

    try:
        yield
    except psycopg.OperationalError as error:
        raise OperationalError("COPY", None, error) from error
    except psycopg.Error as error:
        raise DBAPIError("COPY", None, error) from error
