"""Finds the form of a declared type, whether it is a Python type or an Arrow type.

A *form* (:mod:`headrace.schema.forms`) says how values of a type are kept as a column.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.schema.encodings import OF_VIEWS, list_type
from headrace.schema.exact import Misfit, cast_exactly, family_of
from headrace.schema.forms import (
    Bool,
    Bytes,
    Date,
    DurationForm,
    Float,
    Form,
    Int,
    LocalTime,
    Member,
    Number,
    OneOf,
    Plain,
    PointInTime,
    TextForm,
    TimeOfDay,
    Uuid,
)
from headrace.schema.nested import (
    Constrained,
    Dict,
    FormPart,
    Json,
    Many,
    RecordForm,
    by_attribute,
    by_key,
    by_place,
)

#: Forms of types that are not composed of other types.
PLAIN: dict[Any, Callable[[], Form]] = {
    int: Int,
    float: Float,
    bool: Bool,
    str: TextForm,
    bytes: Bytes,
    date: Date,
    datetime: PointInTime,
    timedelta: DurationForm,
    time: TimeOfDay,
    Decimal: Number,
    UUID: Uuid,
}

_LISTS = (list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
_SETS: dict[Any, type[Any]] = {
    set: set,
    frozenset: frozenset,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
}
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ANY: tuple[Any, ...] = (Any, object, list, tuple, set, frozenset, dict)
_REMEDY = (
    "use a msgspec.Struct, a dataclass, or int, float, str, bytes, bool, date, datetime, timedelta, "
    "time, Decimal, UUID, enums, and lists, sets, tuples, dicts and unions of these"
)


def type_name(kind: Any) -> str:
    """Return the name of a type for messages."""
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        return kind.__name__
    return str(kind).replace("typing.", "")


def strip_optional(kind: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was allowed."""
    kind = _unwrapped(kind)
    if typing.get_origin(kind) is typing.Annotated:
        of, *notes = typing.get_args(kind)
        bare, optional = strip_optional(of)
        return (typing.Annotated[(bare, *notes)], True) if optional else (kind, False)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        if len(inner) < len(typing.get_args(kind)):
            return (inner[0] if len(inner) == 1 else typing.Union[tuple(inner)]), True  # noqa: UP007
    return kind, kind is type(None)


def _unwrapped(kind: Any) -> Any:
    """Return the type behind a ``NewType`` or a type alias."""
    while True:
        if hasattr(kind, "__supertype__"):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def part_of(
    name: str,
    kind: Any,
    place: str,
    *,
    outside: str = "",
    default: Callable[[], Any] | None = None,
    within: tuple[Any, ...] = (),
) -> FormPart:
    """Return the part for a field of a declared type.

    Args:
        name: the name of the field.
        kind: its type.
        place: where the type is declared, for errors.
        outside: the name of the field in files and at sinks, if that is another one.
        default: makes the value of an absent field.
        within: the classes that contain the field, outermost first.

    Raises:
        PipelineError: when no column can hold the field.
    """
    if isinstance(kind, pa.DataType):
        return FormPart(name, form_of_arrow(kind), nullable=True, outside=outside)
    inner, nullable = strip_optional(kind)
    form = form_of(inner, f"{place} field {name!r}", within)
    bare = _bare(inner)
    nullable = nullable or bare in (Any, object) or may_be_none(bare)
    part = FormPart(name, form, nullable=nullable, outside=outside, default=default)
    _check_default(part, place)
    return part


def _check_default(part: FormPart, place: str) -> None:
    """Check that the default of a field is of the field's type.

    Raises:
        PipelineError: when it is not.
    """
    try:
        part.absent(1)
    except Misfit as error:
        raise PipelineError(
            f"the default of field {part.name!r} is not one of {part.form.type_name}: {error.why}",
            place=place,
            remedy="give it a default of its type; what may be absent is `... | None` with None",
        ) from None


def _bare(kind: Any) -> Any:
    """Return a type without its annotations (``Annotated``)."""
    while typing.get_origin(kind) is typing.Annotated:
        kind = _unwrapped(typing.get_args(kind)[0])
    return kind


