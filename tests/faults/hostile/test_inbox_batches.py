"""Batches of an inbox whose headers lie, well sealed: sizes are checked while they are read."""

from __future__ import annotations

import resource
import struct
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from headrace.errors import Damaged
from headrace.sources.inbox import Inbox
from headrace.sources.inbox.batch import HEADER_BYTES, decode_header, decode_records, encode_records
from headrace.storage import LocalStore, MemoryStore
from tests.faults.hostile.left_in_storage import Note, inbox_files
from tests.faults.hostile.spoiling import nulls
from tests.faults.hostile.trying import read_inbox

_FIELDS = struct.Struct("<8sQQQQq8s")
NAME = "from-ann/000000000000"


def batch(name: str, body: bytes, *, rows: int, size: int | None = None) -> bytes:
    """Return a batch of some records that says what it is told to say."""
    length = len(body) if size is None else size
    digest = xxhash.xxh3_64_intdigest(body)
    fields = _FIELDS.pack(b"HRBATCH1", 0, rows, length, digest, -(2**63), bytes(8))
    return fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields + name.encode())) + body


def many(rows: int) -> bytes:
    """Return the records of a batch, all alike."""
    number = pa.array([1], pa.int64())
    column = pa.concat_arrays([number] * 1000).take(pa.array([0] * rows, pa.int32()))
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), ["a"]).cast(pa.string())
    return encode_records(pa.table({"n": column, "text": texts, "at": column}))


@pytest.mark.parametrize("says", [0, 1, 1_999_999, 2_000_001, 2**53])
def test_a_batch_with_other_rows_than_its_header_says_is_damage(says: int) -> None:
    data = batch(NAME, many(2_000_000), rows=says)
    header = decode_header(NAME, data, NAME)
    with pytest.raises(Damaged, match=r"there are more than|and says"):
        decode_records(header, data, NAME)


def test_a_pipeline_that_meets_one_stops_with_its_name_and_takes_no_memory_for_it() -> None:
    store = MemoryStore()
    for name, data in inbox_files().items():
        store.write(name, data)
    store.delete(NAME)
    store.write(NAME, batch(NAME, many(2_000_000), rows=1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Damaged, match="from-ann/000000000000"):
        read_inbox(store)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 200_000, "kilobytes"


def test_rows_without_bytes_are_counted_too() -> None:
    columns = pa.table(dict.fromkeys(["n", "text", "at"], nulls(1 << 30)))
    body = encode_records(columns)
    assert len(body) < 2_000
    with pytest.raises(Damaged, match="there are more than 1 rows"):
        decode_records(*_both(batch(NAME, body, rows=1)), NAME)


def test_compressed_records_are_refused_before_memory_is_taken() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"n": [0] * 100_000, "text": ["a"] * 100_000, "at": [0] * 100_000})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(Damaged, match="compressed"):
        decode_records(*_both(batch(NAME, sink.getvalue().to_pybytes(), rows=100_000)), NAME)


@pytest.mark.parametrize("size", [2**31 + 1, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_says_more_than_a_batch_can_have_is_damage(size: int) -> None:
    with pytest.raises(Damaged):
        decode_header(NAME, batch(NAME, b"", rows=1, size=size), NAME)


def test_of_a_file_that_is_longer_than_it_says_no_more_is_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write(NAME, batch(NAME, many(3), rows=3))
    with open(tmp_path / NAME, "r+b") as file:
        file.truncate(1 << 36)  # (a hole)
    inbox = Inbox(store, Note, event_time="at")
    header = decode_header(NAME, store.read(NAME, 0, HEADER_BYTES), NAME)
    split = inbox._splits_of("ann", 0, 1)
    assert header.rows == 3
    with pytest.raises(Damaged, match="torn"):
        inbox.read(next(iter(split)))


def test_files_with_strange_names_among_the_producers_are_let_be(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name, data in inbox_files().items():
        store.write(name, data)
    for name in ("ann~", "a b", ".nfs0001", "\x1b[31m", "x" * 200):
        (tmp_path / "producers" / name).write_bytes(b"")
    read_inbox(store)


def _both(data: bytes) -> tuple[object, bytes]:
    return decode_header(NAME, data, NAME), data
