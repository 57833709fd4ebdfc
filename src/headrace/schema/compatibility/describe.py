"""Describes a Python type as a shape.

A scalar is its name (``"int"``). Everything else is an object whose ``is`` says what it is::

    {"is": "record", "name": "Model", "fields": [
        {"name": "n", "of": "int"}, {"name": "x", "of": "float", "default": 0.0}]}

If a class occurs again within a shape, only its name is given:
``{"is": "again", "name": "Model"}``. Docstrings are left out. The names of records and enums are
only for people: renaming one is not a difference.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import inspect

Shape = Any

#: Defaults whose JSON is longer are kept as a digest.
_LONGEST_DEFAULT = 80
_SCALARS: dict[type[inspect.Type], str] = {
    inspect.AnyType: "any",
    inspect.BoolType: "bool",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytearray",
    inspect.MemoryViewType: "memoryview",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.DecimalType: "decimal",
    inspect.ExtType: "ext",
    inspect.FloatType: "float",
    inspect.IntType: "int",
    inspect.NoneType: "none",
    inspect.RawType: "raw",
    inspect.StrType: "str",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "uuid",
}
_COLLECTIONS: dict[type[inspect.Type], str] = {
    inspect.ListType: "list",
    inspect.SetType: "set",
    inspect.FrozenSetType: "frozenset",
    inspect.VarTupleType: "tuple",
    inspect.CollectionType: "collection",
}
#: Limits that a type may have, such as bounds.
_LIMITS = (
    "gt",
    "ge",
    "lt",
    "le",
    "multiple_of",
    "min_length",
    "max_length",
    "pattern",
    "tz",
)


def shape_of_type(declared: Any) -> Shape:
    """Return the shape of a type, exactly as it is read back from JSON.

    Raises:
        TypeError: for a type that msgspec does not know.
    """
    shape = _Walk().shape(inspect.type_info(declared))
    return msgspec.json.decode(msgspec.json.encode(shape))


class _Walk:
    """One walk through a type. A class is described where it first occurs."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def shape(self, kind: Any) -> Shape:
        if isinstance(kind, inspect.Metadata):  # (only for documentation)
            return self.shape(kind.type)
        name = _SCALARS.get(type(kind))
        if name is not None:
            limits = _limits_of(kind)
            return {"is": name, **limits} if limits else name
        if type(kind) in _COLLECTIONS:
            of = self.shape(kind.item_type)
            return {"is": _COLLECTIONS[type(kind)], "of": of, **_limits_of(kind)}
        if isinstance(kind, inspect.UnionType | inspect.LiteralType):
            return _union(self._members(kind))
        if isinstance(kind, inspect.TupleType):
            return {"is": "fixed tuple", "each": [self.shape(item) for item in kind.item_types]}
        if isinstance(kind, inspect.DictType):
            keys, of = self.shape(kind.key_type), self.shape(kind.value_type)
            return {"is": "dict", "keys": keys, "of": of, **_limits_of(kind)}
        return self._named(kind)

    def _members(self, kind: Any) -> list[Shape]:
        """Return the members of a union. A literal is divided into integers, texts and None."""
        if isinstance(kind, inspect.UnionType):
            return [member for each in kind.types for member in self._members(each)]
        if not isinstance(kind, inspect.LiteralType):
            return [self.shape(kind)]
        parts = [sorted(v for v in kind.values if type(v) is of) for of in (int, str)]
        none: list[Shape] = ["none"] if None in kind.values else []
        return [{"is": "literal", "each": part} for part in parts if part] + none

    def _named(self, kind: Any) -> Shape:
        cls = getattr(kind, "cls", None)
        if cls is None:
            return {"is": type(kind).__name__}
        if cls in self._names:
            return {"is": "again", "name": self._names[cls]}
        name = self._names[cls] = self._name_of(cls)
        if isinstance(kind, inspect.EnumType):
            values = sorted({member.value for member in cls}, key=lambda v: (str(type(v)), v))
            return {"is": "enum", "name": name, "each": values}
        if isinstance(kind, inspect.StructType):
            is_ = "array record" if kind.array_like else "record"
            tag = {} if kind.tag_field is None else {"tagged": [kind.tag_field, kind.tag]}
            return {"is": is_, "name": name, **tag, "fields": self._fields(kind)}
        if isinstance(kind, inspect.DataclassType):
            return {"is": "record", "name": name, "fields": self._fields(kind)}
        if isinstance(kind, inspect.TypedDictType):
            return {"is": "typed dict", "name": name, "fields": self._fields(kind)}
        if isinstance(kind, inspect.NamedTupleType):
            return {"is": "named tuple", "name": name, "fields": self._fields(kind)}
        return {"is": type(kind).__name__, "name": name}

    def _name_of(self, cls: Any) -> str:
        name = getattr(cls, "__name__", None) or repr(cls)
        same = sum(known.partition("#")[0] == name for known in self._names.values())
        return f"{name}#{same + 1}" if same else name

    def _fields(self, kind: Any) -> list[Shape]:
        return [
            {"name": field.encode_name, "of": self.shape(field.type), **_default_of(field)}
            for field in kind.fields
        ]


def _union(members: list[Shape]) -> Shape:
    unique = {msgspec.json.encode(member): member for member in members}
    if len(unique) == 1:
        return members[0]
    # (in the order of declaration, since a class is described where it first occurs)
    return {"is": "union", "each": list(unique.values())}


def _limits_of(kind: Any) -> dict[str, Any]:
    found = {name: getattr(kind, name, None) for name in _LIMITS}
    return {name: limit for name, limit in found.items() if limit is not None}


def _default_of(field: inspect.Field) -> dict[str, Any]:
    """Return a description of the value that a field has where it is not stored."""
    if field.default_factory is not msgspec.NODEFAULT:
        factory = field.default_factory
        return {"made by": getattr(factory, "__qualname__", type(factory).__qualname__)}
    if field.default is not msgspec.NODEFAULT:
        return {"default": _plain(field.default)}
    return {} if field.required else {"optional": True}


def _plain(default: Any) -> Any:
    try:
        plain = msgspec.to_builtins(default, order="deterministic")
        encoded = msgspec.json.encode(plain)
    except (TypeError, msgspec.MsgspecError):
        return {"of type": type(default).__qualname__}
    if len(encoded) <= _LONGEST_DEFAULT:
        return plain
    return {"digest": hashlib.blake2b(encoded, digest_size=8).hexdigest()}
