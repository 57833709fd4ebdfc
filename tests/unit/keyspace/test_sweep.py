"""A sweep gives every place once, in portions that do not depend on bins."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.groups import Group
from headrace.keyspace.ranges import Ranges
from headrace.keyspace.sweep import WHOLE, is_swept, portion, portion_width

PARTS = st.integers(0, 8).flatmap(
    lambda bits: st.tuples(st.integers(0, (1 << bits) - 1), st.just(bits))
)


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1),
    PARTS,
    st.sampled_from([1, 2, 4, 64, WHOLE]),
    st.integers(0, WHOLE),
)
def test_a_place_is_swept_once_the_portions_have_passed_it(
    hashes: list[int], part: tuple[int, int], parts: int, at: int
) -> None:
    group = Group(*part)
    places = group.places(np.array(hashes, dtype=np.uint64))
    width = WHOLE // parts
    first = (at % parts) * width
    within = portion(group, first, first + width).contain(places)
    swept = is_swept(places, group, first + width) & ~is_swept(places, group, first)
    assert within.tolist() == swept.tolist()
    assert is_swept(places, group, WHOLE).all()
    assert not is_swept(places, group, 0).any()


@given(PARTS)
def test_one_portion_may_be_everything(part: tuple[int, int]) -> None:
    group = Group(*part)
    whole = Ranges.of([(group.bin.start, group.bin.end)])
    assert portion(group, 0, WHOLE).joined() == whole
    assert not len(portion(group, WHOLE, WHOLE))


def test_a_portion_has_about_as_many_bytes_as_it_may() -> None:
    assert portion_width(0, 10) == WHOLE
    assert portion_width(10, 10) == WHOLE
    assert portion_width(11, 10) == WHOLE // 2
    assert portion_width(31, 10) == WHOLE // 4
    assert portion_width(1 << 60, 1) == 1