def may_be_none(kind: Any) -> bool:
    """Return whether a type is a ``Literal`` of which None is a member."""
    return typing.get_origin(kind) is typing.Literal and None in typing.get_args(kind)


def form_of(kind: Any, place: str, within: tuple[Any, ...] = ()) -> Form:
    """Return the form of a declared type that is not optional.

    Raises:
        PipelineError: when the type has no form.
    """
    kind = _unwrapped(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _annotated(kind, arguments, place, within)
    try:
        if kind in PLAIN:
            return PLAIN[kind]()
    except TypeError:
        raise _unknown(kind, place) from None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, place)
    if origin is typing.Literal:
        return _literal(arguments, place)
    if kind in _ANY or origin in (typing.Union, types.UnionType):
        return _json(kind, place)
    if origin is not None and arguments:
        found = _collection(kind, origin, arguments, place, within)
        if found is not None:
            return found
    return record_of(kind, place, within)


def _annotated(kind: Any, arguments: Any, place: str, within: tuple[Any, ...]) -> Form:
    inner, *notes = arguments
    form = form_of(strip_optional(inner)[0], place, within)
    for note in notes:
        if isinstance(note, pa.DataType):
            form = _narrowed(form, note, place)
    limits = [note for note in notes if isinstance(note, msgspec.Meta)]
    return _constrained(form, kind, limits, place) if limits else form


def _constrained(form: Form, kind: Any, limits: list[msgspec.Meta], place: str) -> Form:
    try:
        msgspec.json.Decoder(kind)
    except TypeError as error:
        raise PipelineError(
            f"{type_name(kind)} cannot be kept to: {str(error).splitlines()[0]}",
            place=place,
            remedy="check the values in a computation, and declare the type without limits",
        ) from error
    for limit in limits:
        if limit.tz is not None and isinstance(form, TimeOfDay if limit.tz else PointInTime):
            raise PipelineError(
                f"nothing keeps to tz={limit.tz}: each datetime of a stream names a zone, each time none",
                place=place,
                remedy="leave tz= out",
            )
    return Constrained(form, kind)


def _narrowed(form: Form, arrow: pa.DataType, place: str) -> Form:
    """Return a form with the Arrow type of ``Annotated[Decimal, pa.decimal128(10, 2)]``."""
    if not isinstance(form, Plain) or family_of(form.arrow) != family_of(arrow):
        raise PipelineError(f"{form.type_name} cannot be kept as {arrow}", place=place)
    return form_of_arrow(arrow)


def _enum(kind: type[Enum], place: str) -> Form:
    values = [member.value for member in kind]
    for of, inner in ((int, Int), (str, TextForm)):
        if all(isinstance(value, of) and not isinstance(value, bool) for value in values):
            return Member(kind, inner())
    raise PipelineError(
        f"the values of {kind.__name__} are neither all integers nor all texts",
        place=place,
        remedy="give its members values of one of these types",
    )


def _literal(values: tuple[Any, ...], place: str) -> Form:
    there = [value for value in values if value is not None]
    for of, inner in ((int, Int), (str, TextForm)):
        if there and all(type(value) is of for value in there):
            return OneOf(there, inner())
    return _json(typing.Literal[tuple(there)], place)


def _json(kind: Any, place: str) -> Form:
    try:
        return Json(kind, type_name(kind))
    except TypeError as error:
        raise PipelineError(
            f"{type_name(kind)} is not a type that a stream can carry: {str(error).splitlines()[0]}",
            place=place,
            remedy=_REMEDY,
        ) from error


