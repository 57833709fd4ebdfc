"""Types of columns and expressions: Spark's SQL types, as plain data."""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa

#: The most digits of a decimal.
MOST_DIGITS: Final = 38
#: The most digits of a decimal of which every value, scaled, is an ``int64``.
INT64_DIGITS: Final = 18

_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "day_time": pa.duration("us"),
    "year_month": pa.int32(),
    "void": pa.null(),
}


class SqlType(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type of Spark SQL.

    ``day_time`` and ``year_month`` are its two types of intervals; ``void`` is the type of a bare
    NULL.

    Attributes:
        name: ``bigint``, ``decimal``, ``string``, ``struct``, …
        precision: digits of a decimal in all.
        scale: digits of a decimal after the point.
        fields: for a struct, its fields by name; for an array, the type of its elements, named
            ``element``.

    Example::

        price = SqlType("decimal", 15, 2)
        assert str(price) == "decimal(15,2)"
    """

    name: str
    precision: int = 0
    scale: int = 0
    fields: tuple[tuple[str, SqlType], ...] = ()

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.name == "struct":
            return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self.fields)}>"
        if self.name == "array":
            return f"array<{self.fields[0][1]}>"
        return self.name

    @property
    def is_integer(self) -> bool:
        """Whether it is one of the four integer types."""
        return self.name in _INTEGERS

    @property
    def is_float(self) -> bool:
        """Whether it is ``float`` or ``double``."""
        return self.name in {"float", "double"}

    @property
    def is_decimal(self) -> bool:
        """Whether it is a decimal."""
        return self.name == "decimal"

    @property
    def is_numeric(self) -> bool:
        """Whether it is a number of any kind."""
        return self.is_integer or self.is_float or self.is_decimal

    @property
    def is_text(self) -> bool:
        """Whether its values are of variable length: texts and bytes."""
        return self.name in {"string", "binary"}

    @property
    def is_array(self) -> bool:
        """Whether its values are arrays."""
        return self.name == "array"

    @property
    def in_arrow(self) -> bool:
        """Whether a column of it is an Arrow array in expressions, and not one of NumPy."""
        return self.is_text or self.is_array

    @property
    def element(self) -> SqlType:
        """The type of the elements of an array."""
        return self.fields[0][1]

    @property
    def bits(self) -> int:
        """The width of an integer type."""
        return _INTEGERS[self.name]

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of a column of this type."""
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale)
        if self.name == "struct":
            return pa.struct([pa.field(name, kind.arrow) for name, kind in self.fields])
        if self.name == "array":
            return pa.list_(self.fields[0][1].arrow)
        return _SIMPLE[self.name]


def array_of(element: SqlType) -> SqlType:
    """Return the type of arrays of some elements."""
    return SqlType("array", fields=(("element", element),))


BOOLEAN: Final = SqlType("boolean")
INT: Final = SqlType("int")
BIGINT: Final = SqlType("bigint")
DOUBLE: Final = SqlType("double")
STRING: Final = SqlType("string")


def of_arrow(kind: pa.DataType) -> SqlType:
    """Return the SQL type of an Arrow type.

    Raises:
        TypeError: if SQL has no such type.
    """
    if pa.types.is_decimal128(kind):
        return SqlType("decimal", kind.precision, kind.scale)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return STRING
    if pa.types.is_timestamp(kind):
        return SqlType("timestamp" if kind.tz else "timestamp_ntz")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return array_of(of_arrow(kind.value_type))
    for name, arrow in _SIMPLE.items():
        if arrow == kind and name != "year_month":
            return SqlType(name)
    raise TypeError(f"{kind} has no type of SQL")
