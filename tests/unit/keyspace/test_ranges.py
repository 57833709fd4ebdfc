"""Sets of hashes as ranges, against Python's sets of the few hashes that can tell them apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.ranges import MAX_HASH, Ranges

TOP = MAX_HASH - 40
#: Hashes at both ends of the space and in the middle, close enough to be neighbours.
POINTS = [*range(41), *range(2**63 - 20, 2**63 + 20), *range(TOP, MAX_HASH + 1)]


@st.composite
def ranges(draw: st.DrawFn) -> Ranges:
    edges = sorted(draw(st.sets(st.sampled_from(POINTS), max_size=12)))
    edges = edges[: len(edges) // 2 * 2]
    return Ranges.of(zip(edges[::2], edges[1::2], strict=True))


def members(found: Ranges) -> set[int]:
    return {p for p in POINTS if any(first <= p <= last for first, last in found.pairs())}


points = np.array(POINTS, dtype=np.uint64)


@given(ranges())
def test_a_hash_is_contained_when_it_is_in_one_of_the_ranges(one: Ranges) -> None:
    assert set(points[one.contain(points)].tolist()) == members(one)


@given(ranges(), ranges())
def test_what_is_within_both_is_in_both_and_what_overlaps_has_a_hash_in_common(
    one: Ranges, other: Ranges
) -> None:
    assert members(one.within(other)) == members(one) & members(other)
    overlapping = one.overlapping(other.firsts, other.lasts).tolist()
    for (first, last), said in zip(other.pairs(), overlapping, strict=True):
        assert said == any(a <= last and b >= first for a, b in one.pairs())


@given(ranges(), ranges())
def test_without_the_others_and_within_them_is_all_and_nothing_twice(
    one: Ranges, other: Ranges
) -> None:
    assert members(one.without(other)) == members(one) - members(other)
    assert members(one.complement()) == set(POINTS) - members(one)
    assert members(one.plus(other)) == members(one) | members(other)
    for found in (one.within(other), one.without(other), one.complement()):
        assert all(first <= last for first, last in found.pairs())
        assert all(a < b for (_, a), (b, _) in pairwise(found.pairs()))


@given(ranges())
def test_ranges_are_the_same_once_they_were_written_and_read(one: Ranges) -> None:
    assert Ranges.from_wire(one.to_wire()).pairs() == one.pairs()


@given(ranges(), st.sets(st.sampled_from(POINTS)))
def test_cutting_and_joining_change_how_hashes_are_written_and_nothing_else(
    one: Ranges, edges: set[int]
) -> None:
    cut = one.cut_at(np.array(sorted(edges), dtype=np.uint64))
    assert members(cut) == members(one)
    assert not any(first < edge <= last for first, last in cut.pairs() for edge in edges)
    joined = cut.joined()
    assert members(joined) == members(one)
    assert all(a + 1 < b for (_, a), (b, _) in pairwise(joined.pairs()))