def _collection(
    kind: Any, origin: Any, arguments: tuple[Any, ...], place: str, within: tuple[Any, ...]
) -> Form | None:
    """Return the form of a list, set, tuple or dict type; None for other types."""

    def item(of: Any) -> FormPart:
        return part_of("item", of, place, within=within)

    if origin in _LISTS:
        return Many(type_name(kind), list, (list, tuple), item(arguments[0]))
    if origin in _SETS:
        return Many(type_name(kind), _SETS[origin], (set, frozenset), item(arguments[0]))
    if origin in _DICTS:
        key = part_of("key", arguments[0], place, within=within)
        if key.nullable:
            raise PipelineError(
                f"the keys of {type_name(kind)} may be None, which the keys of a map may not",
                place=place,
                remedy="declare keys that are always there",
            )
        return Dict(type_name(kind), key, item(arguments[1]))
    if origin is tuple and arguments[-1:] == (Ellipsis,):
        return Many(type_name(kind), tuple, (tuple, list), item(arguments[0]))
    if origin is tuple:
        parts = [part_of(f"_{n}", of, place, within=within) for n, of in enumerate(arguments, 1)]
        return FixedTuple(type_name(kind), parts)
    return None


class FixedTuple(RecordForm):
    """Tuples of a fixed length, as structs with the fields ``_1``, ``_2``, …, as in Spark."""

    def __init__(self, type_name: str, parts: Sequence[FormPart]) -> None:
        super().__init__(type_name, parts, accepts=tuple, get=by_place, make=_tuple)

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        for row, value in enumerate(values):
            if isinstance(value, tuple | list) and len(value) != len(self.parts):
                raise Misfit(row, f"{str(value)[:80]} is not of type {self.type_name}")
        as_tuples = [tuple(v) if isinstance(v, list) else v for v in values]
        return super().to_arrow(as_tuples, zone)


def _tuple(*items: Any) -> tuple[Any, ...]:
    return items


# -- classes with fields ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DeclaredField:
    """A field of a class: its names, its type, and what makes its default."""

    name: str
    kind: Any
    outside: str
    default: Callable[[], Any] | None


@dataclasses.dataclass(frozen=True)
class Always:
    """A factory that always returns the same value."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def record_of(kind: Any, place: str, within: tuple[Any, ...] = ()) -> Form:
    """Return the form of a class with fields.

    Raises:
        PipelineError: for any other type.
    """
    if kind in within:
        return _json(kind, place)  # (a type that contains itself has no columns)
    parts = parts_of(kind, place, within)
    cls: Any = typing.get_origin(kind) or kind
    if typing.is_typeddict(kind):
        if kind.__optional_keys__:
            return _json(kind, place)
        names = [part.name for part in parts]
        return RecordForm(
            type_name(kind), parts, accepts=dict, get=by_key, make=ByName(dict, names)
        )
    return RecordForm(
        type_name(kind), parts, accepts=cls, get=by_attribute, make=record_maker(kind)
    )


def record_maker(kind: Any) -> Callable[..., Any]:
    """Return a callable that makes a value of a class from all of its fields, in their order."""
    cls: Any = typing.get_origin(kind) or kind
    return ByName(cls, [field.name for field in fields_of(kind, "")]) if _by_name(cls) else cls


@dataclasses.dataclass(frozen=True)
class ByName:
    """Makes values from fields that are passed by name, for classes that accept only that."""

    make: Callable[..., Any]
    names: list[str]

    def __call__(self, *values: Any) -> Any:
        return self.make(**dict(zip(self.names, values, strict=True)))


def _by_name(cls: Any) -> bool:
    if issubclass(cls, msgspec.Struct):
        parameters = inspect.signature(cls).parameters.values()
        return any(of.kind is of.KEYWORD_ONLY for of in parameters)
    return dataclasses.is_dataclass(cls) and any(f.kw_only for f in dataclasses.fields(cls))


def parts_of(kind: Any, place: str, within: tuple[Any, ...] = ()) -> list[FormPart]:
    """Return the fields of a class as parts.

    Raises:
        PipelineError: for a type without fields, or with a field that no column can hold.
    """
    parts = []
    for field in fields_of(kind, place):
        for name in (field.name, field.outside):
            check_name(name, place)
        parts.append(
            part_of(
                field.name,
                field.kind,
                place,
                outside=field.outside,
                default=field.default,
                within=(*within, kind),
            )
        )
    _check_apart([part.outside for part in parts], type_name(kind), place)
    return parts


def _check_apart(names: list[str], of: str, place: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(
                f"two fields of {of} are called {name!r} outside",
                place=place,
                remedy="give them names of their own with rename= or field(name=)",
            )


def check_name(name: str, place: str) -> None:
    """Check that a column may have a name.

    Raises:
        PipelineError: for a name that is reserved for the engine's own columns.
    """
    if name.startswith("__"):
        raise PipelineError(
            f"{name!r} cannot be a field: names with two underscores are the engine's own",
            place=place,
            remedy="rename the field, or declare the columns to be read with schema={...}",
        )


def fields_of(kind: Any, place: str) -> list[DeclaredField]:
    """Return the fields of a class: a struct, a dataclass, a named tuple or a typed dict.

    Raises:
        PipelineError: for any other type.
    """
    cls: Any = typing.get_origin(kind) or kind
    if isinstance(cls, type) and issubclass(cls, msgspec.Struct):
        return [
            DeclaredField(f.name, f.type, f.encode_name, _default(f.default, f.default_factory))
            for f in msgspec.structs.fields(kind)
        ]
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return [DeclaredField(name, _without_marks(of), name, None) for name, of in hints.items()]
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        return _fields_of_dataclass(cls, place)
    if isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields"):
        hints = typing.get_type_hints(cls, include_extras=True)
        defaults: dict[str, Any] = getattr(cls, "_field_defaults")  # noqa: B009
        return [
            DeclaredField(
                name,
                hints.get(name, Any),
                name,
                Always(defaults[name]) if name in defaults else None,
            )
            for name in cls._fields
        ]
    raise _unknown(kind, place)


def _without_marks(kind: Any) -> Any:
    """Return the type of a typed dict's key without ``Required`` and ``NotRequired``."""
    while typing.get_origin(kind) in (typing.Required, typing.NotRequired):
        (kind,) = typing.get_args(kind)
    return kind


