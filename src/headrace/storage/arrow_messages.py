"""Reads Arrow data from storage, and checks what a message claims before it takes memory for it.

A checksum detects damage, not malice. Arrow trusts a message: a compressed buffer says how long it
will be, and a batch says how many rows it has. Headrace compresses nothing, so compressed messages
are refused. What is read is validated, because Arrow itself would follow an offset past the end of
a buffer.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

#: Errors that are raised for bytes that cannot be read.
_NOT_READ = (pa.ArrowException, OSError, ValueError, IndexError, struct.error)
_CONTINUES = b"\xff\xff\xff\xff"
# Message headers, and fields of the tables of Arrow's Message.fbs by number.
_DICTIONARY, _BATCH = 2, 3
_HEADER_TYPE, _HEADER = 1, 2
_COMPRESSION, _DICTIONARY_DATA = 3, 1
_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")


class Unreadable(Exception):
    """Bytes are not Arrow data, or not Arrow data that Headrace has written."""


def read_batch(data: bytes | memoryview, schema: pa.Schema, *, full: bool = True) -> pa.RecordBatch:
    """Return the batch of one message, after validating it.

    Args:
        data: the message.
        schema: the columns of the batch.
        full: whether to validate every value, rather than only the lengths of buffers. The latter
            is enough for what this process or its peers wrote where nobody else can write.

    Cost: no copy; with ``full``, a pass over offsets and texts.

    Raises:
        Unreadable: for bytes that are not such a message.
    """
    try:
        if data[:4] != _CONTINUES:
            raise Unreadable("it does not begin as a message does")
        _check_metadata(memoryview(data)[8:])
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=full)
    except _NOT_READ as error:
        raise Unreadable(str(error)) from error
    return batch


def read_stream(data: Any, most_rows: int | None = None) -> pa.Table:
    """Return the rows of a stream, after validating them.

    Args:
        data: the bytes of the stream.
        most_rows: the largest number of rows; None for any number.

    Cost: no copy; a pass over offsets and texts.

    Raises:
        Unreadable: for bytes that are not such a stream, or if it has more rows.
    """
    buffer = pa.py_buffer(data)
    try:
        for message in pa.ipc.MessageReader.open_stream(buffer):
            _check_metadata(memoryview(message.metadata))
        rows, batches = 0, []
        with pa.ipc.open_stream(buffer) as reader:
            schema = reader.schema
            for batch in reader:
                rows += batch.num_rows
                if most_rows is not None and rows > most_rows:
                    raise Unreadable(f"there are more than {most_rows:,} rows")
                batch.validate(full=True)
                batches.append(batch)
        return pa.Table.from_batches(batches, schema)
    except _NOT_READ as error:
        raise Unreadable(str(error)) from error


def read_schema(data: bytes) -> pa.Schema:
    """Return the schema of a message.

    Raises:
        Unreadable: for bytes that are not such a message.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except _NOT_READ as error:
        raise Unreadable(str(error)) from error


def _check_metadata(metadata: memoryview) -> None:
    """Check that nothing in a message is compressed. (It is a FlatBuffer: see Arrow's Message.fbs.)

    Raises:
        Unreadable: when something is compressed, or a table of its metadata is missing or leads
            before its beginning.
        struct.error: when its tables lead past its end.
    """
    table = _U32.unpack_from(metadata, 0)[0]
    kind = metadata[at] if (at := _field(metadata, table, _HEADER_TYPE)) else 0
    if kind not in (_BATCH, _DICTIONARY):
        return
    batch = _table(metadata, table, _HEADER)
    if kind == _DICTIONARY:
        batch = _table(metadata, batch, _DICTIONARY_DATA)
    if _field(metadata, batch, _COMPRESSION):
        raise Unreadable("its buffers are compressed, and nothing of ours is")


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a field of a FlatBuffer's table; 0 if the table has no such field."""
    entries = table - _I32.unpack_from(data, table)[0]
    if entries < 0:
        raise Unreadable("its tables lead before its beginning")
    at = 4 + 2 * number
    if at >= _U16.unpack_from(data, entries)[0]:
        return 0
    offset = _U16.unpack_from(data, entries + at)[0]
    return table + offset if offset else 0


def _table(data: memoryview, table: int, number: int) -> int:
    at = _field(data, table, number)
    if not at:
        raise Unreadable("a table of its metadata is missing")
    return int(at + _U32.unpack_from(data, at)[0])
