"""Facts about bins taken over to another layout, and how much is read ahead at a time, by brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import MAX_HASH, Ranges
from headrace.runfiles.portions import affordable
from headrace.state.relayout import Carry, changed_bins, refined

DEPTH = 4
CELLS = 1 << DEPTH
WIDTH = 2**64 // CELLS


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Return the leaves of a random prefix tree of at most 16 bins, with random owners."""
    bits: list[int] = []

    def grow(depth: int) -> None:
        if depth < DEPTH and draw(st.booleans()):
            grow(depth + 1)
            grow(depth + 1)
        else:
            bits.append(depth)

    grow(0)
    owners = draw(st.lists(st.integers(0, 2), min_size=len(bits), max_size=len(bits)))
    return Layout(bits, owners, 3)


def cells_of(layout: Layout, at: int) -> set[int]:
    return set(range(int(layout.starts[at]) // WIDTH, int(layout.ends[at]) // WIDTH + 1))


@settings(max_examples=200)
@given(layouts(), layouts(), st.data())
def test_a_child_inherits_and_a_merged_bin_has_what_follows_from_all_of_its_children(
    before: Layout, after: Layout, data: st.DataObject
) -> None:
    length = len(before)
    numbers = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=length, max_size=length)), dtype=np.int64
    )
    carry, flags = Carry(before, after), numbers > 4
    for at in range(len(after)):
        mine = cells_of(after, at)
        sharing = [b for b in range(length) if cells_of(before, b) & mine]
        assert carry.lowest(numbers)[at] == min(numbers[sharing])
        assert carry.highest(numbers)[at] == max(numbers[sharing])
        assert carry.all(flags)[at] == all(flags[sharing])
        assert carry.any(flags)[at] == any(flags[sharing])
    kept = {(int(s), int(b)) for s, b in zip(after.starts, after.bits, strict=True)}
    were = [(int(s), int(b)) for s, b in zip(before.starts, before.bits, strict=True)]
    assert changed_bins(before, after).tolist() == [n for n, b in enumerate(were) if b not in kept]


@settings(max_examples=200)
@given(layouts(), layouts())
def test_before_merges_no_bin_has_hashes_of_two_earlier_ones(before: Layout, after: Layout) -> None:
    fine = refined(before, after)
    assert len(fine) == len({*before.starts.tolist(), *after.starts.tolist()})
    for at in range(len(fine)):
        mine = cells_of(fine, at)
        assert any(mine <= cells_of(before, b) for b in range(len(before)))
        (into,) = [a for a in range(len(after)) if mine <= cells_of(after, a)]
        assert fine.owners[at] == after.owners[into]


chosen = st.sets(st.integers(0, CELLS - 1), min_size=1)
blocks = st.lists(
    st.tuples(st.integers(0, CELLS - 1), st.integers(0, 3), st.integers(1, 1_000)), max_size=20
)


@settings(max_examples=60)
@given(chosen, blocks, st.integers(50, 5_000), st.sampled_from([8, 64, 4_096]))
def test_what_is_read_at_a_time_fits_the_budget_and_is_all_in_the_end(
    cells: set[int], drawn: list[tuple[int, int, int]], budget: int, parts: int
) -> None:
    left = Ranges.of((c * WIDTH, c * WIDTH + WIDTH - 1) for c in sorted(cells)).joined()
    spans = [(c * WIDTH, min(MAX_HASH, (c + more + 1) * WIDTH - 1), n) for c, more, n in drawn]
    columns: Any = [np.array([s[at] for s in spans], dtype=np.float64) for at in range(3)]

    def bytes_in(ranges: Ranges) -> float:
        """Each cell has its even share of the blocks over it, and ranges their share of cells."""
        total = 0.0
        for first, last in ranges.pairs():
            for low, high, nbytes in spans:
                common = min(last, high) - max(first, low) + 1
                total += nbytes * max(0, common) / (high - low + 1)
        return total

    calls, least = 0, len(cells) * WIDTH / parts
    part_bytes = sum(n for *_, n in drawn) * len(cells) / parts
    while len(left):
        part = affordable(columns, left, budget, least)
        assert len(part)
        assert part.firsts[0] == left.firsts[0], "in order"
        if calls == 0:
            assert bytes_in(part) <= max(budget * 1.001 + 20, part_bytes), "but for the least part"
        left = left.without(part)
        calls += 1
        assert calls <= 2 * sum(n for *_, n in drawn) / budget + 20
        assert calls <= parts + 1
