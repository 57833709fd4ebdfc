"""Confluent's wire format: before the bytes of a record stands the number of its schema."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.messages.base import Unreadable

#: A zero, and the number of the schema.
_HEAD = struct.Struct(">bI")


def split(messages: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the numbers of the schemas of messages, and what follows.

    Args:
        messages: bytes; none is null.

    Raises:
        Unreadable: for the first message without a number.
    """
    size, unpack = _HEAD.size, _HEAD.unpack_from
    whole: list[bytes] = messages.to_pylist()
    numbers = np.zeros(len(whole), dtype=np.int64)
    for row, message in enumerate(whole):
        if len(message) < size or message[0] != 0:
            raise Unreadable(row, _what_it_is(message[:size]))
        numbers[row] = unpack(message)[1]
    # (Arrow's own slices of bytes fail where the messages are short)
    return numbers, pa.array([message[size:] for message in whole], pa.binary())


def joined(number: int, records: pa.Array) -> pa.Array:
    """Return records with the number of their schema before each."""
    head = pa.scalar(_HEAD.pack(0, number), pa.binary())
    return pc.binary_join_element_wise(head, records, pa.scalar(b"", pa.binary()))


def _what_it_is(head: bytes) -> str:
    if head[:1] == b"\x01":
        return (
            "the number of its schema is in a header, as newer serializers can write it; that is not "
            "supported"
        )
    return (
        f"it does not begin with the number of a schema (a zero and 4 bytes), but with {head!r}: it was "
        "written without a registry"
    )
