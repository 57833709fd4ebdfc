"""A batch of a producer as one file: a header of fixed size, followed by records.

Layout of the file::

    header    64 bytes: magic, flags, rows, length and checksum of the records, promise, nonce, seal
    records   an Arrow IPC stream; nothing if there are none

The header can be read alone. One small read shows whether the batch exists and what it should hold.
The *seal* is a checksum of the header's fields and of the batch's name, and those fields include
the checksum of the records. So a seal identifies exactly these bytes in exactly this place.
"""

from __future__ import annotations

import struct

import msgspec
import pyarrow as pa
import xxhash

from headrace.errors import Damaged, NewerFormat
from headrace.eventtime.timestamps import MIN_TIME
from headrace.schema.encodings import decoded_chunks
from headrace.schema.equality import same_rows
from headrace.storage import Store
from headrace.storage.arrow_messages import Unreadable, read_stream
from headrace.storage.bounds import MOST_COUNTED

_MAGIC = b"HRBATCH1"
_FIELDS = struct.Struct("<8sQQQQq8s")
_SEAL = struct.Struct("<Q")
HEADER_BYTES = _FIELDS.size + _SEAL.size
_FINAL, _LINKED, _FILLS_GAP = 1, 2, 4
#: Size of the first read of a batch, which is all of most batches.
_FIRST_BYTES = 1 << 20
#: Maximum size of a batch's records in bytes, since a batch is read whole.
MOST_BYTES = 2 << 30
#: Number of bytes at the end of the nonce that are from the seal of the batch before.
_LINK_BYTES = 4
_REMEDY = "restore the file, or remove it and let its producer append this sequence again"


class BatchHeader(msgspec.Struct, frozen=True):
    """The header of a batch.

    Attributes:
        rows: the number of records.
        size: their size in bytes.
        checksum: the checksum of those bytes.
        promise_us: no record before this time comes after this batch; ``MIN_TIME`` without a
            promise. It never decreases from one batch of a producer to the next.
        final: whether this is the last batch of its producer.
        nonce: distinguishes this write of the batch from any other.
        linked: whether the nonce ends with a part of the seal of the batch that the producer saw
            before it.
        seal: identifies exactly this batch.
        fills_gap: whether the batch fills a gap: later ones existed before it.
    """

    rows: int
    size: int
    checksum: int
    promise_us: int
    final: bool
    nonce: bytes
    linked: bool
    seal: int
    fills_gap: bool = False

    def follows(self, before: BatchHeader) -> bool | None:
        """Return whether the producer of this batch saw the given one before it.

        None if this is not known, because an older version wrote the batch or the given one came
        later.
        """
        if not self.linked or before.fills_gap:
            return None
        return self.nonce.endswith(_link(before))


def encode_records(table: pa.Table) -> bytes:
    """Return records as they are stored. Their bytes do not depend on their chunks."""
    if table.num_rows == 0:
        return b""
    table = in_one_piece(table.replace_schema_metadata(None))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def in_one_piece(table: pa.Table) -> pa.Table:
    """Return a table without chunks. Dictionaries that Arrow cannot join are decoded."""
    try:
        return table.combine_chunks()
    except pa.ArrowInvalid:
        columns = [decoded_chunks(column) for column in table.columns]
        return pa.table(columns, names=table.column_names).combine_chunks()


def are_records(table: pa.Table, records: bytes) -> bool:
    """Return whether a table has the records that are encoded.

    Bytes may differ though all values are the same: by another version of Arrow, or by what lies below
    a null.
    """
    if encode_records(table) == records:
        return True
    if not records or not table.num_rows:
        return False
    other = pa.ipc.open_stream(records).read_all()
    return same_rows(in_one_piece(table.replace_schema_metadata(None)), other)


def encode_batch(
    name: str,
    records: bytes,
    rows: int,
    *,
    promise_us: int,
    final: bool,
    before: BatchHeader | None,
    random: bytes,
    fills_gap: bool = False,
) -> tuple[bytes, BatchHeader]:
    """Return the bytes of a batch, and its header.

    Args:
        name: the batch's name in its store.
        records: the encoded records.
        rows: the number of records.
        promise_us: the producer's promise.
        final: whether this is its last batch.
        before: the header of the batch before it; None for the first.
        random: four bytes that differ for each write.
        fills_gap: whether later batches exist already.
    """
    checksum = xxhash.xxh3_64_intdigest(records)
    flags = _LINKED | (_FINAL if final else 0) | (_FILLS_GAP if fills_gap else 0)
    nonce = random + _link(before)
    fields = _FIELDS.pack(_MAGIC, flags, rows, len(records), checksum, promise_us, nonce)
    seal = _seal_of(name, fields)
    header = BatchHeader(
        rows, len(records), checksum, promise_us, final, nonce, True, seal, fills_gap
    )
    return fields + _SEAL.pack(seal) + records, header


