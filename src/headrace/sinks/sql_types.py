"""Types of columns in SQL databases, and values as their drivers take them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError, UserCodeError
from headrace.jsonlines import json_lines
from headrace.schema.pylists import pylist
from headrace.sinks.mysql_tables import exact_collation, key_bytes
from headrace.sinks.sql_database import MISSING
from headrace.sinks.table_columns import common_type

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine

if MISSING is None:
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql, postgresql
    from sqlalchemy.exc import SQLAlchemyError

#: Rows that are sent at once.
_ROWS = 1 << 14
_MICROS = 6
#: The most digits behind the point in MySQL.
_MYSQL_SCALE = 30
_NAMES = {"sqlite": "SQLite", "mysql": "MySQL"}


def plain_type(kind: pa.DataType) -> pa.DataType | None:
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


def sql_type(kind: pa.DataType, family: str) -> TypeEngine[Any]:
    """Return the type of a column.

    Raises:
        PipelineError: for a decimal that the database cannot hold.
    """
    if family == "mysql":
        return _mysql_type(kind)
    in_postgresql = family == "postgresql"
    if pa.types.is_timestamp(kind):
        return sa.DateTime(timezone=kind.tz is not None and in_postgresql)
    if pa.types.is_decimal(kind):
        return sa.Numeric(kind.precision, kind.scale) if in_postgresql else sa.Text()
    if pa.types.is_nested(kind):
        return postgresql.JSONB() if in_postgresql else sa.JSON()
    found: TypeEngine[Any] = _TYPES[kind]()
    return found


def _mysql_type(kind: pa.DataType) -> TypeEngine[Any]:
    """Return the type of a column in MySQL, where the usual ones are short, or have no fractions.

    Points in time are DATETIME in UTC, since TIMESTAMP ends in 2038.
    """
    if pa.types.is_timestamp(kind):
        return mysql.DATETIME(fsp=6)
    if pa.types.is_time(kind):
        return mysql.TIME(fsp=6)
    if pa.types.is_string(kind):
        return mysql.LONGTEXT(charset="utf8mb4")
    if pa.types.is_binary(kind):
        return mysql.LONGBLOB()
    if pa.types.is_nested(kind):
        return sa.JSON()
    if pa.types.is_decimal(kind):
        if kind.scale > _MYSQL_SCALE:
            raise PipelineError(
                f"MySQL cannot hold {kind}: it has {_MYSQL_SCALE} digits behind the point",
                remedy="declare a decimal with fewer: Annotated[Decimal, pa.decimal128(38, 18)]",
            )
        return sa.Numeric(kind.precision, kind.scale)
    found: TypeEngine[Any] = _TYPES[kind]()
    return found


def key_types(kinds: Mapping[str, pa.DataType], dialect: sa.Dialect) -> dict[str, TypeEngine[Any]]:
    """Return the types of keys in MySQL, which must be of a limited length there.

    Args:
        kinds: the types of the keys, by their names.
        dialect: the dialect.
    """
    variable = [pa.types.is_string(kind) or pa.types.is_binary(kind) for kind in kinds.values()]
    size = key_bytes(variable)
    found: dict[str, TypeEngine[Any]] = {}
    for name, kind in kinds.items():
        if pa.types.is_string(kind):
            collation = exact_collation(dialect)
            found[name] = mysql.VARCHAR(size // 4, charset="utf8mb4", collation=collation)
        elif pa.types.is_binary(kind):
            found[name] = mysql.VARBINARY(size)
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


def bound_type(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type as which values of a column are sent: JSON is text by then."""
    return sa.Text() if isinstance(kind, sa.JSON) else kind


def fits(kind: pa.DataType, theirs: TypeEngine[Any], family: str) -> bool:
    """Return whether a column holds all values of a type, or refuses them aloud."""
    ours = sql_type(kind, family)
    if family == "mysql":
        found = _fits_in_mysql(kind, theirs)
        if found is not None:
            return found
    return _fits(ours, theirs)


