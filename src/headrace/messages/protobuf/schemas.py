"""Descriptors of Protobuf as trees, and copies of them that say only what is stored.

In a copy, enums are numbers, and times are seconds and nanoseconds. The library that makes columns so
has nothing to interpret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

#: Numbers of types in descriptors.
_GROUP, _MESSAGE, _ENUM, _INT32 = 10, 11, 14, 5
_REPEATED = 3
_PLAIN: dict[int, pa.DataType] = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.uint64(),
    5: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.uint32(),
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
_TIMES = {
    "google.protobuf.Timestamp": pa.timestamp("us", "UTC"),
    "google.protobuf.Duration": pa.duration("us"),
}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}


@dataclass(frozen=True)
class Plain:
    """A number, a text, bytes or a boolean.

    Attributes:
        number: the number of the type in descriptors.
        symbols: of an enum: (number, name) of each of its values.
    """

    number: int
    symbols: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Time:
    """A point in time or a duration, which are messages of seconds and nanoseconds."""

    name: str


@dataclass(frozen=True)
class Wrapper:
    """A value in a message of its own, so that it can be absent."""

    inner: Plain


@dataclass(frozen=True)
class Many:
    """A repeated field."""

    item: Node


@dataclass(frozen=True)
class Map:
    """A map."""

    key: Plain
    value: Node


@dataclass(frozen=True)
class Unreadable:
    """What has no column, and why."""

    why: str


@dataclass(frozen=True)
class Field:
    """A field of a message.

    Attributes:
        name: its name.
        number: its number.
        node: its type.
        nullable: whether it can be absent.
        oneof: the name of the group of fields of which one can be there; "" for none.
    """

    name: str
    number: int
    node: Node
    nullable: bool
    oneof: str = ""


@dataclass(frozen=True)
class Record:
    """A message."""

    name: str
    fields: tuple[Field, ...]


#: What a column holds: what values stand for, or what is stored, as it is read or written.
Form = Literal["column", "read", "written"]
Node: TypeAlias = Plain | Time | Wrapper | Many | Map | Unreadable | Record


def tree_of(descriptor: Any, within: tuple[str, ...] = ()) -> Record:
    """Return a message's tree.

    Args:
        descriptor: the message.
        within: the messages that it is within.
    """
    inner = (*within, descriptor.full_name)
    fields = sorted(descriptor.fields, key=lambda of: of.number)  # (as ptars gives columns)
    return Record(descriptor.full_name, tuple(_field(of, inner) for of in fields))


def _field(field: Any, within: tuple[str, ...]) -> Field:
    oneof = field.containing_oneof
    named = oneof is not None and not _is_synthetic(oneof)
    if field.is_repeated:
        node = _map(field, within) if _is_map(field) else Many(_single(field, within))
        return Field(field.name, field.number, node, nullable=False)
    return Field(
        field.name,
        field.number,
        _single(field, within),
        nullable=field.has_presence,
        oneof=oneof.name if named else "",
    )


def _is_synthetic(oneof: Any) -> bool:
    """Return whether a group stands for nothing but the word ``optional``."""
    (first, *others) = oneof.fields
    return not others and oneof.name == f"_{first.name}"


def _is_map(field: Any) -> bool:
    return bool(field.type == _MESSAGE and field.message_type.GetOptions().map_entry)


def _map(field: Any, within: tuple[str, ...]) -> Node:
    key, value = (field.message_type.fields_by_name[of] for of in ("key", "value"))
    found = _single(key, within)
    assert isinstance(found, Plain)
    return Map(found, _single(value, within))


def _single(field: Any, within: tuple[str, ...]) -> Node:
    if field.type == _ENUM:
        symbols: dict[int, str] = {}
        for of in field.enum_type.values:
            symbols.setdefault(of.number, of.name)
        return Plain(_ENUM, tuple(symbols.items()))
    if field.type in _PLAIN:
        return Plain(field.type)
    if field.type == _GROUP:
        return Unreadable("it is a group")
    message = field.message_type
    if message.full_name in _TIMES:
        return Time(message.full_name)
    if message.full_name in _WRAPPERS:
        return Wrapper(Plain(message.fields[0].type))
    if message.full_name in within:
        return Unreadable(f"{message.full_name} is a message within itself")
    if not message.fields:
        return Unreadable(f"{message.full_name} has no fields")
    return tree_of(message, within)


def why_not(node: Node) -> str | None:
    """Return why there is no column for a type; None if there is one."""
    match node:
        case Unreadable(why):
            return why
        case Many(inner) | Map(value=inner):
            return why_not(inner)
        case Record(_, fields):
            return next((why for why in (why_not(of.node) for of in fields) if why), None)
    return None


# -- columns ----------------------------------------------------------------------------------


def column_type(node: Node, form: Form = "column") -> pa.DataType:
    """Return the type of a column.

    Args:
        node: a type that has one.
        form: whether it holds what values stand for, or what is stored, as it is read or written.
    """
    match node:
        case Plain(number):
            if number != _ENUM:
                return _PLAIN[number]
            return pa.string() if form == "column" else pa.int32()
        case Time(name):
            return _TIMES[name] if form == "column" else STORED_TIME
        case Wrapper(inner):
            kind = column_type(inner, form)
            return kind if form == "column" else pa.struct([_item("value", kind)])
        case Many(item):
            return pa.list_(_item("item", column_type(item, form)))
        case Map(key, value):
            kind = column_type(value, form)
            if form == "written":
                return pa.list_(_item("item", entry_type(column_type(key), kind)))
            return pa.map_(column_type(key), _item("value", kind))
        case Record():
            return pa.struct([column_field(of, form) for of in node.fields])
    raise AssertionError(why_not(node))


def column_field(field: Field, form: Form = "column") -> pa.Field:
    """Return a column; see :func:`column_type`."""
    return pa.field(field.name, column_type(field.node, form), nullable=field.nullable)


def entry_type(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Return the type of a map's entries, which are stored as messages of their own."""
    return pa.struct([_item("key", key), _item("value", value)])