def _fields_of_dataclass(cls: Any, place: str) -> list[DeclaredField]:
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if not field.init:
            raise PipelineError(
                f"field {field.name!r} of {cls.__name__} cannot be given: init=False",
                place=place,
                remedy="make it a property, or let it be given",
            )
    return [
        DeclaredField(f.name, hints[f.name], f.name, _default(f.default, f.default_factory))
        for f in dataclasses.fields(cls)
    ]


def _default(value: Any, factory: Any) -> Callable[[], Any] | None:
    none = (msgspec.NODEFAULT, dataclasses.MISSING)
    if not any(value is of for of in none):
        return Always(value)
    return None if any(factory is of for of in none) else typing.cast("Callable[[], Any]", factory)


def _unknown(kind: Any, place: str) -> PipelineError:
    return PipelineError(
        f"{kind!r} is not a type that a stream can carry", place=place, remedy=_REMEDY
    )


# -- Arrow types ------------------------------------------------------------------------------

_OF_FAMILY: dict[str, type[Plain]] = {
    "int": Int,
    "float": Float,
    "bool": Bool,
    "text": TextForm,
    "bytes": Bytes,
    "date": Date,
    "point in time": PointInTime,
    "duration": DurationForm,
    "time of day": TimeOfDay,
    "decimal": Number,
}


def form_of_arrow(kind: pa.DataType) -> Form:
    """Return the form of a column that is declared by its Arrow type.

    Dictionaries, runs and views are kept as plain values, at any depth: Arrow cannot ``take`` all of
    them.
    """
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return form_of_arrow(kind.value_type)
    kind = OF_VIEWS.get(kind, kind)
    family = family_of(kind)
    plain = _OF_FAMILY.get(family)
    if plain is not None:
        own = kind == plain.arrow or plain in (Int, Number)  # (these accept any width)
        return plain(kind) if own else Cast(plain(), kind)
    if family == "time without a zone":
        return LocalTime() if kind == LocalTime.arrow else Cast(LocalTime(), kind)
    if family == "list":
        return ArrowList(kind)
    if family == "map":
        return ArrowMap(kind)
    if family == "struct":
        return ArrowStruct(kind)
    return ArrowForm(kind)


