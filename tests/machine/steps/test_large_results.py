"""Results that are larger than Arrow's batches can be are in order all the same, in several pieces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.driver import outputs
from headrace.runfiles import batches
from headrace.schema.reserved import HASH


def test_results_of_any_size_are_in_the_order_of_their_hashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(7)
    hashes = rng.integers(0, 1 << 63, 500).astype(np.uint64)
    texts = pa.array([f"{at}" * int(size) for at, size in enumerate(rng.integers(1, 90, 500))])
    table = pa.table({HASH: pa.array(hashes), "text": pa.chunked_array([texts[:200], texts[200:]])})
    expected = outputs.in_hash_order(table)
    monkeypatch.setattr(batches, "MOST_BYTES", 4_000)
    found = outputs.in_hash_order(table)
    assert found.combine_chunks().equals(expected.combine_chunks())
    pieces = list(batches.halves(found, 4_000))
    assert len(pieces) > 5 and all(piece.nbytes <= 4_000 for piece in pieces)
    assert pa.concat_tables(pieces).equals(found)
