"""Avro schemas as trees: with all names resolved, and what they are called in columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import PipelineError

#: In the place of the default of a field that has none.
REQUIRED = object()
#: The column of messages whose schema is not a record.
VALUE = "value"
#: Most digits of a decimal in a column.
_MOST_DIGITS = 76

_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: (type, logical type) → the type of its columns.
LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    ("string", "uuid"): pa.string(),
    ("fixed", "uuid"): pa.string(),
}


@dataclass(frozen=True)
class Plain:
    """A type without a name, such as ``long``.

    Attributes:
        type: the type.
        logical: what its values stand for; "" for themselves.
        digits: of decimals: how many digits they have, and how many of them behind the point.
    """

    type: str
    logical: str = ""
    digits: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Fixed:
    """Bytes of a fixed number."""

    name: str
    size: int
    logical: str = ""
    digits: tuple[int, int] = (0, 0)
    aliases: tuple[str, ...] = ()
    type: str = "fixed"


@dataclass(frozen=True)
class Enum:
    """One of some texts."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Array:
    """A list."""

    items: Node


@dataclass(frozen=True)
class Map:
    """A map, whose keys are texts."""

    values: Node


@dataclass(frozen=True)
class Union:
    """A value of one of several types."""

    branches: tuple[Node, ...]


@dataclass(frozen=True)
class Again:
    """A record within itself."""

    name: str


@dataclass(frozen=True)
class Field:
    """A field of a record.

    Attributes:
        name: its name.
        node: its type.
        default: its default as in JSON; :data:`REQUIRED` if it has none.
        aliases: names that it had before.
    """

    name: str
    node: Node
    default: Any = REQUIRED
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """Fields with names."""

    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()


Node: TypeAlias = Plain | Fixed | Enum | Array | Map | Union | Again | Record


# -- reading schemas --------------------------------------------------------------------------


def parsed(schema: str | dict[str, Any] | list[Any], references: Sequence[str] = ()) -> Node:
    """Return the tree of a schema.

    Args:
        schema: JSON, or what it stands for; or the name of a type.
        references: the schemas that define names that it uses, each after those that it uses itself.

    Raises:
        PipelineError: if it is no schema.
    """
    import fastavro

    plain = [_loaded(of) for of in (*references, schema)]
    known: dict[str, Any] = {}
    try:
        for one in plain:
            fastavro.parse_schema(one, named_schemas=known)
        reader = _Reader()
        node: Node = [reader.node(one, "") for one in plain][-1]
    except Exception as error:  # (fastavro raises what its own code does)
        raise PipelineError(
            f"this is no schema of Avro: {type(error).__name__}: {error}",
            remedy="give JSON as in a .avsc file",
        ) from None
    return node


def _loaded(schema: str | dict[str, Any] | list[Any]) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError:
        return schema.strip()


class _Reader:
    """Makes trees of JSON. It knows the types that were named before."""

    def __init__(self) -> None:
        self._known: dict[str, Node] = {}

    def node(self, schema: Any, namespace: str) -> Node:
        if isinstance(schema, list):
            return Union(tuple(self.node(of, namespace) for of in schema))
        if isinstance(schema, str):
            return self._named(schema, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, namespace)
        match kind:
            case "array":
                return Array(self.node(schema["items"], namespace))
            case "map":
                return Map(self.node(schema["values"], namespace))
            case "record" | "error" | "enum" | "fixed":
                return self._with_name(kind, schema, namespace)
        if kind in _PLAIN:
            return Plain(kind, *_logical(kind, schema, 0))
        return self._named(kind, namespace)

    def _named(self, name: str, namespace: str) -> Node:
        if name in _PLAIN:
            return Plain(name)
        return self._known.get(_full(name, namespace)) or self._known[name]

    def _with_name(self, kind: str, schema: dict[str, Any], namespace: str) -> Node:
        name = _full(schema["name"], schema.get("namespace", namespace))
        inner, _, _ = name.rpartition(".")
        aliases = tuple(_full(of, inner) for of in schema.get("aliases", ()))
        node: Node
        if kind == "fixed":
            size = schema["size"]
            node = Fixed(name, size, *_logical(kind, schema, size), aliases=aliases)
        elif kind == "enum":
            node = Enum(name, tuple(schema["symbols"]), schema.get("default"), aliases)
        else:
            self._known[name] = Again(name)
            fields = tuple(self._field(of, inner) for of in schema["fields"])
            node = Record(name, fields, aliases)
        self._known[name] = node
        return node

    def _field(self, field: dict[str, Any], namespace: str) -> Field:
        node = self.node(field["type"], namespace)
        aliases = tuple(field.get("aliases", ()))
        return Field(field["name"], node, field.get("default", REQUIRED), aliases)


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(kind: str, schema: dict[str, Any], size: int) -> tuple[str, tuple[int, int]]:
    """Return a type's logical type and digits. One that is not known or not valid is ignored."""
    logical = schema.get("logicalType", "")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits, behind = schema.get("precision", 0), schema.get("scale", 0)
        most = len(str(2 ** (8 * size - 1))) - 1 if size else digits
        if isinstance(digits, int) and 0 <= behind <= digits <= most and digits > 0:
            return logical, (digits, behind)
    if (kind, logical) in LOGICAL and not (kind == "fixed" and size != 16):
        return logical, (0, 0)
    return "", (0, 0)


