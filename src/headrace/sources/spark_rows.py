"""Conversion of the tuples, rows and record batches that PySpark's readers yield to Arrow tables.

Columns are matched as in PySpark: in a named ``Row`` by name, in other tuples and lists by
position. No conversion loses information, and rows whose structure differs from the schema are
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.types import Row, StructType, _parse_datatype_string

from headrace.errors import PipelineError
from headrace.eventtime.parsing import BadTime, local_in_utc
from headrace.schema import NotExact, column_of, exact_cast, wants_zone
from headrace.schema.exact import Misfit, as_plain
from headrace.schema.forms import shortened
from headrace.session.arrow_types import arrow_schema
from headrace.sources.leaves import convert_leaves

_BATCH_ROWS = 10_000


def struct_of(schema: Any, place: str) -> StructType:
    """Return the schema of a data source as a struct.

    Args:
        schema: what its ``schema()`` returned.
        place: the name of the data source, for errors.

    Raises:
        PipelineError: if it is neither a struct nor a string that Spark can parse. Parsing a string
            needs a Spark session that exists already.
    """
    if isinstance(schema, str):
        try:
            schema = _parse_datatype_string(schema)
        except (PySparkException, RuntimeError, AssertionError) as error:
            raise PipelineError(
                f"schema() of {place} cannot be read: {str(error).splitlines()[0]}",
                remedy="return a StructType; text is read by an existing Spark session",
            ) from error
    if not isinstance(schema, StructType):
        raise PipelineError(
            f"{place} has a schema that is not a struct: {schema!r}", remedy="return a StructType"
        )
    return schema


def arrow_schema_of(schema: StructType, place: str) -> pa.Schema:
    """Return the Arrow types in which Spark keeps the columns of a schema.

    Raises:
        PipelineError: for a column whose type has no Arrow equivalent, such as ``CharType``.
    """
    fields: list[pa.Field] = []
    for field in schema:
        try:
            fields += arrow_schema(StructType([field]))
        except PySparkException as error:
            raise PipelineError(
                f"column {field.name!r} of {place} is of type {field.dataType.simpleString()}, which "
                "has no form in Arrow",
                remedy="give it another type, such as StringType",
            ) from error
    return pa.schema(fields)


def table_of(rows: Iterator[Any], schema: pa.Schema, zone: str) -> pa.Table:
    """Return tuples or record batches as one table.

    Args:
        rows: the rows that a reader yields.
        schema: the columns that the table must have.
        zone: the zone of times that do not name one, in columns of points in time.

    Raises:
        NotExact: for the first row that does not match the schema.
    """
    found = _Gathered(schema, zone)
    for row in rows:
        if isinstance(row, pa.RecordBatch):
            found.add_batch(row)
        else:
            found.add_row(row)
    return found.table()


class _Gathered:
    """Record batches of one schema, and rows that are collected for the next batch."""

    def __init__(self, schema: pa.Schema, zone: str) -> None:
        self._schema, self._zone = schema, zone
        self._names = tuple(schema.names)
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[Sequence[Any]] = []
        self._count = 0  # number of rows in _batches

    def table(self) -> pa.Table:
        self._flush()
        return pa.Table.from_batches(self._batches, self._schema)

    def add_row(self, row: Any) -> None:
        try:
            self._rows.append(_in_order(row, self._names))
        except TypeError as error:
            raise NotExact(self._count + len(self._rows), str(error)) from None
        if len(self._rows) >= _BATCH_ROWS:
            self._flush()

    def add_batch(self, batch: pa.RecordBatch) -> None:
        self._flush()
        if sorted(batch.schema.names) != sorted(self._names):
            raise NotExact(
                self._count,
                f"a batch has the columns {_listed(batch.schema.names)}, not {_listed(self._names)}",
            )
        leaves = _OfBatches(self._zone)
        self._add([self._exact(batch.column(field.name), field, leaves) for field in self._schema])

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            self._add(
                [self._of_values(c, field) for c, field in zip(columns, self._schema, strict=True)]
            )
            self._rows.clear()

    def _add(self, columns: list[pa.Array]) -> None:
        batch = pa.record_batch(columns, schema=self._schema)
        self._batches.append(batch)
        self._count += batch.num_rows

    def _of_values(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        given = field.with_type(_as_python_has_it(field.type))
        try:
            column = column_of(list(values), given, self._zone)
        except NotExact as error:
            raise self._further(error) from None
        return column if given.type == field.type else self._exact(column, field, _OfRows())

    def _exact(self, column: pa.Array, field: pa.Field, leaves: _OfBatches | _OfRows) -> pa.Array:
        try:
            column = convert_leaves(as_plain(column), field.type, leaves)
            return exact_cast(column, field)
        except Misfit as error:
            why = f"{field.name}{error.path}: {error.why}"
            raise self._further(NotExact(error.row, why)) from None
        except NotExact as error:
            why = error.why if error.path != field.name else f"{field.name}: {error.why}"
            raise self._further(NotExact(error.row, why)) from None

    def _further(self, error: NotExact) -> NotExact:
        """Return an error of a row in the next batch as one of that row among all rows."""
        return NotExact(self._count + error.row, error.why, error.path)


def _in_order(row: Any, names: tuple[str, ...]) -> Sequence[Any]:
    """Return a row's values in the order of the columns.

    Raises:
        TypeError: if this is not a row, or has other columns.
    """
    if not isinstance(row, tuple | list):
        raise TypeError(
            f"{shortened(row)} is of type {type(row).__name__}: a row is a tuple, a list or a Row"
        )
    if isinstance(row, Row) and hasattr(row, "__fields__"):
        of = dict(zip(row.__fields__, row, strict=True))
        if sorted(of) != sorted(names):
            raise TypeError(
                f"{shortened(row)} has the fields {_listed([*of])}, not {_listed(names)}"
            )
        return [of[name] for name in names]
    if len(row) != len(names):
        raise TypeError(f"{shortened(row)} has {len(row)} values for the columns {_listed(names)}")
    return row


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "(none)"


class _OfBatches:
    """Conversion of record batches: times without a zone are taken to be in the given zone."""

    def __init__(self, zone: str) -> None:
        self._zone = zone

    def plain(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        if wants_zone(kind) and pa.types.is_timestamp(column.type) and not column.type.tz:
            try:
                return local_in_utc(column, self._zone)
            except BadTime as error:
                raise Misfit(error.row, str(error)) from None
        return column

    keys = plain


class _OfRows:
    """Conversion of Python rows: a float is stored in 32 bits if these show the same digits."""

    def plain(self, column: pa.Array, kind: pa.DataType) -> pa.Array:
        return _in_32_bits(column) if kind == pa.float32() else column

    keys = plain


def _as_python_has_it(kind: pa.DataType) -> pa.DataType:
    """Return a type with 64-bit floats in the place of 32-bit ones: Python has only the former."""
    if kind == pa.float32():
        return pa.float64()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_python_has_it(kind.value_type)))
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_as_python_has_it(kind.key_type))
        return pa.map_(key, kind.item_field.with_type(_as_python_has_it(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([of.with_type(_as_python_has_it(of.type)) for of in kind])
    return kind


def _in_32_bits(column: pa.Array) -> pa.Array:
    """Return floats in 32 bits. A value written 0.1 becomes the 32-bit float that is written 0.1.

    Raises:
        Misfit: for the first value with more digits than 32 bits can show.
    """
    found = column.cast(pa.float32(), safe=False)
    shown = found.cast(pa.string()).cast(pa.float64())
    kept = pc.or_(pc.equal(column, found.cast(pa.float64())), pc.equal(column, shown))
    kept = pc.or_(kept, pc.is_nan(column)).fill_null(True)
    wrong = np.flatnonzero(~kept.to_numpy(zero_copy_only=False))
    if len(wrong):
        row = int(wrong[0])
        raise Misfit(row, f"{column[row]} cannot be kept in 32 bits: it would become {found[row]}")
    return found
