"""The database side of a table source: one table or query, read a few rows at a time."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from headrace.errors import BadInput, PipelineError, StorageError
from headrace.errors.user_code import error_text
from headrace.sinks.sql_database import (
    MISSING,
    engine_maker,
    family_of,
    keep_sessions_exact,
    location_of,
    may_pass,
)
from headrace.sinks.table_sink import with_retries
from headrace.sources.table_types import SqlColumn, columns_of, table_of

if MISSING is None:
    import sqlalchemy as sa
    from sqlalchemy.exc import DataError, NoSuchTableError, SQLAlchemyError

#: Rows that are taken from the database at once, and converted.
_CHUNK = 512

_Result = TypeVar("_Result")
Row = Sequence[Any]


class SqlRows:
    """The rows of a table or of a query.

    Args:
        database: its URL, or a function that makes an engine.
        name: the table; "" for a query.
        schema: its schema.
        query: the query; "" for a table.
    """

    def __init__(
        self,
        database: str | Callable[[], sa.Engine],
        name: str,
        schema: str | None,
        query: str,
    ) -> None:
        if isinstance(database, str):
            self._make = engine_maker(database, "sources.Table", lambda name, driver: None)
            self._location = location_of(database)
        else:
            self._make, self._location = database, "a database"
        self.name, self.schema = name, schema
        self._query = query.strip().rstrip(";")
        self._engine: sa.Engine | None = None

    @property
    def place(self) -> str:
        """The table or query, for people; without passwords."""
        if not self.name:
            return f"a query of {self._location}"
        of = f"{self.schema}.{self.name}" if self.schema else self.name
        return f"table {of} of {self._location}"

    @property
    def engine(self) -> sa.Engine:
        if self._engine is None:
            self._engine = self._make()
            self._location = location_of(self._engine.url)
            keep_sessions_exact(self._engine)
        return self._engine

    @property
    def family(self) -> str:
        """The database: ``postgresql``, ``mysql``, ``sqlite``, or the name of another dialect."""
        return family_of(self.engine.dialect.name)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def reflected(self) -> sa.Table:
        """Return the table as it is in the database.

        Raises:
            PipelineError: if it is not there.
        """

        def look(connection: sa.Connection) -> sa.Table:
            metadata = sa.MetaData()
            return sa.Table(
                self.name,
                metadata,
                schema=self.schema,
                autoload_with=connection,
                resolve_fks=False,
            )

        try:
            return self.ask(look)
        except NoSuchTableError:
            raise PipelineError(
                f"there is no table {self.name!r}",
                place=self.place,
                remedy="check its name and its schema (schema=)",
            ) from None

    def columns(self) -> dict[str, SqlColumn | str]:
        """Return how each column of the table is read; words for one that cannot be."""
        return columns_of(self.reflected(), self.family)

    def ask(self, work: Callable[[sa.Connection], _Result]) -> _Result:
        """Return what is found in a transaction of its own; try again if an error may pass."""

        def attempt() -> _Result:
            with self.engine.connect() as connection:
                return work(connection)

        with self.errors():
            return with_retries(attempt, may_pass)

    def connected(self) -> sa.Connection:
        """Return a connection that stays open."""
        return with_retries(self.engine.connect, may_pass)

    def select(self, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
        """Return a selection from the table or query."""
        return sa.select(*columns).select_from(self._source(columns))

    def _source(self, columns: Sequence[sa.ColumnElement[Any]]) -> sa.FromClause:
        if self.name:
            return sa.table(self.name, schema=self.schema)
        # A colon would begin a parameter.
        text = re.sub(r"(?<!\\):", r"\\:", self._query)
        return sa.text(text).columns().alias("rows_of_query")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Make errors of the database ours: with a place, without statements and passwords."""
        try:
            yield
        except NoSuchTableError:
            raise
        except DataError as error:
            raise BadInput(
                f"the driver cannot read a value: {error_text(error.orig or error)}",
                place=self.place,
                remedy="correct the row; or read with query=, and convert the column there",
            ) from error.orig
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise StorageError(
                f"the database cannot be read: {error_text(cause)}",
                place=self.place,
                remedy="nothing was lost: start again when it can be read",
            ) from cause


def streamed(
    connection: sa.Connection, selection: sa.Select[Any]
) -> Generator[list[Row], None, None]:
    """Yield the rows of a selection, some at a time. They are never all in memory."""
    streaming = connection.execution_options(stream_results=True, max_row_buffer=_CHUNK)
    with streaming.execute(selection) as found:
        for rows in found.partitions(_CHUNK):
            yield list(rows)


def joined(tables: Sequence[pa.Table], columns: Sequence[SqlColumn]) -> pa.Table:
    """Return tables of the same columns as one, in one chunk.

    Columns of which no type is known may have shown another one in each table.
    """
    if all(table.schema == tables[0].schema for table in tables):
        return pa.concat_tables(tables).combine_chunks()
    rows = [
        row for table in tables for row in zip(*(c.to_pylist() for c in table.columns), strict=True)
    ]
    return table_of(rows, columns, lambda row: f"row {row + 1}")
