"""The difference of two layouts is what must move, in bins of their common refinement, and no more."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import example, given

from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.planner import contiguous
from headrace.keyspace.updates import Update
from headrace.migration.moves import Move, Moves, moves_between
from tests.support.layouts import layouts
from tests.unit.migration.bins_on_workers import World, children, owners, samples


def done(before: Layout, after: Layout) -> World:
    """Splits, moves and merges, carried out one after another."""
    world = World(before)
    found = moves_between(before, after)
    world.apply(Update(0, max(before.workers, after.workers)))
    for level in found.splits:
        world.apply(Update(0, splits=level.pairs()))
    world.apply(Update(0, moves=found.moves.runs()))
    for level in found.merges:
        world.apply(Update(0, merges=level.pairs()))
    world.apply(Update(0, after.workers))
    return world


@given(layouts(), layouts())
@example(Layout([0], [0], 1), Layout([0], [0], 1))
@example(Layout([1, 1], [0, 1], 2), Layout([0], [1], 2))
@example(Layout([1, 1], [0, 1], 2), Layout([1, 2, 2], [1, 0, 0], 2))
def test_splits_then_moves_then_merges_lead_from_one_layout_to_the_other(
    before: Layout, after: Layout
) -> None:
    world = done(before, after)
    assert world.layout() == after
    assert set(world.moved.values()) <= {1}


@given(layouts(), layouts())
def test_exactly_the_hashes_move_whose_worker_is_another(before: Layout, after: Layout) -> None:
    moves = list(moves_between(before, after).moves)
    hashes = samples(before, after)
    for hash_, old, new in zip(
        hashes.tolist(), before.workers_of(hashes), after.workers_of(hashes), strict=True
    ):
        inside = [move for move in moves if move.bin.start <= hash_ <= move.bin.end]
        assert [(move.source, move.target) for move in inside] == (
            [(old, new)] if old != new else []
        )


@given(layouts(), layouts())
def test_no_bin_is_split_further_than_to_lie_inside_one_bin_of_either(
    before: Layout, after: Layout
) -> None:
    found = moves_between(before, after)
    splits = {pair for level in found.splits for pair in level.pairs()}
    merges = {pair for level in found.merges for pair in level.pairs()}
    assert splits <= inner(after) - inner(before)
    assert merges <= inner(before) - inner(after)


def inner(layout: Layout) -> set[tuple[int, int]]:
    """All prefixes above the bins of a layout."""
    return {
        (start >> (64 - bits) << (64 - bits), bits)
        for start, depth in owners(layout)
        for bits in range(depth)
    }


@given(layouts())
def test_between_a_layout_and_itself_there_is_nothing(layout: Layout) -> None:
    assert not moves_between(layout, layout)
    more = Layout(layout.bits, layout.owners, layout.workers + 1)
    assert not moves_between(layout, more)


@given(layouts(), layouts())
def test_runs_name_each_moved_bin_once(before: Layout, after: Layout) -> None:
    moves = moves_between(before, after).moves
    named = [
        ((start + nth * (1 << (64 - bits)), bits), worker)
        for start, bits, count, worker in moves.runs()
        for nth in range(count)
    ]
    assert sorted(named) == sorted((tuple(move.bin), move.target) for move in moves)
    reversed_ = moves.take(np.arange(len(moves))[::-1])
    assert reversed_.runs() == moves.runs()


def test_neighbours_to_one_worker_are_one_run() -> None:
    moves = moves_between(contiguous(1 << 10, 1), contiguous(1 << 10, 2)).moves
    assert moves.runs() == [(1 << 63, 10, 512, 1)]


def test_what_a_bin_weighs_is_shared_by_the_bins_that_it_is_split_into() -> None:
    before, after = Layout([1, 1], [0, 0], 2), Layout([2, 2, 2, 2], [0, 1, 0, 1], 2)
    moves = moves_between(before, after).moves.weighed(before, [1000, 10], [7, 0])
    assert moves.sizes.tolist() == [500, 5]
    assert moves.pending.tolist() == [4, 0]


def test_moves_can_be_given_one_by_one() -> None:
    low, high = (Bin(*child) for child in children(0, 0))
    given_ = [Move(low, 0, 1), Move(high, 1, 0)]
    assert list(Moves.of(given_)) == given_


def test_a_million_bins_are_compared_in_well_under_a_second() -> None:
    one, other = contiguous(1 << 20, 8), contiguous(1 << 20, 9)
    began = time.process_time()
    found = moves_between(one, other)
    found.moves.runs()
    assert time.process_time() - began < 0.5
    assert len(found.moves) > 1 << 18
    began = time.process_time()
    moves_between(contiguous(1 << 19, 9), one)
    assert time.process_time() - began < 1.0
