"""A sink of tables in SQL databases: the rows of a delivery and its id in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError, SinkConflict, StorageError, UserCodeError
from headrace.errors.user_code import error_text
from headrace.jsonlines import json_lines
from headrace.pipeline.sink import Deliverer, Delivery
from headrace.sinks.sql_database import MISSING, engine_maker, location_of, may_pass
from headrace.sinks.table_columns import added_columns, common_type
from headrace.sinks.table_sink import TableSink, check_installed, with_retries

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

try:
    import sqlalchemy as sa
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import DBAPIError, NoSuchTableError, OperationalError, SQLAlchemyError
    from sqlalchemy.schema import CreateTable
except ImportError:  # pragma: no cover - an installation without the extra
    pass

Mode = Literal["append", "upsert"]

#: The table that says which deliveries the sinks' tables have.
STEPS = "headrace_steps"
_STAGE = "headrace_stage"
_DATABASES = ("postgresql", "sqlite")
#: Rows that are sent at once.
_ROWS = 1 << 14


class Table(TableSink):
    """Writes each step that produced something to a table in PostgreSQL or SQLite.

    It needs SQLAlchemy: ``pip install "headrace[sql]"``. PostgreSQL needs psycopg, too:
    ``pip install "psycopg[binary]"``.

    Args:
        database: its URL, such as ``postgresql://ann@host/shop`` or ``sqlite:///out/shop.db``, or a
            function that returns an engine of SQLAlchemy.
        name: the name of the table.
        mode: ``append`` adds the rows. ``upsert`` replaces the rows of the same ``keys``, and adds
            the others; if a delivery has several rows of a key, the last one wins.
        keys: the columns of the table by which ``upsert`` finds rows again: its primary key if the
            sink makes it, and any unique ones otherwise. They may not be null.
        columns: the columns to write: a list of names, or a mapping of names in the stream to names
            in the table. By default all.
        schema: the schema in which the table is; by default that of the connection.
        create: whether to make tables that are missing, and to add columns.
        take_over: whether to go on in a table to which this sink has delivered from another
            storage. By default that is refused.

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
    ``timestamptz`` in PostgreSQL. SQLite holds them as texts in UTC, and decimals as texts. NaN in
    SQLite, which has none, is refused, and so is the character NUL in texts of PostgreSQL.

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
        keys: Sequence[str] = (),
        columns: Sequence[str] | Mapping[str, str] | None = None,
        schema: str | None = None,
        create: bool = True,
        take_over: bool = False,
    ) -> None:
        check_installed("Table", "sql", MISSING)
        super().__init__(
            "SQL",
            _plain_type,
            mode=mode,
            modes=("append", "upsert"),
            keys=keys,
            columns=columns,
            take_over=take_over,
        )
        self._make = (
            engine_maker(database, "sinks.Table", _check_database)
            if isinstance(database, str)
            else database
        )
        self._name, self._schema, self._create = name, schema, create
        self._location = location_of(database) if isinstance(database, str) else "a database"
        self._engine: sa.Engine | None = None
        self._ready: pa.Schema | None = None  # the columns of which the table is known to have all
        self._steps = sa.Table(
            STEPS,
            sa.MetaData(),
            sa.Column("sink_id", sa.String(255), primary_key=True),
            sa.Column("lineage", sa.String(255), nullable=False),
            sa.Column("storage", sa.Text, nullable=False),
            sa.Column("delivery", sa.BigInteger, nullable=False),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            schema=schema,
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
            self._engine = engine
        return self._engine

    # -- before a run -------------------------------------------------------------------------

    def _open(self, deliverer: Deliverer) -> None:
        self._ready = None
        with self._errors():
            self._with_attempts(lambda: self._check(deliverer))

    def _check(self, run: Deliverer) -> None:
        engine = self._opened
        with engine.begin() as connection:
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
            found = connection.execute(self._recorded(run)).one_or_none()
            if found is not None and found.lineage != run.lineage:
                raise self._belongs_to(run.pipeline, run.sink, found.storage)

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
            return self._lacking(there, given)
        except SinkConflict:
            again = self._reflected(connection)
            if again is None:
                raise
            return self._lacking(again, given)

    def _lacking(self, there: sa.Table, given: pa.Schema) -> list[str]:
        """Return the columns that the table lacks, if it may get them.

        Raises:
            SinkConflict: for any other difference.
        """

        def misfit(name: str) -> str:
            column, kind = there.c[name], given.field(name).type
            if _fits(_sql_type(kind, self._opened.dialect.name), column.type):
                return ""
            return f"is of type {_shown(column.type)} there, and {kind} here"

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
        return lacking

    # -- a delivery ---------------------------------------------------------------------------

    def _write(self, run: Deliverer, delivery: Delivery, rows: pa.Table) -> None:
        def attempt() -> None:
            try:
                if self._ready != rows.schema:
                    self._prepare(rows.schema)
                with self._opened.begin() as connection:
                    if self._is_next(connection, run, delivery):
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
        wanted = sa.Table(
            self._name,
            sa.MetaData(),
            *(
                sa.Column(
                    field.name,
                    _sql_type(field.type, engine.dialect.name),
                    primary_key=field.name in self._keys,
                    autoincrement=False,
                )
                for field in schema
            ),
            schema=self._schema,
        )
        with engine.begin() as connection:
            there = self._reflected(connection)
            if there is None:
                if not self._create:
                    raise self._has_no(self._name, str(CreateTable(wanted).compile(engine)))
                connection.execute(CreateTable(wanted, if_not_exists=True))
                return
            for name in self._surely_lacking(connection, there, schema):
                kind = wanted.c[name].type.compile(dialect=engine.dialect)
                change = f"ALTER TABLE {self._quoted_name} ADD COLUMN {_quoted(name)} {kind}"
                if not self._create:
                    raise self._has_no(name, change)
                _execute(connection, change)

    @property
    def _quoted_name(self) -> str:
        names = [self._name] if self._schema is None else [self._schema, self._name]
        return ".".join(map(_quoted, names))

    def _insert(self, connection: sa.Connection, rows: pa.Table) -> None:
        if connection.dialect.name == "postgresql":
            self._copy(connection, rows)
            return
        kinds = [_sql_type(field.type, "sqlite") for field in rows.schema]
        columns = [_bound(kind) for kind in kinds]
        table = sa.table(
            self._name,
            *(sa.column(name, of) for name, of in zip(rows.column_names, columns, strict=True)),
            schema=self._schema,
        )
        insert: Any = sqlite.insert(table)
        if self._keys:
            insert = _upsert(insert, rows.column_names, self._keys)
        for piece in _pieces(rows):
            values = [_values(column) for column in piece.columns]
            connection.execute(
                insert,
                [
                    dict(zip(piece.column_names, row, strict=True))
                    for row in zip(*values, strict=True)
                ],
            )

    def _copy(self, connection: sa.Connection, rows: pa.Table) -> None:
        """Send rows to PostgreSQL by COPY: to the table, or for an upsert to one beside it."""
        columns = ", ".join(map(_quoted, rows.column_names))
        into = self._quoted_name
        if self._keys:
            _execute(
                connection,
                f"CREATE TEMPORARY TABLE {_STAGE} ON COMMIT DROP AS "
                f"SELECT {columns} FROM {into} WITH NO DATA",
            )
            into = _STAGE
        cursor = connection.connection.cursor()
        with contextlib.closing(cursor), _translated():
            copy: Any = cursor
            with copy.copy(f"COPY {into} ({columns}) FROM STDIN") as stream:
                for piece in _pieces(rows):
                    stream.write(_copy_text(piece))
        if self._keys:
            stage = sa.table(_STAGE, *(sa.column(name) for name in rows.column_names))
            table = sa.table(
                self._name, *(sa.column(name) for name in rows.column_names), schema=self._schema
            )
            insert = postgresql.insert(table).from_select(rows.column_names, sa.select(stage))
            connection.execute(_upsert(insert, rows.column_names, self._keys))

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
    if name not in _DATABASES or (name == "postgresql" and driver != "psycopg"):
        raise PipelineError(
            f"sinks.Table cannot write to {name} by {driver or 'its driver'}",
            remedy="use PostgreSQL (postgresql+psycopg://) or SQLite; for others write rows and step "
            "in one transaction with sinks.Calls",
        )


def _may_pass(error: Exception) -> bool:
    """Return whether an error may be gone at the next attempt."""
    return may_pass(error, _is_of_headrace)


def _is_of_headrace(statement: str) -> bool:
    """Return whether a statement makes what another driver may have just made."""
    return statement.lstrip().startswith(("CREATE TABLE", "ALTER TABLE")) or STEPS in statement


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _execute(connection: sa.Connection, statement: str) -> None:
    """Execute a statement without parameters. (psycopg looks for these behind percent signs.)"""
    if connection.dialect.name == "postgresql":
        statement = statement.replace("%", "%%")
    connection.exec_driver_sql(statement)


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


# -- types ------------------------------------------------------------------------------------


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which a table holds a plain type without loss; None if it cannot."""
    found = common_type(kind)
    if found is not None:
        return found
    if pa.types.is_duration(kind) and kind.unit != "ns":
        return pa.duration("us")
    if pa.types.is_time(kind) and kind.unit != "ns":
        return pa.time64("us")
    if pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        return kind
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    return None


def _sql_type(kind: pa.DataType, database: str) -> TypeEngine[Any]:
    """Return the type of a column."""
    in_postgresql = database == "postgresql"
    if pa.types.is_timestamp(kind):
        return sa.DateTime(timezone=kind.tz is not None and in_postgresql)
    if pa.types.is_decimal(kind):
        return sa.Numeric(kind.precision, kind.scale) if in_postgresql else sa.Text()
    if pa.types.is_nested(kind):
        return postgresql.JSONB() if in_postgresql else sa.JSON()
    found: TypeEngine[Any] = _TYPES[kind]()
    return found


_TYPES: dict[pa.DataType, Callable[[], Any]] = (
    {}
    if MISSING
    else {
        pa.string(): sa.Text,
        pa.binary(): sa.LargeBinary,
        pa.bool_(): sa.Boolean,
        pa.date32(): sa.Date,
        pa.float64(): sa.Double,
        pa.int64(): sa.BigInteger,
        pa.duration("us"): sa.BigInteger,
        pa.time64("us"): sa.Time,
    }
)


def _bound(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type as which values of a column are sent: JSON is text by then."""
    return sa.Text() if isinstance(kind, sa.JSON) else kind


def _fits(ours: TypeEngine[Any], theirs: TypeEngine[Any]) -> bool:
    """Return whether a column holds all values of one of ours, or refuses them aloud."""
    if isinstance(ours, sa.Double):
        return isinstance(theirs, sa.Float) and not isinstance(theirs, postgresql.REAL)
    if isinstance(ours, sa.Numeric):
        return (
            isinstance(theirs, sa.Numeric)
            and not isinstance(theirs, sa.Float)
            and _has_digits(ours, theirs)
        )
    if isinstance(ours, sa.DateTime):
        precision = getattr(theirs, "precision", None)
        return (
            isinstance(theirs, sa.DateTime)
            and ours.timezone == bool(theirs.timezone)
            and precision in (None, 6)
        )
    if isinstance(ours, sa.Time):
        return isinstance(theirs, sa.Time) and getattr(theirs, "precision", None) in (None, 6)
    if isinstance(ours, sa.Text):
        return isinstance(theirs, sa.String | sa.Uuid) and not isinstance(theirs, sa.CHAR)
    return any(
        isinstance(ours, of) and isinstance(theirs, of)
        for of in (sa.Integer, sa.Boolean, sa.Date, sa.LargeBinary, sa.JSON)
    )


def _has_digits(ours: sa.Numeric[Any], theirs: sa.Numeric[Any]) -> bool:
    if theirs.precision is None:
        return True
    scale, precision = theirs.scale or 0, ours.precision or 0
    wanted = ours.scale or 0
    return scale >= wanted and theirs.precision - scale >= precision - wanted


def _shown(kind: TypeEngine[Any]) -> str:
    with contextlib.suppress(SQLAlchemyError):
        return str(kind)
    return type(kind).__name__


# -- values -----------------------------------------------------------------------------------


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, _ROWS):
        yield rows.slice(start, _ROWS)


