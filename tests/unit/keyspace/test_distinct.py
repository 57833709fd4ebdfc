"""The distinct values of an array are those that a set has, ascending."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.distinct import distinct


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint64])
@given(values=st.lists(st.integers(0, 40)))
def test_each_value_comes_once_ascending(kind: type, values: list[int]) -> None:
    given_ = np.array(values, dtype=kind)
    found = distinct(given_)
    assert found.dtype == kind and found.tolist() == sorted(set(values))
    assert given_.tolist() == values, "what it was given is left as it was"
