"""Rows in memory read as files do: what is asked for by its hashes, and no more of it is kept."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.ranges import MAX_HASH, Ranges
from headrace.runfiles import format
from headrace.runfiles.format import RunPart, inside
from headrace.runfiles.in_memory import RowsInMemory
from headrace.schema.reserved import HASH

HASHES = st.sampled_from([0, 1, 2, 5, 6, 7, 40, 41, 1 << 63, MAX_HASH - 1, MAX_HASH])
EDGES = st.lists(HASHES, max_size=8, unique=True).map(sorted)


def rows_of(hashes: list[int]) -> pa.RecordBatch:
    columns = {HASH: pa.array(sorted(hashes), pa.uint64()), "n": pa.array(range(len(hashes)))}
    return pa.record_batch(columns)


def ranges_between(edges: list[int]) -> Ranges:
    return Ranges.of(list(zip(edges[::2], edges[1::2], strict=False)))


@given(st.lists(HASHES, max_size=20), EDGES, st.sampled_from([0, 2, 64]))
def test_rows_inside_are_those_whose_hash_is_in_a_range_in_their_order(
    hashes: list[int], edges: list[int], few: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(format, "_FEW_SPANS", few)
        same_inside(hashes, edges)


def same_inside(hashes: list[int], edges: list[int]) -> None:
    rows, ranges = rows_of(hashes), ranges_between(edges)
    wanted = rows.filter(pa.array(ranges.contain(rows.column(HASH).to_numpy())))
    assert [row for part in inside(rows, ranges) for row in part.to_pylist()] == wanted.to_pylist()
    found = RowsInMemory([RunPart("c", "t", rows)], 7).rows_in("c", "t", ranges)
    assert ([] if found is None else found.to_pylist()) == wanted.to_pylist()
    assert found is None or found.num_rows


def test_rows_of_a_long_block_do_not_keep_the_block() -> None:
    block = rows_of(list(range(100_000)))
    kept = RowsInMemory([RunPart("c", "t", block.slice(10, 20))], 7)
    table = kept.rows_in("c", "t", Ranges.everything())
    assert table is not None
    assert table.to_pylist() == block.slice(10, 20).to_pylist()
    assert table.get_total_buffer_size() < 10_000
    assert kept.ref.length < 10_000


def test_it_says_what_it_has() -> None:
    kept = RowsInMemory([RunPart("c", "t", rows_of([1])), RunPart("d", "u", rows_of([2]))], 7)
    assert kept.is_open
    assert kept.kinds_of("c") == ["t"]
    assert kept.ref.owners == ["c", "d"]
    assert kept.rows_in("c", "u", Ranges.everything()) is None
    assert kept.schema("d", "u") == rows_of([2]).schema
    assert np.array_equal(kept.rows("d", "u", 0, 5).column(HASH).to_numpy(), [2])
