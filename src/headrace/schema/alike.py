"""Checks that a value survives encoding unchanged, and encodes equal values as equal bytes.

MessagePack and JSON write a ``Decimal``, a UUID and an enum's member as text, and tuples and sets
as lists. Where no declared type says what these were, they come back as something else.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from headrace.schema.numbers import plain_number

#: Encodes values whose dicts have only text keys, and whose sets have elements of one type.
PLAIN = msgspec.msgpack.Encoder(order="deterministic", enc_hook=plain_number)
_AS_IT_IS = msgspec.msgpack.Encoder(enc_hook=plain_number)
_SETS = (set, frozenset)
_TEXTS = frozenset((str,))
#: Types without parts: if two values are of the same one of these, nothing more is compared.
_ATOMS = frozenset((str, int, float, bool, bytes, type(None)))


def encoded(value: Any) -> bytes:
    """Return a value in MessagePack, with dicts ordered by key and sets by element.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: for a value that cannot be written.
    """
    try:
        return PLAIN.encode(value)
    except TypeError:  # (it can order only text keys, and elements of one type)
        return _AS_IT_IS.encode(in_order(value))


def in_order(value: Any) -> Any:
    """Return an equally encoded value, with dicts and sets in the order of their encodings."""
    if isinstance(value, dict):
        items = [(in_order(key), in_order(item)) for key, item in value.items()]
        return dict(sorted(items, key=lambda item: _AS_IT_IS.encode(item[0])))
    if isinstance(value, _SETS):
        return tuple(sorted(map(in_order, value), key=_AS_IT_IS.encode))
    if isinstance(value, list | tuple):
        return tuple(map(in_order, value))
    if isinstance(value, msgspec.Struct):
        made = copy.copy(value)
        for name in value.__struct_fields__:
            msgspec.structs.force_setattr(made, name, in_order(getattr(value, name)))
        return made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(other, field.name, in_order(getattr(value, field.name)))
        return other
    return value


def same_value(value: Any, other: Any) -> bool:
    """Return whether two values are the same to the last bit, NaN and types included.

    Raises:
        TypeError, ValueError, OverflowError, RecursionError: for a value that cannot be written.
    """
    return encoded(value) == encoded(other) and same_types(value, other)


def same_types(value: Any, kept: Any) -> bool:
    """Return whether a value that was written and read again kept its types, at any depth.

    Some differences pass, because only a declared type brings them about: an integer kept as a
    float, a mapping kept as a class with fields, a list kept as a tuple, and a set kept as a
    frozenset or the reverse.

    Args:
        value: what was written.
        kept: what was read again.
    """
    if type(value) is type(kept) and type(kept) in _ATOMS:
        return True
    value = plain_number(value, strict=False)
    if isinstance(kept, float):
        return isinstance(value, float | int) and not isinstance(value, bool)
    if isinstance(kept, dict):
        return type(value) is type(kept) and _same_items(value, kept)
    if isinstance(kept, tuple):
        return isinstance(value, tuple | list) and _same_each(value, kept)
    if isinstance(kept, _SETS):
        return isinstance(value, _SETS) and _same_each(_sorted(value), _sorted(kept))
    if isinstance(kept, msgspec.Struct):
        names = zip(kept.__struct_fields__, kept.__struct_encode_fields__, strict=True)
        return _same_fields(value, kept, names)
    if dataclasses.is_dataclass(kept):
        return _same_fields(value, kept, [(f.name, f.name) for f in dataclasses.fields(kept)])
    if type(value) is not type(kept):
        return False
    return _same_each(value, kept) if isinstance(kept, list) else True


def _same_each(values: Any, kept: Any) -> bool:
    return len(values) == len(kept) and all(map(same_types, values, kept))


def _same_items(values: dict[Any, Any], kept: dict[Any, Any]) -> bool:
    if not _TEXTS.issuperset(map(type, values)):
        mine, its = ([x for key in _sorted(of) for x in (key, of[key])] for of in (values, kept))
        return _same_each(mine, its)
    return values.keys() == kept.keys() and all(
        map(same_types, values.values(), map(kept.__getitem__, values))
    )


def _sorted(values: Any) -> list[Any]:
    return sorted(values, key=encoded)


def _same_fields(value: Any, kept: Any, names: Iterable[tuple[str, str]]) -> bool:
    if isinstance(value, Mapping):
        return all(
            same_types(value[outside], getattr(kept, name))
            for name, outside in names
            if outside in value
        )
    return type(value) is type(kept) and all(
        same_types(getattr(value, name), getattr(kept, name)) for name, _ in names
    )


def may_hold(wanted: Any, declared: Any, known: dict[int, Any] | None = None) -> bool:
    """Return whether values of a declared type may contain values of a plain type.

    Args:
        wanted: the plain type.
        declared: the declared type.
        known: the types that were looked at so far, by id.
    """
    known = {} if known is None else known
    if declared is wanted:
        return True
    if id(declared) in known:
        return False
    known[id(declared)] = declared  # (kept alive here, so that no other type gets its id)
    if isinstance(declared, typing.TypeVar):
        return wanted is Any
    inner = list(typing.get_args(declared))
    behind = getattr(declared, "__supertype__", None) or getattr(declared, "__value__", None)
    origin = typing.get_origin(declared)
    kind = declared if isinstance(declared, type) else origin
    if behind is not None:
        inner.append(behind)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        inner += [field.type for field in msgspec.structs.fields(declared)]
    elif isinstance(kind, type) and (dataclasses.is_dataclass(kind) or _has_hints(kind)):
        inner += typing.get_type_hints(kind).values()
    return any(may_hold(wanted, one, known) for one in inner)


def _has_hints(kind: type) -> bool:
    return typing.is_typeddict(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def names_no_zone(value: Any) -> bool:
    """Return whether a value is, or contains, a ``datetime`` without a time zone."""
    if isinstance(value, datetime):
        return value.utcoffset() is None
    if isinstance(value, Mapping):
        return any(map(names_no_zone, value)) or any(map(names_no_zone, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(names_no_zone, value))
    if isinstance(value, msgspec.Struct):
        return any(names_no_zone(getattr(value, name)) for name in value.__struct_fields__)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(names_no_zone(getattr(value, field.name)) for field in dataclasses.fields(value))
    return False