def _fits_in_mysql(kind: pa.DataType, theirs: TypeEngine[Any]) -> bool | None:
    """Return the same for the types of MySQL; None if they are as elsewhere.

    FLOAT rounds, and so does DOUBLE with digits; ENUM takes capitals for others; BINARY pads.
    """
    if pa.types.is_floating(kind):
        return isinstance(theirs, sa.Double) and getattr(theirs, "scale", None) is None
    if pa.types.is_timestamp(kind):
        if isinstance(theirs, mysql.TIMESTAMP):
            return kind.tz is not None and theirs.fsp == _MICROS
        return isinstance(theirs, mysql.DATETIME) and theirs.fsp == _MICROS
    if pa.types.is_time(kind):
        return isinstance(theirs, mysql.TIME) and theirs.fsp == _MICROS
    if pa.types.is_boolean(kind):
        return isinstance(theirs, sa.Integer | sa.Boolean)
    if pa.types.is_binary(kind):
        return isinstance(theirs, sa.types._Binary) and not isinstance(theirs, sa.BINARY)
    if pa.types.is_nested(kind):  # (JSON of MariaDB is LONGTEXT)
        return isinstance(theirs, sa.JSON | mysql.LONGTEXT)
    if pa.types.is_string(kind):
        cut_or_changed = isinstance(theirs, sa.CHAR | sa.Enum | mysql.SET)
        return isinstance(theirs, sa.String | sa.Uuid) and not cut_or_changed
    return None


def _fits(ours: TypeEngine[Any], theirs: TypeEngine[Any]) -> bool:
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


def shown(kind: TypeEngine[Any]) -> str:
    with contextlib.suppress(SQLAlchemyError):
        return str(kind)
    return type(kind).__name__


# -- values -----------------------------------------------------------------------------------


def pieces(rows: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, _ROWS):
        yield rows.slice(start, _ROWS)


def _json_texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return nested values as JSON."""
    lines = json_lines(pa.table({"": column})).splitlines()
    found = [bytes(msgspec.json.decode(line, type=dict[str, msgspec.Raw])[""]) for line in lines]
    return [None if text == b"null" else text.decode() for text in found]


def values_of(column: pa.ChunkedArray, family: str) -> list[Any]:
    """Return the values of a column for SQLite or MySQL.

    Raises:
        UserCodeError: for NaN, which SQLite would hold as null, and which MySQL has not; and for
            the infinite in MySQL.
    """
    kind = column.type
    if pa.types.is_nested(kind):
        return _json_texts(column)
    if pa.types.is_floating(kind):
        _check_finite(column, family)
    if pa.types.is_decimal(kind) and family == "sqlite":
        return [None if value is None else f"{value:f}" for value in column.to_pylist()]
    if pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us"))
    return pylist(column)


def _check_finite(column: pa.ChunkedArray, family: str) -> None:
    if pc.any(pc.is_nan(column)).as_py():
        raise UserCodeError(
            "ValueError: NaN",
            remedy=f"{_NAMES[family]} has no NaN: emit None, or use another database",
        )
    if family == "mysql" and pc.any(pc.is_inf(column)).as_py():
        raise UserCodeError(
            "ValueError: infinity",
            remedy="MySQL has no infinite numbers: emit None, or use another database",
        )


def check_lengths(rows: pa.Table, lengths: Mapping[str, int]) -> None:
    """Check that texts are no longer than their columns: databases cut spaces off silently.

    Args:
        rows: the rows.
        lengths: the lengths of columns in characters; those of others are not limited.

    Raises:
        UserCodeError: for the first text that is too long.
    """
    for name, most in lengths.items():
        if name not in rows.column_names or not pa.types.is_string(rows.schema.field(name).type):
            continue
        longest = pc.max(pc.utf8_length(rows.column(name))).as_py()
        if longest is not None and longest > most:
            raise UserCodeError(
                f"ValueError: a text of {longest} characters, for a column of {most}",
                remedy=f"make column {name!r} of the table longer, or emit shorter texts",
            )


#: What the text format of COPY writes with a backslash; the backslash itself comes first.
_ESCAPES = [("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")]


def copy_text(rows: pa.Table) -> bytes:
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
