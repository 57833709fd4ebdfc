"""Run files: any part can be read alone, and nothing damaged is ever computed with."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import Damaged
from headrace.keyspace.planner import contiguous
from headrace.keyspace.ranges import Ranges
from headrace.runfiles import format
from headrace.runfiles.format import FileRef, RunPart, RunReader, write_run
from headrace.runfiles.merging import StateSources
from headrace.schema.reserved import HASH
from headrace.storage.memory import MemoryStore
from headrace.storage.reading import Threads


def batch(hashes: list[int]) -> pa.RecordBatch:
    array = np.sort(np.array(hashes, dtype=np.uint64))
    return pa.record_batch([pa.array(array), pa.array([f"v{h}" for h in array])], [HASH, "v"])


def stored(parts: list[RunPart], bins: int = 16) -> tuple[MemoryStore, FileRef]:
    store = MemoryStore()
    layout = contiguous(bins, 2)
    data, checksum = write_run(parts, layout)
    store.write("runs/x", data)
    return store, FileRef("runs/x", len(data), checksum, 7, 1, 0, ["a"], layout.digest)


HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=60)


@given(HASHES, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.sampled_from([1, 16, 1024]))
def test_a_range_of_hashes_is_read_whatever_the_bins(
    hashes: list[int], a: int, b: int, bins: int
) -> None:
    first, last = min(a, b), max(a, b)
    store, ref = stored([RunPart("a", "state", batch(hashes))], bins)
    table = RunReader(store.read, ref).rows("a", "state", first, last)
    expected = sorted(h for h in hashes if first <= h <= last)
    assert (table.column(HASH).to_pylist() if table else []) == expected


def test_a_large_section_is_cut_into_blocks_at_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(format, "BLOCK_ROWS", 100)
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, 5_000, dtype=np.uint64).tolist()
    store, ref = stored([RunPart("a", "state", batch(hashes))], 64)
    section = RunReader(store.read, ref).section("a", "state")
    assert section is not None
    assert len(section.blocks) > 20
    edges = [block.first >> 58 for block in section.blocks]
    assert len(set(edges)) == len(edges), "a bin is in two blocks"
    reads: list[tuple[int, int]] = []

    def read(name: str, offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return store.read(name, offset, length)

    monkeypatch.setattr(format, "SMALL_FILE", 0)
    reader = RunReader(read, ref)
    assert not reads, "nothing is read that nobody asked for"
    reader.open()
    before = len(reads)
    table = reader.rows("a", "state", 0, 2**58 - 1)
    assert table is not None
    assert table.column(HASH).to_pylist() == sorted(h for h in hashes if h < 2**58)
    assert len(reads) - before == 1, "a bin is read alone"


def wide_file(rows: int, size: int) -> tuple[MemoryStore, FileRef, list[int]]:
    """Return a file of rows with texts of a size, and its hashes."""
    hashes = np.sort(np.random.default_rng(1).integers(0, 2**64, rows, dtype=np.uint64))
    texts = pa.array(["x" * size] * rows)
    wide = pa.record_batch([pa.array(hashes), texts], [HASH, "v"])
    store, ref = stored([RunPart("a", "state", wide)], 1_024)
    return store, ref, hashes.tolist()


def test_of_a_large_file_a_few_bins_are_read_without_the_rest() -> None:
    """A step on ten times the memory read each file many times, and kept blocks of 4 MiB of each."""
    store, ref, hashes = wide_file(8_000, 1_000)
    reads: list[int] = []

    def read(name: str, offset: int, length: int) -> bytes:
        reads.append(length)
        return store.read(name, offset, length)

    reader = RunReader(read, ref)
    reader.open()
    reads.clear()
    last = 2**64 // 100
    table = reader.rows("a", "state", 0, last)
    assert table is not None
    assert table.column(HASH).to_pylist() == [h for h in hashes if h <= last]
    assert len(reads) == 1 and reads[0] < ref.length / 20
    assert table.get_total_buffer_size() <= 2 * table.nbytes
    reads.clear()
    everything = reader.rows("a", "state", 0, 2**64 - 1)
    assert everything is not None and everything.num_rows == 8_000
    assert len(reads) <= 3, "blocks that are one behind the other are read by one call"


@given(
    chosen=st.lists(st.integers(0, 1_999), min_size=1, max_size=200, unique=True),
    near=st.sampled_from([0, 2_000, 64 << 10]),
)
@settings(max_examples=40)
def test_single_hashes_are_read_from_files_of_any_size(chosen: list[int], near: int) -> None:
    store, ref, hashes = _WIDE
    wanted = np.array(sorted(hashes[at] for at in chosen), dtype=np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format, "_NEAR", near)
        table = RunReader(store.read, ref).rows_in("a", "state", Ranges(wanted, wanted))
    assert table is not None
    assert table.column(HASH).to_pylist() == wanted.tolist()


_WIDE = wide_file(2_000, 2_000)


def test_the_lowest_timer_of_each_bin_is_known_without_reading_a_row() -> None:
    hashes = [0, 1, 2**62, 2**63, 2**63 + 5]
    timers = (np.array([0, 1, 4]), np.array([50, 40, 70]), np.array([False, False, True]))
    store, ref = stored([RunPart("a", "state", batch(hashes), timers)], 4)
    facts = RunReader(store.read, ref).lowest_timers("a", "state")
    assert facts is not None
    assert facts.starts.tolist() == [0, 2**62, 2**63]
    assert facts.event.tolist() == [40, 2**63 - 1, 2**63 - 1]
    assert facts.wall.tolist() == [2**63 - 1, 2**63 - 1, 70]


@pytest.mark.parametrize("small_file", [0, 1 << 18])
@pytest.mark.parametrize("last", [24, 100, 1 << 17])
def test_every_flipped_byte_is_found_or_was_not_used(
    small_file: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format, "SMALL_FILE", small_file)
    monkeypatch.setattr(format, "_LAST", last)
    rng = np.random.default_rng(1)
    parts = [
        RunPart(o, "state", batch(rng.integers(0, 2**64, 20, dtype=np.uint64).tolist()))
        for o in "ab"
    ]
    store, ref = stored(parts)
    whole = store.read("runs/x")
    good = RunReader(store.read, ref).rows("a", "state", 0, 2**64 - 1)
    found = 0
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << (position % 8)
        store.write("runs/x", bytes(flipped))
        try:
            table = RunReader(store.read, ref).rows("a", "state", 0, 2**64 - 1)
            assert table == good, f"byte {position} changed the result"
        except Damaged as error:
            assert "runs/x" in str(error)
            assert "step 7" in str(error)
            found += 1
    assert found > len(whole) // 2


@settings(max_examples=30)
@given(st.integers(0, 5_000))
def test_every_truncation_is_found(length: int) -> None:
    store, ref = stored([RunPart("a", "state", batch(list(range(50))))])
    whole = store.read("runs/x")
    store.write("runs/x", whole[: length % len(whole)])
    with pytest.raises(Damaged):
        RunReader(store.read, ref).rows("a", "state", 0, 2**64 - 1)


def test_another_file_under_the_same_name_is_found() -> None:
    store, ref = stored([RunPart("a", "state", batch([1, 2, 3]))])
    other, _ = stored([RunPart("a", "state", batch([1, 2, 4]))])
    store.write("runs/x", other.read("runs/x"))
    with pytest.raises(Damaged):
        RunReader(store.read, ref).open()


def test_a_flipped_bit_in_a_value_is_never_read_as_another_value() -> None:
    """Of which Arrow knows nothing: any text is a text."""
    store, ref = stored([RunPart("a", "state", batch([7_777, 8_888]))])
    whole = store.read("runs/x")
    position = whole.index(b"v7777v8888")
    flipped = bytearray(whole)
    flipped[position + 1] ^= 1
    store.write("runs/x", bytes(flipped))
    with pytest.raises(Damaged, match="runs/x"):
        RunReader(store.read, ref).rows("a", "state", 0, 2**64 - 1)


def test_files_are_opened_side_by_side() -> None:
    store, ref = stored([RunPart("a", "state", batch([1, 2, 3]))])
    meeting = threading.Barrier(2, timeout=20)

    def read(name: str, offset: int, length: int) -> bytes:
        meeting.wait()
        return store.read(name, offset, length)

    readers = [RunReader(read, ref), RunReader(read, ref)]
    list(Threads(2).each(RunReader.open, readers))
    assert all(reader.is_open for reader in readers)


@pytest.mark.parametrize("small_file", [0, 1 << 18])
def test_a_file_is_opened_once_though_its_sections_are_read_side_by_side(
    small_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(format, "SMALL_FILE", small_file)
    monkeypatch.setattr(format, "_LAST", 24)
    store, ref = stored([RunPart("a", kind, batch([1, 2])) for kind in ("t", "u", "v")])
    reads: list[int] = []
    both = threading.Barrier(2)

    def read(name: str, offset: int, length: int) -> bytes:
        reads.append(offset)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.1)  # (others come meanwhile, if there are any)
        return store.read(name, offset, length)

    sources = StateSources("a", [], [RunReader(read, ref)], each=Threads(3).each)
    found = sources.tables_of(["t", "u", "v"], Ranges.everything())
    assert [len(tables) for tables in found] == [1, 1, 1]
    assert len(reads) == len(set(reads))


FIRST_READS = """
import sys, threading
from headrace.keyspace.layout import Layout
from headrace.runfiles.format import FileRef, RunReader, write_run

data, checksum = write_run([], Layout.uniform(8, [0] * 8, 1))
ref = FileRef("run", len(data), checksum, 0, 0, 0, [], "")
readers = [RunReader(lambda _, at, length: data[at : at + length], ref) for _ in range(16)]
together = threading.Barrier(len(readers))
def open_it(reader):
    together.wait()
    reader.open()
threads = [threading.Thread(target=open_it, args=[reader]) for reader in readers]
sys.setswitchinterval(1e-6)
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(reader.is_open for reader in readers))
"""


@pytest.mark.parametrize("_", range(3))
def test_the_first_files_of_a_process_may_be_opened_side_by_side(_: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_READS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "16\n"), done.stderr
