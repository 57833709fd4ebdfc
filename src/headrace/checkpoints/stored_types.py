"""Arrow types from the texts with which the stored schema describes the columns of a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from headrace.errors import Damaged

_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
_DECIMAL = re.compile(r"(decimal(?:32|64|128|256))\((\d+), (-?\d+)\)")
_BYTES = re.compile(r"fixed_size_binary\[(\d+)\]")
_NESTED = re.compile(r"(large_list|list|map|struct)<(.*)>", re.DOTALL)
_LISTS = {"list": pa.list_, "large_list": pa.large_list}
_NOT_NULL = " not null"


def columns_of(texts: Mapping[str, str], place: str) -> pa.Schema:
    """Return the columns of a stream; the inverse of :func:`headrace.schema.describe`.

    Args:
        texts: column name → type.
        place: the stream, for errors.

    Raises:
        Damaged: for a text that stands for no type of Arrow.
    """
    return pa.schema([_field(name, text, place) for name, text in texts.items()])


def _field(name: str, text: str, place: str) -> pa.Field:
    plain = text.removesuffix(_NOT_NULL)
    try:
        kind = _type(plain)
    except (ValueError, RecursionError):
        kind = None
    if kind is None or str(kind) != plain:
        raise Damaged(
            f"{text[:80]!a} is not a type of column {name!r}",
            place=place,
            remedy="read the stream with the version of pyarrow with which the pipeline runs",
        )
    return pa.field(name, kind, nullable=plain == text)


def _type(text: str) -> pa.DataType:
    """Return a type by its text.

    >>> str(_type("map<string, list<item: timestamp[us, tz=UTC] not null>>"))
    'map<string, list<item: timestamp[us, tz=UTC] not null>>'
    """
    if zoned := _ZONED.fullmatch(text):
        return pa.timestamp(zoned[1], tz=zoned[2])
    if decimal := _DECIMAL.fullmatch(text):
        return getattr(pa, decimal[1])(int(decimal[2]), int(decimal[3]))
    if fixed := _BYTES.fullmatch(text):
        return pa.binary(int(fixed[1]))
    nested = _NESTED.fullmatch(text)
    if nested is None:
        return pa.type_for_alias(text)
    parts = _parts(nested[2])
    if nested[1] == "struct":
        return pa.struct([_named(part) for part in parts])
    if nested[1] == "map":
        key, item = parts
        return pa.map_(_type(key), _type(item))
    (item,) = parts
    return _LISTS[nested[1]](_named(item))


def _named(text: str) -> pa.Field:
    name, separator, kind = text.partition(": ")
    if not separator:
        raise ValueError(text)
    plain = kind.removesuffix(_NOT_NULL)
    return pa.field(name, _type(plain), nullable=plain == kind)


def _parts(text: str) -> list[str]:
    """Return the parts of a text between commas, where commas within brackets do not count."""
    found, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 2
    return [*found, text[begin:]] if text else []
