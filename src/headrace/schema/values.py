"""Types: how a user's Python type becomes Arrow columns, and back, a batch at a time.

A stream's values have one declared type: a ``msgspec.Struct`` or dataclass (a column a field), or
a plain ``int``, ``float``, ``str``, ``bytes``, ``bool``, ``date``, ``datetime``, ``timedelta`` (one
column called ``value``). An injector without a declared type gets one made from its columns.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError
from headrace.eventtime.parsing import to_micros_column
from headrace.eventtime.timestamps import from_micros
from headrace.schema.exact import exact_cast

VALUE_COLUMN = "value"
TIMESTAMP = pa.timestamp("us", tz="UTC")

_SCALARS: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    date: pa.date32(),
    datetime: TIMESTAMP,
    timedelta: pa.duration("us"),
}


class ValueType:
    """A stream's value type: its Arrow columns, and the conversion of whole batches.

    Args:
        python_type: what user code sees.
        schema: the columns, one a field (or one called ``value``).
        is_scalar: whether the value is the single column itself.
    """

    def __init__(self, python_type: Any, schema: pa.Schema, *, is_scalar: bool) -> None:
        self.python_type = python_type
        self.schema = schema
        self.is_scalar = is_scalar
        self._nested: list[Any] | None = None

    def __repr__(self) -> str:
        return f"ValueType({describe(self.schema)})"

    def to_python(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Return a value for each row of the columns (in the order of the schema)."""
        lists = [
            column_to_python(column) if kind is None else _nested_to_python(column, kind)
            for column, kind in zip(columns, self._nested_types(), strict=True)
        ]
        if self.is_scalar:
            return lists[0]
        make: Callable[..., Any] = self.python_type
        if self._by_name:
            names = self.schema.names
            return [make(**dict(zip(names, row, strict=True))) for row in zip(*lists, strict=True)]
        return [make(*row) for row in zip(*lists, strict=True)]

    def exact(self, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return what a source brought for a field as the field's column, unchanged in value.

        Args:
            name: the field's.
            column: of whatever type it was found in.

        Raises:
            NotExact: for the first value that the field cannot hold; see :func:`exact_cast`.
        """
        return exact_cast(column, self.schema.field(name))

    @cached_property
    def _by_name(self) -> bool:
        """Whether values are made of their fields by name: some take them so only."""
        parameters = inspect.signature(self.python_type).parameters.values()
        return any(of.kind is of.KEYWORD_ONLY for of in parameters)

    def _nested_types(self) -> list[Any]:
        """Return the declared type of each column that nests others; None for plain columns."""
        if self._nested is None:
            declared = {} if self.is_scalar else dict(_declared_fields(self.python_type))
            self._nested = [
                declared.get(field.name) if pa.types.is_nested(field.type) else None
                for field in self.schema
            ]
        return self._nested

    def to_columns(self, values: list[Any], zone: str | None = None) -> list[pa.Array]:
        """Return the columns of a list of values.

        Args:
            zone: the time zone of times that name none, which are refused by default.

        Raises:
            TypeError: naming the field, when a value does not have the declared type.
        """
        if self.is_scalar:
            return [column_of(values, self.schema.field(0), zone)]
        return [
            column_of([getattr(value, field.name) for value in values], field, zone)
            for field in self.schema
        ]


def _declared_fields(python_type: Any) -> list[tuple[str, Any]]:
    try:
        return [(name, kind) for name, kind in _fields_of(python_type, "") if kind is not Any]
    except PipelineError:
        return []


def _nested_to_python(column: pa.Array, declared: Any) -> list[Any]:
    """Return nested values as their declared types: structs, lists and dicts of them."""
    plain = [_plain(value, column.type) for value in column_to_python(column)]
    return [msgspec.convert(_as_encoded(value, declared), declared) for value in plain]


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a nested value of Arrow's with its maps as dicts, all the way down."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    return value


def _as_encoded(value: Any, declared: Any) -> Any:
    """Return a nested value, whose fields bear their Python names, as msgspec would read it."""
    declared, _ = _strip_optional(declared)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if value is None:
        return None
    if origin is list:
        return [_as_encoded(item, arguments[0]) for item in value]
    if origin is dict:
        return {key: _as_encoded(item, arguments[1]) for key, item in value.items()}
    if not isinstance(declared, type) or not isinstance(value, dict):
        return value
    if dataclasses.is_dataclass(declared):
        return {name: _as_encoded(value[name], kind) for name, kind in _fields_of(declared, "")}
    if not issubclass(declared, msgspec.Struct):
        return value
    how = declared.__struct_config__
    tag = {} if how.tag is None else {how.tag_field: how.tag}
    fields = {
        field.encode_name: _as_encoded(value[field.name], field.type)
        for field in msgspec.structs.fields(declared)
    }
    return [*tag.values(), *fields.values()] if how.array_like else {**tag, **fields}


def _as_arrow(value: Any, kind: pa.DataType, zone: str | None) -> Any:
    """Return a nested value as Arrow takes it: structs by the names of their fields, maps as pairs."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            field.name: _as_arrow(_field_value(value, at, field), field.type, zone)
            for at, field in enumerate(kind)
        }
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [
            (_as_arrow(key, kind.key_type, zone), _as_arrow(item, kind.item_type, zone))
            for key, item in pairs
        ]
    if pa.types.is_nested(kind):  # lists of all kinds
        if isinstance(value, str | bytes | dict):
            raise TypeError(f"{value!r} is no list")
        return [_as_arrow(item, kind.value_type, zone) for item in value]
    return in_zone([value], zone)[0] if wants_zone(kind) else value