def read_batch(store: Store, name: str, place: str) -> tuple[BatchHeader, bytes]:
    """Return a batch's header and bytes. The size in the header bounds what is read.

    Raises:
        NotFound: if it does not exist.
        Damaged, NewerFormat: as for :func:`decode_header`.
    """
    data = store.read(name, 0, _FIRST_BYTES)
    header = decode_header(name, data, place)
    whole = HEADER_BYTES + header.size
    if len(data) == _FIRST_BYTES and whole >= _FIRST_BYTES:
        # One more byte reveals a batch that is longer than its header says.
        data += store.read(name, _FIRST_BYTES, whole + 1 - _FIRST_BYTES)
    return header, data


def decode_header(name: str, data: bytes, place: str) -> BatchHeader:
    """Return a batch's header from its first bytes.

    Args:
        name: the batch's name in its store.
        data: its first bytes.
        place: the place to name in an error.

    Raises:
        NewerFormat: if a newer version of Headrace wrote it.
        Damaged: if these are not the bytes that were written under this name.
    """
    if len(data) < HEADER_BYTES:
        raise Damaged(f"a batch is torn: it has {len(data)} bytes", place=place, remedy=_REMEDY)
    fields, sealed = data[: _FIELDS.size], data[_FIELDS.size : HEADER_BYTES]
    magic, flags, rows, size, checksum, promise_us, nonce = _FIELDS.unpack(fields)
    seal = _seal_of(name, fields)
    if _SEAL.unpack(sealed)[0] != seal:
        raise Damaged("a batch is not what was written there", place=place, remedy=_REMEDY)
    if magic != _MAGIC:
        raise NewerFormat(
            f"a batch has format {magic!r}; this version reads {_MAGIC!r}",
            place=place,
            remedy="run the version of Headrace that its producer runs, or a newer one",
        )
    if rows > MOST_COUNTED or size > MOST_BYTES or (rows and not size):
        what = f"a batch says that it has {rows:,} records in {size:,} bytes"
        raise Damaged(what, place=place, remedy=_REMEDY)
    final, linked = bool(flags & _FINAL), bool(flags & _LINKED)
    fills_gap = bool(flags & _FILLS_GAP)
    return BatchHeader(rows, size, checksum, promise_us, final, nonce, linked, seal, fills_gap)


def decode_records(header: BatchHeader, data: bytes, place: str) -> pa.Table:
    """Return the records in the bytes of a whole batch.

    Raises:
        Damaged: if they are not what was written, or not as many as the header says.
    """
    records = memoryview(data)[HEADER_BYTES:]
    if len(records) != header.size:
        what = f"a batch is torn: it has {len(records)} bytes of records, not {header.size}"
        raise Damaged(what, place=place, remedy=_REMEDY)
    if xxhash.xxh3_64_intdigest(records) != header.checksum:
        raise Damaged(
            "the records of a batch are not what was written", place=place, remedy=_REMEDY
        )
    if not header.rows and not header.size:
        return pa.table({})
    try:
        table = read_stream(records, header.rows)
    except Unreadable as error:
        raise Damaged(
            f"the records of a batch cannot be read: {error}", place=place, remedy=_REMEDY
        ) from error
    if table.num_rows != header.rows:
        what = f"a batch has {table.num_rows:,} records, and says {header.rows:,}"
        raise Damaged(what, place=place, remedy=_REMEDY)
    return table


def has_promise(header: BatchHeader) -> bool:
    """Return whether a batch contains a promise of its producer."""
    return header.promise_us > MIN_TIME


def _link(before: BatchHeader | None) -> bytes:
    """Return the part of the seal of the batch before that a batch contains."""
    return bytes(_LINK_BYTES) if before is None else _SEAL.pack(before.seal)[:_LINK_BYTES]


def _seal_of(name: str, fields: bytes) -> int:
    return xxhash.xxh3_64_intdigest(fields + name.encode())
