"""Which message of its schema a message is: numbers before its bytes, as Confluent writes them."""

from __future__ import annotations

import base64
from typing import Any

from headrace.messages.base import Unreadable

_MOST_INDEXES = 100


def indexes_of(descriptor: Any) -> list[int]:
    """Return the places of a message, and of those that it is defined in, from the outermost."""
    found: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        among = outer.nested_types if outer else descriptor.file.message_types_by_name.values()
        names = [of.full_name for of in among]
        found.insert(0, names.index(descriptor.full_name))
        descriptor = outer
    return found


def written(indexes: list[int]) -> bytes:
    """Return places as bytes."""
    if indexes == [0]:
        return b"\0"
    return b"".join(_varint(2 * number) for number in [len(indexes), *indexes])


def split(row: int, message: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the places at the beginning of a message, and what follows.

    Raises:
        Unreadable: if there are none.
    """
    count, at = _read(row, message, 0)
    if count == 0:
        return (0,), message[at:]
    if not 0 < count <= _MOST_INDEXES:
        raise _none(row)
    found = []
    for _ in range(count):
        number, at = _read(row, message, at)
        found.append(number)
    return tuple(found), message[at:]


def name_at(text: str, indexes: tuple[int, ...]) -> str | None:
    """Return the full name of a message in a schema; None if it cannot be known.

    Args:
        text: the schema: a file's descriptor in Base64.
        indexes: the places.
    """
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.standard_b64decode(text))
        among, names = file.message_type, [file.package] if file.package else []
        for at in indexes:
            names.append(among[at].name)
            among = among[at].nested_type
    except Exception:  # (a .proto file, or not that many messages)
        return None
    return ".".join(names)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _read(row: int, message: bytes, at: int) -> tuple[int, int]:
    """Return a number with a sign, and where it ends."""
    number = shift = 0
    for end in range(at, min(at + 5, len(message))):
        number |= (message[end] & 0x7F) << shift
        shift += 7
        if message[end] < 0x80:
            return (number >> 1) ^ -(number & 1), end + 1
    raise _none(row)


def _none(row: int) -> Unreadable:
    return Unreadable(row, "it does not say which message of its schema it is")