def _field_value(value: Any, at: int, field: pa.Field) -> Any:
    """Return a field of a struct, a dict, or a tuple (by its place, if it has no names)."""
    if isinstance(value, dict):
        if field.name not in value and not field.nullable:
            raise TypeError(f"{field.name!r} is missing in {value!r}")
        return value.get(field.name)
    if isinstance(value, tuple) and not hasattr(value, field.name):
        return value[at]
    return getattr(value, field.name)


def wants_zone(kind: pa.DataType) -> bool:
    """Say whether a type's values are points in time, and no times of some clock on a wall."""
    return pa.types.is_timestamp(kind) and kind.tz is not None


def in_zone(values: list[Any], zone: str | None) -> list[Any]:
    """Return times so that each names a point in time: those that name no zone are of the given one.

    Raises:
        TypeError: for one of these, when none is given.
    """
    naive = [row for row, at in enumerate(values) if isinstance(at, datetime) and at.tzinfo is None]
    if not naive:
        return values
    if zone is None:
        raise TypeError(
            f"{values[naive[0]]!r} has no time zone; use datetime(..., tzinfo=timezone.utc)"
        )
    local = pa.array([values[row] for row in naive], pa.timestamp("us"))
    found = list(values)
    for row, micros in zip(naive, to_micros_column(local, zone=zone).to_pylist(), strict=True):
        found[row] = from_micros(micros)
    return found


def column_of(values: list[Any], field: pa.Field, zone: str | None = None) -> pa.Array:
    """Return a field's values as its column.

    Args:
        zone: the time zone of times that name none, which are refused by default.

    Raises:
        TypeError: naming the field, when a value does not have its type.
    """
    try:
        if pa.types.is_nested(field.type):
            values = [_as_arrow(value, field.type, zone) for value in values]
        elif wants_zone(field.type):
            values = in_zone(values, zone)
        array = pa.array(values, type=field.type)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        OverflowError,
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        UnicodeEncodeError,
    ) as error:
        raise TypeError(f"field {field.name!r} wants {field.type}: {error}") from error
    if array.null_count and not field.nullable:
        raise TypeError(f"field {field.name!r} wants {field.type}, and a value has None there")
    return array