def _item(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


#: How times and durations are stored.
STORED_TIME = pa.struct(
    [pa.field("seconds", pa.int64(), nullable=False), pa.field("nanos", pa.int32(), nullable=False)]
)


# -- copies of descriptors --------------------------------------------------------------------


def copied(record: Record, *, written: bool) -> Any:
    """Return a file with a copy of a message, which is its first one, and of those within it.

    Args:
        record: the message.
        written: whether it is for writing. All fields can then be absent, so that those that are there
            are written even if they are zero.
    """
    from google.protobuf import descriptor_pb2

    name = f"headrace_{'written' if written else 'read'}.proto"
    file = descriptor_pb2.FileDescriptorProto(name=name, package="headrace", syntax="proto3")
    _Copy(file, written).message(record)
    return file


class _Copy:
    """Adds copies of messages to a file, each under a number."""

    def __init__(self, file: Any, written: bool) -> None:
        self._file, self._written = file, written

    def message(self, record: Record) -> str:
        """Add a message; return its name."""
        made = self._new()
        for field in record.fields:
            self._add(made, field)
        return str(made.name)

    def _new(self) -> Any:
        return self._file.message_type.add(name=f"M{len(self._file.message_type)}")

    def _add(self, message: Any, field: Field) -> None:
        made = message.field.add(name=field.name, number=field.number, label=1)
        match field.node:
            case Many(item):
                made.label = _REPEATED
                self._set_type(made, item)
            case Map(key, value) if self._written:
                # (in an entry of a map, minus zero would become zero)
                made.label = _REPEATED
                fields = (Field("key", 1, key, False), Field("value", 2, value, False))
                self._set_type(made, Record("", fields))
            case Map(key, value):
                made.label, made.type = _REPEATED, _MESSAGE
                entry = message.nested_type.add(name=f"{_camel(field.name)}Entry")
                entry.options.map_entry = True
                self._set_type(entry.field.add(name="key", number=1, label=1), key)
                self._set_type(entry.field.add(name="value", number=2, label=1), value)
                made.type_name = f".headrace.{message.name}.{entry.name}"
            case _:
                self._set_type(made, field.node)
                if made.type != _MESSAGE and (field.nullable or self._written):
                    made.proto3_optional = True
                    made.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{field.name}")

    def _set_type(self, made: Any, node: Node) -> None:
        if isinstance(node, Plain):
            made.type = _INT32 if node.number == _ENUM else node.number
            return
        made.type = _MESSAGE
        made.type_name = f".headrace.{self._named(node)}"

    def _named(self, node: Node) -> str:
        if isinstance(node, Record):
            return self.message(node)
        if isinstance(node, Time):
            fields = (("seconds", Plain(3)), ("nanos", Plain(5)))
            return self.message(
                Record(
                    "",
                    tuple(Field(of, at + 1, kind, False) for at, (of, kind) in enumerate(fields)),
                )
            )
        assert isinstance(node, Wrapper)
        return self.message(Record("", (Field("value", 1, node.inner, nullable=False),)))


def _camel(name: str) -> str:
    """Return the name that a map's entries have for a field."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
