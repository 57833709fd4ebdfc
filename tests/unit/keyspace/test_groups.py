"""Groups: each has its own part of the hash space, and its bins have names of their own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.keyspace.groups import Group, Groups
from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.planner import contiguous
from headrace.keyspace.ranges import Ranges
from tests.support.layouts import layouts

COUNTS = st.integers(0, 9)
HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)


def named(count: int) -> Groups:
    return Groups([f"g{number}" for number in range(count)])


@given(COUNTS, HASHES)
def test_a_place_begins_with_the_number_of_the_group_and_goes_on_with_the_hash(
    count: int, hashes: list[int]
) -> None:
    groups = named(count)
    assert 2**groups.bits >= max(count, 1) > 2**groups.bits // 2
    for number in range(max(count, 1)):
        group = groups.group(groups.names[number] if count else None)
        places = group.places(np.array(hashes, dtype=np.uint64)).tolist()
        for place, hash_ in zip(places, hashes, strict=True):
            bits = f"{number:b}".rjust(groups.bits, "0") if groups.bits else ""
            assert f"{place:064b}" == (bits + f"{hash_:064b}")[:64]
            assert group.place(hash_) == place


def test_where_there_is_one_group_keys_lie_at_their_hashes() -> None:
    hashes = np.array([0, 1, 2**64 - 1], dtype=np.uint64)
    for groups in (Groups(), Groups(["all"])):
        assert groups.group().places(hashes) is hashes
        assert groups.layout(64, 3) == contiguous(64, 3)
        assert groups.expected(groups.layout(8, 2)) is None


@given(COUNTS, st.sampled_from([1, 2, 16, 1024]), st.integers(1, 7))
def test_in_a_new_layout_each_group_is_shared_as_a_pipeline_of_its_own_would_be(
    count: int, bins: int, workers: int
) -> None:
    groups, alone = named(count), contiguous(bins, workers)
    layout = groups.layout(bins, workers)
    for number in range(max(count, 1)):
        own = Group(number, groups.bits).bins_in(layout)
        assert (layout.bits[own] - groups.bits == alone.bits).all()
        assert (layout.owners[own] == alone.owners).all()
    spare = 2**groups.bits - max(count, 1)
    assert len(layout) == max(count, 1) * bins + spare
    assert int((~groups.used(layout)).sum()) == spare
    expected = groups.expected(layout)
    assert (expected is None) == (spare == 0)
    if expected is not None:
        assert (expected[~groups.used(layout)] == 0).all()
        assert (expected[groups.used(layout)] == expected[0]).all()


@given(COUNTS, layouts())
def test_the_name_of_a_bin_names_it(count: int, layout: Layout) -> None:
    groups = named(count)
    for at in range(len(layout)):
        bin_ = layout.bin(at)
        name = groups.name(bin_)
        assert groups.bin(name) == bin_
        assert groups.bin(str(bin_)) == bin_  # its prefix names it as well
        group, _, prefix = name.partition(":")
        if prefix:
            assert str(bin_) == f"{f'{groups.names.index(group):b}'.rjust(groups.bits, '0')}" + (
                f"{prefix.partition('/')[0]}/{bin_.bits}"
            )


@given(st.integers(2, 9), st.integers(0, 2**4 - 1))
def test_a_bin_of_a_group_is_in_the_groups_part_of_the_space(count: int, prefix: int) -> None:
    groups = named(count)
    number = prefix % count
    whole = groups.bin(f"g{number}")
    one = groups.bin(f"g{number}:{prefix:04b}/4")
    assert whole == groups.group(f"g{number}").bin
    assert whole.start <= one.start and one.end <= whole.end
    assert groups.name(whole) == f"g{number}"
    assert groups.name(one) == f"g{number}:{prefix:04b}/4"


@pytest.mark.parametrize("text", ["g9", "g9:0/1", "g0:", "g0:2/1", "g0:" + "0" * 64 + "/64"])
def test_what_names_no_bin_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match=r"no (bin|group)"):
        named(2).bin(text)


def test_a_part_of_the_space_that_is_two_groups_has_no_name_but_its_prefix() -> None:
    assert Groups(["a", "b", "c"]).name(Bin.named("1/1")) == "1/1"
    assert Groups(["a", "b", "c"]).name(Bin.named("110/3")) == "110/3"


@given(st.integers(1, 9), layouts(), st.integers(0, 8), st.sampled_from([1, 8]))
def test_a_group_that_is_added_has_bins_of_its_own_and_nobody_elses_change(
    count: int, layout: Layout, known: int, bins: int
) -> None:
    groups = named(count)
    known = min(known, count)
    grown = groups.grown(layout, known, groups.layout(bins, layout.workers))
    others = Ranges.of([(0, Group(max(known, 1) - 1, groups.bits).bin.end)])
    rest = Ranges.everything().without(others)
    changed = {Group(number, groups.bits) for number in range(max(known, 1), count)}
    for group in changed:
        before, after = group.bins_in(layout), group.bins_in(grown)
        if layout.bits[before][0] >= groups.bits:
            assert (grown.bits[after] == groups.bits + bins.bit_length() - 1).all()
    outside = others.overlapping(layout.starts, layout.ends)
    for at in np.flatnonzero(outside & ~rest.overlapping(layout.starts, layout.ends)).tolist():
        (same,) = np.flatnonzero(grown.starts == layout.starts[at])
        assert grown.bin(int(same)) == layout.bin(at)
        assert grown.owners[same] == layout.owners[at]