def _json_texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return nested values as JSON."""
    lines = json_lines(pa.table({"": column})).splitlines()
    found = [bytes(msgspec.json.decode(line, type=dict[str, msgspec.Raw])[""]) for line in lines]
    return [None if text == b"null" else text.decode() for text in found]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column for SQLite.

    Raises:
        UserCodeError: for NaN, which SQLite would hold as null.
    """
    kind = column.type
    if pa.types.is_nested(kind):
        return _json_texts(column)
    if pa.types.is_decimal(kind):
        return [None if value is None else f"{value:f}" for value in column.to_pylist()]
    if pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us"))
    elif pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        raise UserCodeError(
            "ValueError: NaN",
            remedy="SQLite would hold it as null: emit None, or use another database",
        )
    found: list[Any] = column.to_pylist()
    return found


#: What the text format of COPY writes with a backslash; the backslash itself comes first.
_ESCAPES = [("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")]


def _copy_text(rows: pa.Table) -> bytes:
    """Return rows in the text format of COPY."""
    columns = [_copy_column(column) for column in rows.columns]
    lines = pc.binary_join_element_wise(
        *columns, "\t", null_handling="replace", null_replacement="\\N"
    )
    return ("\n".join(lines.to_pylist()) + "\n").encode()


def _copy_column(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if pa.types.is_binary(kind):
        texts = [None if value is None else f"\\\\x{value.hex()}" for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_duration(kind):
        return column.cast(pa.int64()).cast(pa.string())
    if pa.types.is_nested(kind):
        column = pa.chunked_array([pa.array(_json_texts(column), pa.string())])
    if not pa.types.is_string(column.type):
        return column.cast(pa.string())
    for character, escaped in _ESCAPES:
        column = pc.replace_substring(column, character, escaped)
    return column