# -- what schemas are in columns --------------------------------------------------------------


def optional(node: Node) -> tuple[Node, bool]:
    """Return a type without null, and whether null is allowed beside it."""
    if isinstance(node, Union) and len(node.branches) == 2 and Plain("null") in node.branches:
        first, second = node.branches
        return (second if first == Plain("null") else first), True
    return node, node == Plain("null")


def why_not(node: Node) -> str | None:
    """Return why there are no columns for a type; None if there are."""
    inner, _ = optional(node)
    match inner:
        case Union():
            return "it is a union of several types"
        case Again(name):
            return f"{name} is a record within itself"
        case Plain("bytes", "decimal", digits) | Fixed(digits=digits) if digits[0] > _MOST_DIGITS:
            return f"it has {digits[0]} digits, and columns at most {_MOST_DIGITS}"
        case Array(items):
            if not _least_bytes(items):
                # (a few bytes could stand for any number of them)
                return "its items take no bytes"
            return why_not(items)
        case Map(values):
            return why_not(values)
        case Record(_, fields):
            if not fields:
                return "it is a record without fields"
            return next((why for why in (why_not(field.node) for field in fields) if why), None)
    return None


def is_endless(node: Node) -> bool:
    """Return whether a few bytes can stand for any number of items, so that reading would not end."""
    return any(isinstance(of, Array) and not _least_bytes(of.items) for of in nodes_in(node))


def _least_bytes(node: Node) -> int:
    match node:
        case Plain("null"):
            return 0
        case Fixed(size=size):
            return size
        case Record(_, fields):
            return sum(_least_bytes(field.node) for field in fields)
    return 1


def column_type(node: Node, *, stored: bool = False) -> pa.DataType:
    """Return the type of a column.

    Args:
        node: a type that has one.
        stored: return the type of what Avro stores, without what it stands for.
    """
    inner, _ = optional(node)
    match inner:
        case Plain(kind, logical, digits):
            return _PLAIN[kind] if stored or not logical else _stands_for(kind, logical, digits)
        case Fixed(_, size, logical, digits):
            return (
                pa.binary(size) if stored or not logical else _stands_for("fixed", logical, digits)
            )
        case Enum():
            return pa.string()
        case Array(items):
            return pa.list_(column_field("item", items, stored=stored))
        case Map(values):
            return pa.map_(pa.string(), column_field("value", values, stored=stored))
        case Record(_, fields):
            return pa.struct([column_field(of.name, of.node, stored=stored) for of in fields])
    raise AssertionError(why_not(node))


def column_field(name: str, node: Node, *, stored: bool = False) -> pa.Field:
    """Return a column; see :func:`column_type`."""
    return pa.field(name, column_type(node, stored=stored), nullable=optional(node)[1])


