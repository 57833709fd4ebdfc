"""The order in which Spark iterates over a map: that of the bytes of its keys' ``UnsafeRow``.

An ``UnsafeRow`` (``org.apache.spark.sql.catalyst.expressions.UnsafeRow``) has a bit for each field
that is null, in words of eight bytes; then eight bytes a field, little-endian; then the content of
texts and bytes, each padded to whole words. A field of varying length says where its content is
and how long it is.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

_WORD = 8
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()


def unsafe_row(values: Sequence[Any], *, small: Sequence[int]) -> bytes:
    """Return the bytes of a row.

    Args:
        values: its fields, as state keeps them.
        small: for each field, how many bytes of its word are used; 8 if it is not a number.
    """
    bits = (len(values) + 63) // 64 * _WORD
    offset = bits + _WORD * len(values)
    nulls, words, content = 0, [], b""
    for number, (value, size) in enumerate(zip(values, small, strict=True)):
        if value is None:
            nulls |= 1 << number
            words.append(bytes(_WORD))
            continue
        data = _fixed(value, size)
        if data is None:
            data = _varying(value)
            words.append(struct.pack("<II", len(data), offset + len(content)))
            content += data + bytes(-len(data) % _WORD)
        else:
            words.append(data.ljust(_WORD, b"\0"))
    return nulls.to_bytes(bits, "little") + b"".join(words) + content


def _fixed(value: Any, size: int) -> bytes | None:
    """Return a value that fits a word; None for one that does not."""
    match value:
        case bool():
            return bytes([value])
        case int():
            return value.to_bytes(size, "little", signed=True)
        case float():
            return struct.pack("<f" if size == 4 else "<d", value)
        case dt.datetime():
            at = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
            return ((at - _EPOCH) // dt.timedelta(microseconds=1)).to_bytes(
                8, "little", signed=True
            )
        case dt.date():
            return (value.toordinal() - _EPOCH_DAY).to_bytes(4, "little", signed=True)
        case dt.timedelta():
            return (value // dt.timedelta(microseconds=1)).to_bytes(8, "little", signed=True)
    return None


def _varying(value: Any) -> bytes:
    match value:
        case str():
            return value.encode()
        case bytes():
            return value
        case Decimal():
            unscaled = int(value.scaleb(-int(value.as_tuple().exponent)))
            return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    return repr(value).encode()
