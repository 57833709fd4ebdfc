"""Bins cover the hash space exactly, layouts route each hash to one worker, planners follow Heron."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError, PipelineError
from headrace.keyspace.layout import Bin, Layout, LayoutWire
from headrace.keyspace.planner import contiguous, contiguous_owner, contiguous_range
from tests.support.layouts import layouts

HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50)


@given(layouts(), HASHES)
def test_each_hash_is_in_the_bin_that_has_its_prefix(layout: Layout, hashes: list[int]) -> None:
    array = np.array(hashes, dtype=np.uint64)
    for hash_, index, worker in zip(
        hashes, layout.bins_of(array), layout.workers_of(array), strict=True
    ):
        found = layout.bin(int(index))
        assert found.start <= hash_ <= found.end
        assert hash_ >> (64 - found.bits) == found.start >> (64 - found.bits)
        assert worker == layout.owners[index]


@given(layouts(), HASHES)
def test_the_first_row_of_each_bin_is_found_among_few_and_many_rows(
    layout: Layout, hashes: list[int]
) -> None:
    for rows in (sorted(hashes)[:3], sorted(hashes * 40)):
        array = np.array(rows, dtype=np.uint64)
        expected: dict[int, int] = {}
        for row, at in enumerate(layout.bins_of(array).tolist()):
            expected.setdefault(at, row)
        first, bins = layout.first_rows_of_bins(array)
        assert dict(zip(bins.tolist(), first.tolist(), strict=True)) == expected


@given(layouts())
def test_ranges_of_workers_divide_the_space(layout: Layout) -> None:
    ranges = sorted(
        item for worker in range(layout.workers) for item in layout.ranges_of(worker).pairs()
    )
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**64 - 1
    assert all(a[1] + 1 == b[0] for a, b in zip(ranges[:-1], ranges[1:], strict=True))


@given(layouts())
def test_a_layout_survives_being_written(layout: Layout) -> None:
    again = Layout.from_wire(layout.to_wire())
    assert again == layout
    assert again.digest == layout.digest


@given(st.integers(0, 12), st.integers(1, 40))
def test_the_contiguous_planner_follows_herons_equations(bits: int, workers: int) -> None:
    bins = 1 << bits
    layout = contiguous(bins, workers)
    if workers <= bins:
        assert [contiguous_owner(i, bins, workers) for i in range(bins)] == layout.owners.tolist()
    counts = np.bincount(layout.owners, minlength=workers)
    assert counts.max() - counts.min() <= 1
    assert (np.diff(layout.owners) >= 0).all()
    assert sum(len(contiguous_range(w, bins, workers)) for w in range(workers)) == bins


def test_a_bin_and_its_children_share_their_keys() -> None:
    parent = Bin(0b1010 << 60, 4)
    low, high = parent.children()
    assert (low.start, high.end) == (parent.start, parent.end)
    assert low.end + 1 == high.start
    assert (str(parent), str(low)) == ("1010/4", "10100/5")


@pytest.mark.parametrize("bins", [0, 3, -2, 1 << 21])
def test_a_number_of_bins_that_is_no_power_of_two_is_refused(bins: int) -> None:
    with pytest.raises(PipelineError, match="is not a number of bins"):
        Layout.uniform(bins, [0], 1)


@pytest.mark.parametrize("bits", [[1], [1, 1, 1], [2, 1, 2], [0, 1]])
def test_bins_that_do_not_cover_the_space_are_refused(bits: list[int]) -> None:
    with pytest.raises(HeadraceError, match=r"bin|prefix"):
        Layout(bits, [0] * len(bits), 1)


def test_an_owner_that_is_no_worker_is_refused() -> None:
    with pytest.raises(HeadraceError, match="owner that is not a worker"):
        Layout([1, 1], [0, 2], 2)


@pytest.mark.parametrize("bins", [4_096, 8_192])
def test_a_layout_of_very_many_runs_is_written_as_columns_and_read_as_it_was(bins: int) -> None:
    layout = Layout.uniform(bins, np.arange(bins) % 300, 300)
    wire = layout.to_wire()
    assert bool(wire.columns) == (bins > 4_096)
    assert Layout.from_wire(wire) == layout
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(wire), type=LayoutWire) == wire
    assert wire == Layout.from_wire(wire).to_wire()
    assert wire != Layout.uniform(bins, (np.arange(bins) + 1) % 300, 300).to_wire()
    assert len(layout.runs()) == bins
