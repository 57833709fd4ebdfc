"""Columns of SQL databases in Arrow: which type a column is read as, and its values without loss."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.errors import BadInput, PipelineError
from headrace.schema import NotExact, column_of
from headrace.schema.exact import family_of
from headrace.schema.forms import shortened
from headrace.sinks.sql_database import MISSING
from headrace.sources.formats.records import plain_type

if MISSING is None:
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql, postgresql

#: Converts one value, which is never null, to what its column holds.
Convert = Callable[[Any], Any]

_POINT, _LOCAL = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
#: As in the table of types: a decimal of which nothing is declared.
_ANY_DECIMAL = pa.decimal128(38, 18)
#: A double shows every decimal number of that many digits as it was written.
_DIGITS_OF_DOUBLE = 15


@dataclass(frozen=True)
class SqlColumn:
    """How a column is read.

    Attributes:
        name: its name in the database.
        raw: the type as which its values are kept; None for the one that they show.
        nullable: whether there may be nulls.
        convert: converts what the driver gives; None if that is what is kept.
        cast: what the database is to convert it to first: ``text``, ``double`` or nothing.
        is_time: whether it holds points in time, as texts.
    """

    name: str
    raw: pa.DataType | None
    nullable: bool = True
    convert: Convert | None = None
    cast: str = ""
    is_time: bool = False

    @property
    def value_kind(self) -> pa.DataType:
        """The type of its values in records; times are points in time there."""
        return _POINT if self.is_time else plain_type(self.raw)

    @property
    def selected(self) -> sa.ColumnElement[Any]:
        """The expression that is selected: of no type, so that values come as the driver has them."""
        column: sa.ColumnElement[Any] = sa.column(self.name)
        if self.cast:
            kind = sa.Text() if self.cast == "text" else sa.Double()
            column = sa.type_coerce(sa.cast(column, kind), sa.types.NullType())
        return column.label(self.name)

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return values as a column.

        Raises:
            NotExact: for the first value that it cannot hold.
        """
        given = [self._converted(value, row) for row, value in enumerate(values)]
        if self.raw is None:
            return _shown_array(given)
        if self.raw == pa.float32():  # the driver gives the digits that 32 bits show
            return column_of(given, pa.field(self.name, pa.float64())).cast(self.raw, safe=False)
        return column_of(given, pa.field(self.name, self.raw))

    def _converted(self, value: Any, row: int) -> Any:
        if value is None or self.convert is None:
            return value
        try:
            return self.convert(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise NotExact(row, f"{shortened(value)}: {error}") from None


def table_of(
    rows: Sequence[Sequence[Any]], columns: Sequence[SqlColumn], place_of: Callable[[int], str]
) -> pa.Table:
    """Return rows of the driver as a table.

    Args:
        rows: the rows, with their values in the order of the columns.
        columns: the columns.
        place_of: names the place of a row, for errors.

    Raises:
        BadInput: for the first value that its column cannot hold.
    """
    found = []
    lists: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(columns)
    for column, values in zip(columns, lists, strict=True):
        try:
            found.append(column.array(values))
        except NotExact as error:
            raise BadInput(
                f"column {column.name!r} cannot be read as {column.raw or 'one type'}: {error.why}",
                row=error.row,
                place=place_of(error.row),
                remedy="correct the row; or read with query=, and convert the column there",
            ) from error
    return pa.table(found, names=[column.name for column in columns])


def _shown_array(values: list[Any]) -> pa.Array:
    """Return values in the type that they show.

    Raises:
        NotExact: if they are not all of one type.
    """
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        pass
    first = next(at for at in range(len(values)) if not _is_array(values[: at + 1]))
    raise NotExact(first, f"{shortened(values[first])} is not of the type of those before it")


def _is_array(values: list[Any]) -> bool:
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return False
    return True


# -- columns of tables ------------------------------------------------------------------------


def columns_of(table: sa.Table, family: str) -> dict[str, SqlColumn | str]:
    """Return how each column of a table is read, by its name; words for one that cannot be.

    Args:
        table: the table, as it was reflected.
        family: the database.
    """
    found: dict[str, SqlColumn | str] = {}
    for column in table.columns:
        try:
            raw, convert, cast = _kind_of(column.type, family)
        except _Unsupported:
            found[column.name] = f"is of type {_shown(column.type)}"
        else:
            found[column.name] = SqlColumn(
                column.name,
                raw,
                bool(column.nullable),
                convert,
                cast,
                is_time=family == "sqlite" and isinstance(column.type, sa.DateTime),
            )
    return found


def usable(
    found: Mapping[str, SqlColumn | str], names: Sequence[str], place: str
) -> list[SqlColumn]:
    """Return the columns of these names.

    Raises:
        PipelineError: for one that is missing, or that cannot be read.
    """
    columns = []
    for name in names:
        column = found.get(name)
        if column is None:
            raise PipelineError(
                f"there is no column {name!r}",
                place=place,
                remedy=f"the columns are: {', '.join(found)}",
            )
        if isinstance(column, str):
            raise PipelineError(
                f"column {name!r} {column}, which cannot be read without loss",
                place=place,
                remedy="leave it out with columns=, or convert it in a query= with type=, such as "
                "by CAST",
            )
        columns.append(column)
    return columns


class _Unsupported(Exception):
    """A type cannot be read without loss."""


_Kind = tuple[pa.DataType, Convert | None, str]


def _kind_of(kind: Any, family: str) -> _Kind:
    """Return as what a type is read, how values are converted, and what the database casts to.

    Raises:
        _Unsupported: if it cannot be.
    """
    if isinstance(kind, postgresql.DOMAIN):
        return _kind_of(kind.data_type, family)
    if isinstance(kind, postgresql.ARRAY):
        item, convert, cast = _kind_of(kind.item_type, family)
        if convert or cast:
            raise _Unsupported
        return pa.list_(item), None, ""
    of_database = {"sqlite": _of_sqlite, "mysql": _of_mysql}.get(family)
    found = of_database(kind) if of_database else None
    return found or _of_any(kind)


def _of_any(kind: Any) -> _Kind:
    if isinstance(kind, sa.Enum | sa.String):
        return pa.string(), None, ""
    if isinstance(kind, sa.JSON):
        return pa.string(), None, "text"  # (the driver would make floats of its numbers)
    if isinstance(kind, sa.Uuid):
        return pa.string(), str, ""
    if isinstance(kind, sa.Float):
        return (pa.float32() if isinstance(kind, sa.REAL) else pa.float64()), None, ""
    if isinstance(kind, sa.Numeric):
        return decimal_type(kind), None, ""
    if isinstance(kind, sa.DateTime):
        return (_POINT if kind.timezone else _LOCAL), None, ""
    if isinstance(kind, sa.Time) and not kind.timezone:
        return pa.time64("us"), None, ""
    for of, found in (
        (sa.Boolean, pa.bool_()),
        (sa.Integer, pa.int64()),
        (sa.Date, pa.date32()),
        (sa.types._Binary, pa.binary()),
    ):
        if isinstance(kind, of):
            return found, None, ""
    raise _Unsupported


def decimal_type(kind: Any) -> pa.DataType:
    """Return the type of a decimal column; the usual one if it declares no digits."""
    if kind.precision is None:
        return _ANY_DECIMAL
    scale = kind.scale or 0
    if kind.precision > 38 or not 0 <= scale <= kind.precision:
        raise _Unsupported
    return pa.decimal128(kind.precision, scale)


def _of_sqlite(kind: Any) -> _Kind | None:
    """Return the same for SQLite, whose columns hold values of any type."""
    if isinstance(kind, sa.Float):
        return pa.float64(), _float, ""
    if isinstance(kind, sa.Numeric):
        return decimal_type(kind), decimal_of, ""
    if isinstance(kind, sa.Boolean):
        return pa.bool_(), bool_of, ""
    if isinstance(kind, sa.DateTime):
        return pa.string(), None, ""  # texts, with a zone or without
    if isinstance(kind, sa.Date):
        return pa.date32(), _date_of, ""
    if isinstance(kind, sa.Time):
        return pa.time64("us"), _time_of, ""
    if isinstance(kind, sa.JSON):
        return pa.string(), None, ""
    return None


def _of_mysql(kind: Any) -> _Kind | None:
    if isinstance(kind, mysql.TINYINT) and kind.display_width == 1:
        return pa.bool_(), bool_of, ""
    if isinstance(kind, mysql.BIGINT) and kind.unsigned:
        return pa.uint64(), None, ""
    if isinstance(kind, mysql.SET | mysql.BIT):
        raise _Unsupported
    if isinstance(kind, mysql.YEAR):
        return pa.int64(), None, ""
    if isinstance(kind, mysql.FLOAT | mysql.REAL):
        return pa.float32(), None, "double"  # (it would show six digits)
    if isinstance(kind, mysql.TIMESTAMP):
        return _POINT, _in_utc, ""
    if isinstance(kind, sa.Time):
        return pa.time64("us"), time_of, ""
    if isinstance(kind, sa.JSON):
        return pa.string(), None, ""
    return None


def _shown(kind: Any) -> str:
    try:
        return str(kind)
    except sa.exc.SQLAlchemyError:
        return type(kind).__name__


# -- values -----------------------------------------------------------------------------------


def declared_as(column: SqlColumn, kind: pa.DataType, family: str) -> SqlColumn:
    """Return how a column is read for a field of a declared type.

    SQLite and MySQL have fewer types than fields: booleans are integers there, and in SQLite times,
    dates and decimals are texts. ``sinks.Table`` writes durations as integers everywhere.
    """
    wanted, there = family_of(kind), None if column.raw is None else family_of(column.raw)
    if wanted == there:
        return column
    convert: Convert | None = None
    if wanted == "bool" and there in (None, "int"):
        convert = bool_of
    elif wanted == "duration" and there in (None, "int"):
        convert = duration_of
    elif family == "sqlite" and wanted == "date":
        convert = _date_of
    elif family == "sqlite" and wanted == "time of day":
        convert = _time_of
    elif family == "sqlite" and wanted == "decimal":
        convert = decimal_of
    if convert is None:
        return column
    return SqlColumn(column.name, kind, column.nullable, convert, column.cast)


def plain(value: Any) -> Any:
    """Return a value of a query in a form that Arrow knows."""
    return str(value) if isinstance(value, uuid.UUID) else value


def bool_of(value: Any) -> bool:
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ValueError("a boolean is 0 or 1")


def duration_of(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if type(value) is int:
        return timedelta(microseconds=value)
    raise ValueError("a duration is a number of microseconds")


def decimal_of(value: Any) -> Decimal:
    """Return a number of SQLite, which has no decimals, as it was written.

    Raises:
        ValueError: for a float of more digits than it can hold for certain.
    """
    if isinstance(value, Decimal):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("it is not a number")
    found = Decimal(repr(value) if isinstance(value, float) else value)
    if isinstance(value, float) and len(found.as_tuple().digits) > _DIGITS_OF_DOUBLE:
        raise ValueError("SQLite has rounded it to a float: keep such decimals as TEXT")
    return found


def time_of(value: Any) -> time:
    """Return a TIME of MySQL, which may be any length of time, as a time of day."""
    if isinstance(value, time):
        return value
    if isinstance(value, timedelta) and timedelta(0) <= value < timedelta(days=1):
        return (datetime.min.replace(tzinfo=UTC) + value).time()
    raise ValueError("it is not a time of day")


def _in_utc(value: Any) -> Any:
    """Return a TIMESTAMP of MySQL: sessions are in UTC."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def _float(value: Any) -> Any:
    return float(value) if type(value) is int and abs(value) <= 2**53 else value


def _date_of(value: Any) -> Any:
    return date.fromisoformat(value) if isinstance(value, str) else value


def _time_of(value: Any) -> Any:
    return time.fromisoformat(value) if isinstance(value, str) else value