def _stands_for(kind: str, logical: str, digits: tuple[int, int]) -> pa.DataType:
    if logical == "decimal":
        return (pa.decimal128 if digits[0] <= 38 else pa.decimal256)(*digits)
    return LOGICAL[kind, logical]


# -- schemas for libraries --------------------------------------------------------------------


def as_json(node: Node, *, bytes_type: str = "bytes", known: set[str] | None = None) -> Any:
    """Return the schema of what is stored, without logical types, as in JSON.

    Args:
        node: the type.
        bytes_type: what bytes are called. (Texts are stored alike.)
        known: the names of types that were defined before.
    """
    known = set() if known is None else known

    def inner(of: Node) -> Any:
        return as_json(of, bytes_type=bytes_type, known=known)

    match node:
        case Plain(kind):
            return bytes_type if kind == "bytes" else kind
        case Array(items):
            return {"type": "array", "items": inner(items)}
        case Map(values):
            return {"type": "map", "values": inner(values)}
        case Union(branches):
            return [inner(of) for of in branches]
        case Again(name):
            return name
    if node.name in known:
        return node.name
    known.add(node.name)
    found: dict[str, Any] = {"name": node.name, "aliases": list(node.aliases)}
    match node:
        case Fixed(size=size):
            return {**found, "type": "fixed", "size": size}
        case Enum(symbols=symbols, default=default):
            if default is not None:
                found["default"] = default
            return {**found, "type": "enum", "symbols": list(symbols)}
    fields = []
    for field in node.fields:
        made = {"name": field.name, "type": inner(field.node), "aliases": list(field.aliases)}
        if field.default is not REQUIRED:
            made["default"] = field.default
        fields.append(made)
    return {**found, "type": "record", "fields": fields}


def as_record(node: Node) -> Record:
    """Return a record: for another type, one with it as the only field. They are stored alike."""
    if isinstance(node, Record):
        return node
    return Record("headrace.Value", (Field(VALUE, node),))


def bare(node: Node) -> Node:
    """Return a type without what does not change how it is stored: defaults, aliases."""
    match node:
        case Array(items):
            return Array(bare(items))
        case Map(values):
            return Map(bare(values))
        case Union(branches):
            return Union(tuple(map(bare, branches)))
        case Fixed():
            return replace(node, aliases=())
        case Enum():
            return replace(node, aliases=(), default=None)
        case Record(name, fields):
            return Record(name, tuple(Field(of.name, bare(of.node)) for of in fields))
    return node


def nodes_in(node: Node) -> Iterator[Node]:
    """Return a type, and all types within it."""
    yield node
    match node:
        case Array(inner) | Map(inner):
            yield from nodes_in(inner)
        case Union(branches):
            for of in branches:
                yield from nodes_in(of)
        case Record(_, fields):
            for field in fields:
                yield from nodes_in(field.node)


def matching(field: Field, among: Sequence[Field]) -> Field | None:
    """Return the field of a writer that a reader's field is read from; None if there is none."""
    by_name = {of.name: of for of in among}
    return next((by_name[of] for of in (field.name, *field.aliases) if of in by_name), None)


def conflict(writer: Node, reader: Node, path: str) -> str | None:
    """Return where values of a writer stand for something else than those of a reader; else None.

    Avro itself resolves what is stored. Milliseconds would so be read as microseconds.
    """
    writer, reader = optional(writer)[0], optional(reader)[0]
    match writer, reader:
        case ((Plain() | Fixed()), (Plain() | Fixed())):
            theirs, ours = (writer.logical, writer.digits), (reader.logical, reader.digits)
            if all((writer.logical, reader.logical)) and theirs != ours:
                return f"{path} is written as {_logical_text(*theirs)}, and read as {_logical_text(*ours)}"
        case (Array(one), Array(other)) | (Map(one), Map(other)):
            return conflict(one, other, f"{path}[]")
        case Record(_, theirs), Record(_, ours):
            for field in ours:
                there = matching(field, theirs)
                inner = f"{path}.{field.name}" if path else field.name
                found = there and conflict(there.node, field.node, inner)
                if found:
                    return found
    return None


def _logical_text(logical: str, digits: tuple[int, int]) -> str:
    return f"{logical}{digits}" if logical == "decimal" else logical
