"""Schemas that are written as DDL, such as ``"id INT, name STRING"``, read without a JVM.

PySpark asks its JVM to read them. There is none in a test on the inline runner, nor in a worker.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.errors import PipelineError

_PLAIN: dict[str, type[DataType]] = {
    "TINYINT": ByteType,
    "SMALLINT": ShortType,
    "INT": IntegerType,
    "BIGINT": LongType,
    "FLOAT": FloatType,
    "DOUBLE": DoubleType,
    "TEXT": StringType,
    "CHAR": StringType,
    "VARCHAR": StringType,
    "BOOLEAN": BooleanType,
    "BINARY": BinaryType,
    "DATE": DateType,
    "TIMESTAMP": TimestampType,
    "TIMESTAMPTZ": TimestampType,
    "TIMESTAMPLTZ": TimestampType,
    "TIMESTAMPNTZ": TimestampNTZType,
}
_DAY_TO_SECOND = ("DAY", "HOUR", "MINUTE", "SECOND")


def struct_of_schema(schema: StructType | str, place: str) -> StructType:
    """Return a schema as a struct.

    Args:
        schema: a struct, or DDL such as ``"id INT, name STRING"``.
        place: what has the schema, for errors.

    Raises:
        PipelineError: for anything else.
    """
    if isinstance(schema, StructType):
        return schema
    if not isinstance(schema, str):
        raise PipelineError(
            f"{place} has the schema {schema!r}, which is neither a StructType nor a text",
            remedy='give a StructType, or DDL such as "id INT, name STRING"',
        )
    return _parsed(schema, place)


def ddl_of(schema: StructType) -> str:
    """Return a schema as DDL."""
    kinds = [field.dataType.simpleString() for field in schema.fields]
    named = [kind if "<" in kind else kind.upper() for kind in kinds]  # (< holds names of fields)
    return ", ".join(f"{n} {kind}" for n, kind in zip(schema.names, named, strict=True))


@lru_cache(maxsize=256)
def _parsed(ddl: str, place: str) -> StructType:
    import sqlglot
    from sqlglot import ErrorLevel, exp

    try:
        kind = _type_of(
            sqlglot.parse_one(
                f"STRUCT<{ddl}>", into=exp.DataType, dialect="spark", error_level=ErrorLevel.RAISE
            )
        )
    except (sqlglot.errors.SqlglotError, _Unknown) as error:
        why = error if isinstance(error, _Unknown) else "it is no list of names with types"
        raise PipelineError(
            f"the schema {ddl!r} of {place} cannot be read: {why}",
            remedy='write name and type of each column, as in "id INT, name STRING", or give a '
            "StructType",
        ) from None
    assert isinstance(kind, StructType)
    return kind


class _Unknown(Exception):
    """A part of a schema that is not known here."""


def _type_of(node: Any) -> DataType:
    from sqlglot import exp

    if isinstance(node.this, exp.Interval):
        return _interval_of(node)
    name, parts = node.this.name, node.expressions
    match name:
        case "STRUCT":
            return _struct([_field_of(part) for part in parts])
        case "ARRAY" if len(parts) == 1:
            return ArrayType(_type_of(parts[0]))
        case "MAP" if len(parts) == 2:
            return MapType(_type_of(parts[0]), _type_of(parts[1]))
        case "DECIMAL":
            return DecimalType(*[int(part.this.name) for part in parts])
    if name not in _PLAIN or (name == "TIMESTAMP" and node.sql("spark") == "TIME"):
        raise _Unknown(f"there is no type {node.sql('spark')} here")
    return _PLAIN[name]()


def _struct(fields: list[StructField]) -> StructType:
    names = [field.name for field in fields]
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        raise _Unknown(f"{twice[0]} is named twice" if twice else "it names no columns")
    return StructType(fields)


def _field_of(node: Any) -> StructField:
    from sqlglot import exp

    if not isinstance(node, exp.ColumnDef) or node.kind is None:
        raise _Unknown(f"{node.sql('spark')} is no name with a type")
    required, comment = False, ""
    for constraint in node.args.get("constraints") or ():
        if isinstance(constraint.kind, exp.NotNullColumnConstraint):
            required = not constraint.kind.args.get("allow_null")
        elif isinstance(constraint.kind, exp.CommentColumnConstraint):
            comment = constraint.kind.this.name
        else:
            raise _Unknown(f"{constraint.sql('spark')} means nothing for state")
    metadata = {"comment": comment} if comment else None
    return StructField(node.name, _type_of(node.kind), not required, metadata)


def _interval_of(node: Any) -> DataType:
    unit = node.this.args["unit"]
    first = unit.this.name if hasattr(unit.this, "name") else str(unit)
    last = unit.expression.name if unit.expression is not None else first
    if first not in _DAY_TO_SECOND or last not in _DAY_TO_SECOND:
        raise _Unknown(f"there is no type {node.sql('spark')} here")
    return DayTimeIntervalType(_DAY_TO_SECOND.index(first), _DAY_TO_SECOND.index(last))
