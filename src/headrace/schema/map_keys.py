"""Keys of a map in storage: keys that are equal in Python are encoded as the same bytes.

A map in memory compares keys by equality. Its rows in storage are compared by bytes. ``1`` equals
``1.0``, ``-0.0`` equals ``0.0``, and ``Decimal("100.00")`` equals ``Decimal("100.0")``. Encoded as
they are, each of these pairs would be two rows.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from headrace.errors import PipelineError
from headrace.schema.codecs import StateCodec

#: Types whose equal values are always encoded alike.
_PLAIN: tuple[Any, ...] = (int, str, bytes, bool)

#: Most zeros with which a decimal is written out before its point. Beyond, it gets an exponent.
_PLAIN_ZEROS = 20
#: Types that may hold values of any type.
_OF_ANY: tuple[Any, ...] = (Any, object, tuple, frozenset)
_NUMBERS: set[Any] = {int, float, bool, Decimal}
#: Bounds of the integers that can be encoded. A float beyond them equals none of these.
_LEAST, _END = -(2**63), 2**64


class MapKeyCodec(StateCodec):
    """Encodes the keys of a map. Equal keys become the same bytes."""

    def __init__(self, declared: Any, *, place: str) -> None:
        super().__init__(declared, None, place=place)
        self._plain = declared in _PLAIN
        self._mixed = False
        if any(of in _OF_ANY or isinstance(of, typing.TypeVar) for of in _types_in(declared)):
            raise PipelineError(
                f"{declared!r} cannot be the key of a map: values of several types may be equal",
                place=place,
                remedy="say of which type keys are",
            )
        for of in _unions_in(declared):
            numbers = _NUMBERS & set(of)
            self._mixed |= numbers == {int, float}
            if len(numbers) > 1 and numbers != {int, float}:
                raise PipelineError(
                    f"{declared!r} cannot be the key of a map: numbers of several types may be equal",
                    place=place,
                    remedy="use one type of number, or int | float",
                )

    def keep(self, value: Any) -> tuple[bytes, Any]:
        data, kept = super().keep(value)
        if self._plain:
            return data, kept
        data = self.encode_kept(kept)
        return data, self.decode(data)

    def encode_kept(self, value: Any) -> bytes:
        return super().encode_kept(
            value if self._plain else _one_of_equals(value, mixed=self._mixed)
        )


def _one_of_equals(value: Any, *, mixed: bool) -> Any:
    """Return the representative of all values that are equal to a value.

    Args:
        value: a value of a declared type.
        mixed: whether a float may occur where an integer may.

    Raises:
        ValueError: for a value that is not equal to itself.
    """
    match value:
        case float() | Decimal() if math.isnan(value):
            raise ValueError(
                "NaN cannot be the key of a map: it is equal to nothing, not to itself"
            )
        case float():
            is_one = mixed and value.is_integer() and _LEAST <= value < _END
            return int(value) if is_one else value + 0.0  # (-0.0 + 0.0 is 0.0)
        case int() if not _LEAST <= value < _END:
            return float(value)  # (it was a float: a whole number may be read as an integer)
        case Decimal() if value.is_finite():
            return _shortest(value)
        case tuple():
            return tuple(_one_of_equals(item, mixed=mixed) for item in value)
        case frozenset():
            return frozenset(_one_of_equals(item, mixed=mixed) for item in value)
        case msgspec.Struct():
            fields = {
                name: _one_of_equals(getattr(value, name), mixed=mixed)
                for name in value.__struct_fields__
            }
            return msgspec.structs.replace(value, **fields)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(
                value,
                **{
                    field.name: _one_of_equals(getattr(value, field.name), mixed=mixed)
                    for field in dataclasses.fields(value)
                    if field.init
                },
            )
        case _:
            return value


def _shortest(value: Decimal) -> Decimal:
    """Return the representative of all equal decimals: exact, whatever the decimal context."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    kept = "".join(map(str, digits)).rstrip("0")
    if not kept:
        return Decimal(0)
    exponent += len(digits) - len(kept)
    if 0 < exponent <= _PLAIN_ZEROS:
        kept, exponent = kept + "0" * exponent, 0
    return Decimal((sign, tuple(map(int, kept)), exponent))


def _types_in(declared: Any, known: set[Any] | None = None) -> Iterator[Any]:
    """Yield a type and all types that it is composed of, each once."""
    known = set() if known is None else known
    if declared in known:
        return
    known.add(declared)
    yield declared
    for one in [*typing.get_args(declared), *_field_types(declared)]:
        yield from _types_in(one, known)


def _field_types(declared: Any) -> list[Any]:
    """Return the types of the fields of a class."""
    if not isinstance(declared, type):
        return []
    if issubclass(declared, msgspec.Struct):
        return [field.type for field in msgspec.structs.fields(declared)]
    if dataclasses.is_dataclass(declared):
        names = [field.name for field in dataclasses.fields(declared)]
    elif issubclass(declared, tuple) and hasattr(declared, "_fields"):
        names = list(declared._fields)
    else:
        return []
    hints = typing.get_type_hints(declared)
    return [hints.get(name, Any) for name in names]


def _unions_in(declared: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the members of each union within a type."""
    for one in _types_in(declared):
        if typing.get_origin(one) in (typing.Union, types.UnionType):
            yield typing.get_args(one)