class ArrowForm(Form):
    """Values of an Arrow type without a Python type of its own. Arrow itself converts them."""

    def __init__(self, kind: pa.DataType) -> None:
        self.arrow, self.type_name = kind, str(kind)

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        try:
            return pa.array(values, self.arrow)
        except (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError) as error:
            raise Misfit(0, str(error)) from None

    def to_python(self, column: pa.Array) -> list[Any]:
        found: list[Any] = column.to_pylist()
        return found


class Cast(ArrowForm):
    """A form kept in another type of its family, such as another width, unit or zone."""

    def __init__(self, inner: Plain, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._inner = inner

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        return cast_exactly(self._inner.to_arrow(values, zone), self.arrow, nullable=True)

    def to_python(self, column: pa.Array) -> list[Any]:
        return self._inner.to_python(cast_exactly(column, self._inner.arrow, nullable=True))


class ArrowList(ArrowForm):
    """Lists of an Arrow type."""

    def __init__(self, kind: pa.DataType) -> None:
        inner = form_of_arrow(kind.value_type)
        super().__init__(list_type(kind, kind.value_field.with_type(inner.arrow)))
        item = FormPart("item", inner, nullable=kind.value_field.nullable)
        self._many = Many(str(kind), list, (list, tuple), item)

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        return cast_exactly(self._many.to_arrow(values, zone), self.arrow, nullable=True)


class ArrowMap(ArrowForm):
    """Maps of an Arrow type. They come back as lists of pairs, as Arrow gives them."""

    def __init__(self, kind: pa.DataType) -> None:
        key, inner = form_of_arrow(kind.key_type), form_of_arrow(kind.item_type)
        fields = kind.key_field.with_type(key.arrow), kind.item_field.with_type(inner.arrow)
        super().__init__(pa.map_(*fields))
        item = FormPart("item", inner, nullable=kind.item_field.nullable)
        self._dict = Dict(str(kind), FormPart("key", key), item)

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        dicts = [dict(value) if isinstance(value, list | tuple) else value for value in values]
        return cast_exactly(self._dict.to_arrow(dicts, zone), self.arrow, nullable=True)


def _check_names_once(kind: pa.DataType) -> None:
    """Check that no two fields of a struct have one name.

    Raises:
        PipelineError: if two do.
    """
    names = [field.name for field in kind]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PipelineError(
            f"a struct has {names.count(twice)} fields called {twice!r}",
            remedy="give each field another name",
        )


class ArrowStruct(ArrowForm):
    """Structs of an Arrow type. Values may be dicts, tuples, named tuples or objects."""

    def __init__(self, kind: pa.DataType) -> None:
        _check_names_once(kind)
        parts = [FormPart(f.name, form_of_arrow(f.type), nullable=f.nullable) for f in kind]
        super().__init__(
            pa.struct([f.with_type(of.form.arrow) for f, of in zip(kind, parts, strict=True)])
        )
        self._record = RecordForm(str(kind), parts, accepts=dict, get=by_key, make=_tuple)
        self._names = [part.name for part in parts]
        self._absent = {part.name: None for part in parts if part.nullable}

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        dicts = [self._as_dict(value, row) for row, value in enumerate(values)]
        return self._record.to_arrow(dicts, zone)

    def _as_dict(self, value: Any, row: int) -> dict[str, Any] | None:
        if value is None:
            return None
        names = self._names
        if isinstance(value, tuple):
            own = getattr(value, "_fields", None) or getattr(value, "__fields__", names)
            if len(value) != len(own):
                raise Misfit(
                    row, f"{str(value)[:80]} has {len(value)} values for {len(own)} fields"
                )
            return dict(zip(own, value, strict=True))
        if isinstance(value, Mapping):
            return {**self._absent, **value}
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