def column_to_python(column: pa.Array) -> list[Any]:
    """Return the column's values as plain Python objects (UTC ``datetime`` for timestamps)."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        micros = column.cast(TIMESTAMP).cast(pa.int64()).to_pylist()
        return [None if at is None else from_micros(at) for at in micros]
    if pa.types.is_date32(kind):
        column = _within_dates(column)
    return typing.cast("list[Any]", column.to_pylist())


def _within_dates(column: pa.Array) -> pa.Array:
    """Return dates, those that Python has not as the first or the last that it has."""
    days = column.view(pa.int32())
    ends = pc.min_max(days)
    first, last = (pa.scalar(end).cast(pa.int32()).as_py() for end in (date.min, date.max))
    if ends["min"].as_py() is None or first <= ends["min"].as_py() <= ends["max"].as_py() <= last:
        return column
    nearest = pc.max_element_wise(
        pc.min_element_wise(days, pa.scalar(last, pa.int32()), skip_nulls=False),
        pa.scalar(first, pa.int32()), skip_nulls=False,
    )  # fmt: skip
    return nearest.view(pa.date32())


def value_type_of(declared: Any, *, place: str = "") -> ValueType:
    """Return the value type of a declared Python type.

    Raises:
        PipelineError: when the type has no columns.
    """
    if isinstance(declared, ValueType):
        return declared
    if isinstance(declared, pa.Schema):
        return value_type_of_schema(declared)
    if isinstance(declared, dict):
        fields = [_field(name, kind, place) for name, kind in declared.items()]
        return value_type_of_schema(pa.schema(fields))
    if declared in _SCALARS:
        field = pa.field(VALUE_COLUMN, _SCALARS[declared], nullable=False)
        return ValueType(declared, pa.schema([field]), is_scalar=True)
    fields = [_field(name, kind, place) for name, kind in _fields_of(declared, place)]
    return ValueType(declared, pa.schema(fields), is_scalar=False)


def value_type_of_schema(schema: pa.Schema, name: str = "Row") -> ValueType:
    """Return a value type for columns without a declared type: a frozen struct made for them.

    Raises:
        PipelineError: when a column's name cannot be an attribute.
    """
    for column in schema.names:
        _check_name(column, "")
        if not column.isidentifier():
            raise PipelineError(
                f"column {column!r} cannot be a field: it is no Python name",
                remedy="declare the columns to be read with schema={...}",
            )
    schema = pa.schema(
        [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    )
    row = msgspec.defstruct(name, [(column, Any) for column in schema.names], frozen=True, gc=False)
    return ValueType(row, schema, is_scalar=False)


def _fields_of(declared: Any, place: str) -> list[tuple[str, Any]]:
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        return [(field.name, field.type) for field in msgspec.structs.fields(declared)]
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        hints = typing.get_type_hints(declared)
        for field in dataclasses.fields(declared):
            if not field.init:
                raise PipelineError(
                    f"field {field.name!r} of {declared.__name__} cannot be given: init=False",
                    place=place,
                    remedy="make it a property, or let it be given",
                )
        return [(field.name, hints[field.name]) for field in dataclasses.fields(declared)]
    raise PipelineError(
        f"{declared!r} is not a type that a stream can carry",
        place=place,
        remedy="use a msgspec.Struct, a dataclass, or int, float, str, bytes, bool, date, datetime",
    )


def _field(name: str, kind: Any, place: str) -> pa.Field:
    _check_name(name, place)
    if isinstance(kind, pa.DataType) and pa.types.is_dictionary(kind):
        kind = kind.value_type  # batches travel without their dictionaries
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    inner, nullable = _strip_optional(kind)
    return pa.field(name, arrow_type_of(inner, place=f"{place} field {name!r}"), nullable=nullable)


def _check_name(name: str, place: str) -> None:
    if name.startswith("__"):
        raise PipelineError(
            f"{name!r} cannot be a field: names with two underscores are the engine's own",
            place=place,
            remedy="rename the field, or declare the columns to be read with schema={...}",
        )


def _strip_optional(kind: Any) -> tuple[Any, bool]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        if len(inner) == 1 and len(typing.get_args(kind)) == 2:
            return inner[0], True
    return kind, False


def arrow_type_of(kind: Any, *, place: str = "") -> pa.DataType:
    """Return the Arrow type of a Python type.

    Raises:
        PipelineError: when there is none.
    """
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list and arguments:
        return pa.list_(arrow_type_of(_strip_optional(arguments[0])[0], place=place))
    if origin is dict and arguments:
        return pa.map_(arrow_type_of(arguments[0], place=place), arrow_type_of(arguments[1]))
    return pa.struct([_field(name, inner, place) for name, inner in _fields_of(kind, place)])


def defaults_of(values: ValueType) -> dict[str, Any]:
    """Return what a column is in records that are from before it was added, where that can be said.

    A column that may be null tells null from nothing only if that is its default.
    """
    declared = {} if values.is_scalar else _declared_defaults(values.python_type)
    found = {}
    for field in values.schema:
        default = declared.get(field.name) if field.nullable else declared.get(field.name, ...)
        if default is None if field.nullable else type(default) in (int, float, str, bool):
            found[field.name] = default
    return found


def _declared_defaults(python_type: Any) -> dict[str, Any]:
    if isinstance(python_type, type) and issubclass(python_type, msgspec.Struct):
        fields = [(of.name, of.default) for of in msgspec.structs.fields(python_type)]
    elif dataclasses.is_dataclass(python_type):
        fields = [(of.name, of.default) for of in dataclasses.fields(python_type)]
    else:
        return {}
    none = (msgspec.NODEFAULT, dataclasses.MISSING)
    return {name: default for name, default in fields if not any(default is of for of in none)}


def describe(schema: pa.Schema) -> dict[str, str]:
    """Return column name → type, as it is kept in storage to recognise a change."""
    return {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in schema}
