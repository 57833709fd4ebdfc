"""The type of a stream's values: its columns, and the conversion of batches in both directions.

A stream's values have one declared type. A ``msgspec.Struct`` or a dataclass has a column for each
field. Any other type that a column can hold has a single column called ``value``. An injector
without a declared type gets one that is made from its columns. ``docs/reference/types.md`` has the
table of types.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError
from headrace.eventtime.timestamps import from_micros
from headrace.schema.declared import (
    check_name,
    form_of,
    form_of_arrow,
    may_be_none,
    part_of,
    parts_of,
    record_maker,
    strip_optional,
)
from headrace.schema.exact import Misfit, NotExact, as_plain
from headrace.schema.forms import TIMESTAMP
from headrace.schema.nested import (
    FormPart,
    all_made,
    field_of_mapping,
    looks_at_itself,
    relabelled,
)

VALUE_COLUMN = "value"


class ValueType:
    """A stream's value type: its Arrow columns, and the conversion of whole batches.

    Nothing is converted with loss. A value that its field cannot hold unchanged is refused, with
    the path to the part at fault.

    Args:
        python_type: the type that user code sees.
        parts: the fields, or one part called ``value``.
        is_scalar: whether the value is the single column itself.
        make: makes a value from its fields, in their order. By default, the type is called.

    Attributes:
        schema: the columns as the engine keeps them, with the names that fields have in Python.

    >>> value_type_of(int).schema
    value: int64 not null
    >>> value_type_of(list[int]).to_python(value_type_of(list[int]).to_columns([[1, 2], []]))
    [[1, 2], []]
    """

    def __init__(
        self,
        python_type: Any,
        parts: Sequence[FormPart],
        *,
        is_scalar: bool,
        make: Callable[..., Any] | None = None,
    ) -> None:
        self.python_type = python_type
        self.parts = list(parts)
        self.schema = pa.schema([part.field for part in parts])
        self.is_scalar = is_scalar
        self._make: Callable[..., Any] = make or python_type

    def __repr__(self) -> str:
        return f"ValueType({describe(self.schema)})"

    # -- Python -------------------------------------------------------------------------------

    def to_python(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Return a value for each row of the columns (in the order of the schema).

        Raises:
            NotExact: for the first row that is not a value of the type, such as one with a date
                that Python cannot represent.
        """
        lists = []
        for part, column in zip(self.parts, columns, strict=True):
            try:
                lists.append(part.to_python(column))
            except Misfit as error:
                raise _not_exact(part, error) from None
        if self.is_scalar:
            return lists[0]
        if not lists:
            return []
        try:
            return all_made(self._make, zip(*lists, strict=True))
        except Misfit as error:
            raise NotExact(error.row, error.why) from error.__cause__

    def check_made(self, columns: Sequence[pa.Array]) -> None:
        """Check that a class that checks its values accepts those of columns from outside.

        Raises:
            NotExact: for the first row from which no value can be made.
        """
        if not self.is_scalar and looks_at_itself(self.python_type):
            self.to_python(columns)

    def to_columns(self, values: Sequence[Any], zone: str | None = None) -> list[pa.Array]:
        """Return the columns of a list of values.

        Args:
            values: values of the type.
            zone: the time zone of times that name none. Without it, such times are refused.

        Raises:
            NotExact: (a TypeError) naming the field and the row, when a value does not have the
                declared type.
        """
        if self.is_scalar:
            return [_column(self.parts[0], values, zone)]
        return [_column(part, _attributes(part, values), zone) for part in self.parts]

    def of_mappings(self, part: FormPart, items: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return one field of mappings whose keys are the names that fields have outside.

        If the key is absent, the field gets its default, as in JSON; see also :meth:`check_keys`.

        Raises:
            NotExact: for the first mapping that lacks a required field, or has the field under its
                name in Python.
        """
        found = []
        for row, item in enumerate(items):
            try:
                if part.name in item and part.outside not in item and not self._is_other(part):
                    raise Misfit(row, f"outside it is called {part.outside!r}")
                found.append(field_of_mapping(item, part, row))
            except Misfit as error:
                raise _not_exact(part, error) from None
        return found

    def check_keys(self, items: Sequence[Mapping[str, Any]], also: Collection[str] = ()) -> None:
        """Check that mappings have no keys but the names that fields have outside, and ``also``.

        Raises:
            NotExact: for the first mapping that has another key.
        """
        known = {part.outside for part in self.parts}.union(also)
        for row, item in enumerate(items):
            strange = next((key for key in item if key not in known), None)
            if strange is None:
                continue
            own = next((part for part in self.parts if part.name == strange), None)
            why = "there is none" if own is None else f"outside it is called {own.outside!r}"
            raise NotExact(row, f"field {strange!r}: {why}", str(strange))

    def column(self, part: FormPart, values: Sequence[Any], zone: str | None = None) -> pa.Array:
        """Return the values of one field as its column; see :meth:`to_columns`."""
        return _column(part, values, zone)

    def _is_other(self, part: FormPart) -> bool:
        """Return whether a field's name in Python is another field's name outside."""
        return any(part.name == other.outside for other in self.parts)

    # -- columns as others write and read them ------------------------------------------------

    @property
    def outside_schema(self) -> pa.Schema:
        """The columns with the names that all fields have outside, nested fields included."""
        return pa.schema([part.outside_field for part in self.parts])

    def exact(self, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return a column that a source brought, in the type of a field and with the same values.

        Args:
            name: the name of the field in Python.
            column: the column as it was found, of any type. Nested fields have their names from
                outside. Absent ones get their defaults.

        Raises:
            NotExact: for the first value that the field cannot hold; see :func:`exact_cast`. That
                includes a value that is not a member of an enum, not a UUID, or not of any type of
                a union.
        """
        part = self.part(name)
        try:
            return part.read(as_plain(column))
        except Misfit as error:
            raise _not_exact(part, error, named=False) from None

    def with_own_names(self, table: pa.Table) -> pa.Table:
        """Return a table with the names that fields have in Python instead of those outside."""
        there = set(table.column_names)
        own = {p.outside: p.name for p in self.parts if p.name not in there}
        return table.rename_columns([own.get(name, name) for name in table.column_names])

    def part(self, name: str) -> FormPart:
        """Return a field by its name in Python.

        Raises:
            KeyError: when no field has that name.
        """
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)

    def absent(self, name: str, rows: int) -> pa.Array | None:
        """Return a field's column for records that lack it: its default, or null if allowed.

        Returns None if the field must be present. A ``default_factory`` is called for each record.
        """
        return self.part(name).absent(rows)

    def outward(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> list[Any]:
        """Return the columns, in schema order, with the names from outside at every depth."""
        found: list[Any] = []
        for part, column in zip(self.parts, columns, strict=True):
            kind = part.form.outside
            if column.type.equals(kind):
                found.append(column)
            elif isinstance(column, pa.ChunkedArray):
                found.append(pa.chunked_array([relabelled(c, kind) for c in column.chunks], kind))
            else:
                found.append(relabelled(column, kind))
        return found

    def inward(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return columns that :meth:`outward` returned as they were before."""
        return [
            relabelled(column, part.form.arrow)
            for part, column in zip(self.parts, columns, strict=True)
        ]


def _attributes(part: FormPart, values: Sequence[Any]) -> list[Any]:
    get = operator.attrgetter(part.name)
    try:
        return list(map(get, values))
    except AttributeError:
        for row, value in enumerate(values):
            if not hasattr(value, part.name):
                why = f"{str(value)[:80]} has no attribute {part.name!r}"
                raise _not_exact(part, Misfit(row, why)) from None
        raise


def _column(part: FormPart, values: Sequence[Any], zone: str | None) -> pa.Array:
    try:
        return part.to_arrow(values, zone)
    except Misfit as error:
        raise _not_exact(part, error) from None


def _not_exact(part: FormPart, error: Misfit, *, named: bool = True) -> NotExact:
    path = f"{part.name}{error.path}"
    if named:
        return NotExact(error.row, f"field {path!r} wants {part.form.type_name}: {error.why}", path)
    return NotExact(error.row, f"{path}: {error.why}" if error.path else error.why, path)


def wants_zone(kind: pa.DataType) -> bool:
    """Return whether a type's values are points in time, rather than local times."""
    return pa.types.is_timestamp(kind) and kind.tz is not None


def column_of(values: Sequence[Any], field: pa.Field, zone: str | None = None) -> pa.Array:
    """Return the column of a field that is declared by its Arrow type.

    Args:
        values: the values of the field.
        field: the name of the field, its type, and whether nulls are allowed.
        zone: the time zone of times that name none. Without it, such times are refused.

    Raises:
        NotExact: (a TypeError) naming the field, when a value does not have its type.
    """
    part = FormPart(field.name, form_of_arrow(field.type), nullable=field.nullable)
    return _column(part, values, zone)


def column_to_python(column: pa.Array) -> list[Any]:
    """Return a column of keys or times as plain Python objects (UTC ``datetime`` for timestamps).

    Only for display: times and dates beyond Python's range become the first or last in that range.
    """
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        micros = column.cast(TIMESTAMP).cast(pa.int64()).to_pylist()
        return [None if at is None else from_micros(at) for at in micros]
    if pa.types.is_date32(kind):
        column = _within_dates(column)
    found: list[Any] = column.to_pylist()
    return found


def _within_dates(column: pa.Array) -> pa.Array:
    """Return dates, with those beyond Python's range as its first or last date."""
    days = column.view(pa.int32())
    ends = pc.min_max(days)
    first, last = (pa.scalar(end).cast(pa.int32()).as_py() for end in (date.min, date.max))
    if ends["min"].as_py() is None or first <= ends["min"].as_py() <= ends["max"].as_py() <= last:
        return column
    nearest = pc.max_element_wise(
        pc.min_element_wise(days, pa.scalar(last, pa.int32()), skip_nulls=False),
        pa.scalar(first, pa.int32()),
        skip_nulls=False,
    )
    return nearest.view(pa.date32())


# -- declared types ---------------------------------------------------------------------------


def value_type_of(declared: Any, *, place: str = "") -> ValueType:
    """Return the value type of a declared Python type.

    Args:
        declared: a struct, a dataclass, or any type of the table of types; or a dict of column →
            Python or Arrow type; or an Arrow schema.
        place: where the type is declared, for errors.

    Raises:
        PipelineError: when no columns can hold the type.
    """
    if isinstance(declared, ValueType):
        return declared
    if isinstance(declared, pa.Schema):
        return value_type_of_schema(declared)
    if isinstance(declared, dict):
        return _row_type([part_of(name, kind, place) for name, kind in declared.items()], "Row")
    if _has_fields(declared):
        return ValueType(
            declared, parts_of(declared, place), is_scalar=False, make=record_maker(declared)
        )
    kind, nullable = strip_optional(declared)
    form = form_of(kind, place)
    nullable = nullable or kind in (Any, object) or may_be_none(kind)
    return ValueType(declared, [FormPart(VALUE_COLUMN, form, nullable=nullable)], is_scalar=True)


def _has_fields(declared: Any) -> bool:
    cls = getattr(declared, "__origin__", declared)
    is_class = isinstance(cls, type)
    return is_class and (issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls))


def value_type_of_schema(schema: pa.Schema, name: str = "Row") -> ValueType:
    """Return a value type for columns without a declared type. A frozen struct is made for them.

    Raises:
        PipelineError: when a column's name cannot be the name of an attribute.
    """
    parts = []
    for field in schema:
        part = part_of(field.name, field.type, "")
        part.nullable = field.nullable
        parts.append(part)
    return _row_type(parts, name)


def _row_type(parts: list[FormPart], name: str) -> ValueType:
    names = [part.name for part in parts]
    for column in names:
        check_name(column, "")
        if not column.isidentifier():
            raise PipelineError(
                f"column {column!r} cannot be a field: it is not a Python name",
                remedy="declare the columns to be read with schema={...}",
            )
    row = msgspec.defstruct(name, [(column, Any) for column in names], frozen=True, gc=False)
    return ValueType(row, parts, is_scalar=False)


def arrow_type_of(kind: Any, *, place: str = "") -> pa.DataType:
    """Return the Arrow type of a Python type.

    Raises:
        PipelineError: when the type has none.
    """
    return form_of(kind, place).arrow


def defaults_of(values: ValueType) -> dict[str, Any]:
    """Return the values that columns have in records from before they were added, where known.

    A nullable column is included only if its default is None. With another default, a null could
    not be distinguished from an absent value.
    """
    found: dict[str, Any] = {}
    for part in values.parts:
        default: Any = None if part.default is None else getattr(part.default, "value", ...)
        if part.nullable:
            if default is None:
                found[part.name] = None
        elif type(default) in (int, float, str, bool):
            found[part.name] = default
    return found


def describe(schema: pa.Schema) -> dict[str, str]:
    """Return column name → type. The storage keeps this to recognise a change."""
    return {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in schema}
