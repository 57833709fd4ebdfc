"""What is too much for one batch is refused with the remedy, and no row is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadInput
from headrace.runfiles import batches
from headrace.runfiles.batches import as_one_batch, combined, taken


@given(st.lists(st.lists(st.integers(-5, 5), max_size=5), min_size=1, max_size=6))
def test_rows_keep_their_order(parts: list[list[int]]) -> None:
    found = as_one_batch([pa.record_batch({"n": pa.array(part, pa.int64())}) for part in parts])
    assert found["n"].to_pylist() == [n for part in parts for n in part]


def test_more_text_than_one_column_can_hold_is_refused_and_not_left_out() -> None:
    size = 3 << 29  # (pages that nobody writes take no memory)
    letters = pa.py_buffer(np.zeros(size, np.uint8))
    offsets = pa.py_buffer(np.array([0, size], np.int32))
    long = pa.Array.from_buffers(pa.string(), 1, [None, offsets, letters])
    batch = pa.record_batch({"text": long})
    assert as_one_batch([batch]).num_rows == 1
    with pytest.raises(BadInput, match="more than 2 GiB"):
        as_one_batch([batch, batch])


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from([40, 1 << 20]),
    st.sampled_from([np.int64, np.uint64]),
    st.sampled_from([1, 1 << 16]),
)
def test_rows_by_position_are_the_same_however_large_columns_are(
    chunks: list[list[int]], random: Any, most: int, kind: Any, large: int
) -> None:
    texts = [[f"{n} " + "x" * n for n in of] for of in chunks]
    parts = [
        pa.table({"n": pa.array(of, pa.int64()), "text": pa.array(text, pa.string())})
        for of, text in zip(chunks, texts, strict=True)
    ]
    table = pa.concat_tables(parts)
    at = [random.randrange(len(table)) for _ in range(len(table))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "MOST_BYTES", most)
        patch.setattr(batches, "_LARGE_VALUE", large)
        whole = combined(table)
        found = taken(table, np.array(at, dtype=kind))
    assert whole.equals(table)
    assert found.to_pylist() == [table.to_pylist()[n] for n in at]
    assert found.schema == table.schema
