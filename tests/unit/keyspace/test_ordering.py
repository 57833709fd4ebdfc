"""The radix sort by hash must be the stable sort that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.ordering import order_by_hash

MASKS = [2**64 - 1, 0xFFFFFFFF, 0xFF00000000000003, 0x00000001FFFFFFFF, 0xF, 0]


@pytest.mark.parametrize("mask", MASKS, ids=hex)
@given(st.integers(0, 6_000), st.integers(0, 2**32))
def test_the_order_is_that_of_a_stable_sort(mask: int, length: int, seed: int) -> None:
    """Masks leave few different leading bits, or few different hashes, as bad luck would."""
    random = np.random.default_rng(seed)
    hashes = random.integers(0, 2**64, length, dtype=np.uint64) & np.uint64(mask)
    assert (order_by_hash(hashes) == np.argsort(hashes, kind="stable")).all()
