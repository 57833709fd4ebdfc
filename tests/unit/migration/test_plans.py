"""A plan leads exactly to its target: each move once, and rounds interfere only where they say so."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.planner import contiguous
from headrace.keyspace.updates import updated
from headrace.migration.moves import Move, Moves, moves_between
from headrace.migration.plans import MigrationPlan, plan
from headrace.migration.rounds import (
    Batched,
    Rounds,
    Strategy,
    all_at_once,
    batched,
    by_demand,
    fluid,
)
from tests.support.layouts import layouts
from tests.unit.migration.bins_on_workers import World, random_layout

STRATEGIES = st.one_of(
    st.builds(all_at_once, gap=st.booleans()),
    st.builds(fluid, gap=st.booleans()),
    st.builds(batched, st.none() | st.integers(1, 9), gap=st.booleans()),
)


def workers_of(moves: Moves) -> Counter[int]:
    return Counter(worker for move in moves for worker in (move.source, move.target))


def assert_leads_to_its_target(found: MigrationPlan) -> None:
    """Carry a plan out, round by round, and hold it against what it promised."""
    world = World(found.before)
    for update in found.updates(step=100):
        world.apply(update)
    assert world.layout() == found.after
    planned = Counter(tuple(move.bin) for round_ in found.rounds for move in round_.moves)
    assert world.moved == planned
    assert set(planned.values()) <= {1}
    for round_ in found.rounds:
        assert len(round_.moves)
        assert round_.interferes == any(count > 1 for count in workers_of(round_.moves).values())


@given(layouts(), layouts(), STRATEGIES)
@example(Layout([0], [0], 1), Layout([0], [0], 3), fluid())
@example(Layout([1, 1], [1, 1], 2), Layout([1, 1], [0, 0], 1), all_at_once())
def test_carrying_out_all_rounds_gives_exactly_the_target(
    before: Layout, after: Layout, strategy: Strategy
) -> None:
    found = plan(before, after, strategy)
    assert_leads_to_its_target(found)
    assert all(round_.gap == strategy.gap for round_ in found.rounds)
    layout = before
    for update in found.updates(step=100):
        layout = updated(layout, update)
    assert layout == after


@given(layouts(), layouts(), STRATEGIES)
@settings(max_examples=60)
def test_there_is_an_update_for_each_round_and_few_more_for_bins_of_other_sizes(
    before: Layout, after: Layout, strategy: Strategy
) -> None:
    found = plan(before, after, strategy)
    updates = list(found.updates(step=7))
    assert [update.step for update in updates] == list(range(7, 7 + len(found)))
    assert sum(1 for update in updates if update.moves) == len(found.rounds)
    only_bins = max(len(found.splits) - 1, 0) + max(len(found.merges) - 1, 0)
    assert len(found) - only_bins == (len(found.rounds) or int(before != after))
    assert not any(update.moves for update in updates[: found.ahead])


def carry_out_random_plans(how_many: int) -> None:
    random = Random(how_many)
    for _ in range(how_many):
        before = random_layout(random)
        after = random_layout(random)
        if random.random() < 0.5:  # most migrations keep their bins
            owners = [random.randrange(after.workers) for _ in before.bits]
            after = Layout(before.bits, owners, after.workers)
        strategy = random.choice(
            [batched(), batched(), batched(random.randint(1, 9)), fluid(), all_at_once()]
        )
        found = plan(before, after, strategy)
        assert_leads_to_its_target(found)
        if strategy == batched():
            assert not found.rounds.interferes.any()


def test_two_thousand_random_plans_lose_no_move_and_make_none_twice() -> None:
    carry_out_random_plans(2_000)


@pytest.mark.soak
def test_ten_thousand_random_plans_lose_no_move_and_make_none_twice() -> None:
    carry_out_random_plans(10_000)


@given(layouts(), layouts(), STRATEGIES, STRATEGIES, st.data())
def test_what_is_left_of_a_plan_follows_from_the_layout_that_was_reached(
    before: Layout, after: Layout, strategy: Strategy, another: Strategy, data: st.DataObject
) -> None:
    found = plan(before, after, strategy)
    reached = data.draw(st.integers(0, len(found)))
    world = World(before)
    for update in list(found.updates(0))[:reached]:
        world.apply(update)
    for update in plan(world.layout(), after, another).updates(0):
        world.apply(update)
    assert world.layout() == after
    assert set(world.moved.values()) <= {1}


@given(layouts(), layouts(), STRATEGIES, st.data())
def test_a_plan_back_undoes_what_was_done_and_no_more(
    before: Layout, after: Layout, strategy: Strategy, data: st.DataObject
) -> None:
    found = plan(before, after, strategy)
    world = World(before)
    for update in list(found.updates(0))[: data.draw(st.integers(0, len(found)))]:
        world.apply(update)
    there = world.moved.copy()
    for update in plan(world.layout(), before, fluid()).updates(0):
        world.apply(update)
    assert world.layout() == before
    assert sum(world.moved.values()) == 2 * sum(there.values())


# -- strategies -----------------------------------------------------------------------------------


def moves_of(pairs: list[tuple[int, int]], pending: list[int] | None = None) -> Moves:
    moves = Moves.of([Move(Bin(n << 54, 10), *ends) for n, ends in enumerate(pairs)])
    moves.pending[:] = pending or 0
    return moves


def sizes(rounds: Rounds) -> list[int]:
    return [len(round_.moves) for round_ in rounds]


def test_all_at_once_is_one_round_fluid_one_for_each_move_and_batched_in_between() -> None:
    moves = moves_between(contiguous(64, 4), contiguous(64, 8)).moves
    assert sizes(all_at_once().rounds(moves)) == [len(moves)]
    assert sizes(fluid().rounds(moves)) == [1] * len(moves)
    assert sizes(all_at_once().rounds(moves.take(slice(0, 0)))) == []


def test_megaphones_own_pattern_takes_its_128_rounds_of_8_bins() -> None:
    bins, workers = 1 << 12, 16
    even = np.arange(bins) % workers
    skewed = np.where(np.arange(bins) < bins // 2, even & ~1, even)
    moves = moves_between(
        Layout.uniform(bins, even, workers), Layout.uniform(bins, skewed, workers)
    ).moves
    rounds = batched().rounds(moves)
    assert (len(moves), set(sizes(rounds)), len(rounds)) == (1024, {8}, 128)
    assert not rounds.interferes.any()


@pytest.mark.parametrize("targets", [[1, 2], [1, 1, 2, 2, 3, 3]])
def test_a_source_of_several_targets_loses_no_move(targets: list[int]) -> None:
    rounds = batched().rounds(moves_of([(0, target) for target in targets]))
    assert sorted(move.target for round_ in rounds for move in round_.moves) == targets
    assert len(rounds) == len(targets)


@given(st.integers(1, 20), st.lists(st.sampled_from([(0, 1), (2, 3), (4, 5), (0, 5)]), max_size=40))
def test_a_number_of_bins_bounds_the_rounds_and_what_fits_in_one_is_one(
    most: int, pairs: list[tuple[int, int]]
) -> None:
    found = sizes(batched(most).rounds(moves_of(pairs)))
    assert sum(found) == len(pairs)
    assert all(size <= most for size in found)
    assert all(a + b > most for a, b in zip(found, found[1:], strict=False))


@given(st.integers(1, 20), st.lists(st.sampled_from([(0, 1), (2, 3), (4, 5), (0, 5)]), max_size=40))
def test_where_no_two_rounds_fit_in_one_none_interferes(
    most: int, pairs: list[tuple[int, int]]
) -> None:
    moves = moves_of(pairs)
    if all(2 * size > most for size in sizes(batched().rounds(moves))):
        assert not batched(most).rounds(moves).interferes.any()


def test_large_rounds_are_cut_evenly_and_small_ones_joined() -> None:
    moves = moves_of([(n, 10 + n) for n in range(9)])
    assert sizes(batched(4).rounds(moves)) == [3, 3, 3]
    one_giver = moves_of([(0, n) for n in range(1, 8)])
    joined = batched(3).rounds(one_giver)
    assert sizes(joined) == [3, 3, 1]
    assert joined.interferes.tolist() == [True, True, False]


def test_a_round_of_no_bins_is_refused() -> None:
    with pytest.raises(PipelineError, match="moves nothing"):
        Batched(0)


@given(st.lists(st.integers(0, 3), max_size=30))
def test_by_demand_puts_what_is_wanted_most_first_and_keeps_the_order_of_equals(
    pending: list[int],
) -> None:
    expected = sorted(range(len(pending)), key=lambda n: -pending[n])
    assert by_demand(pending).tolist() == expected


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), STRATEGIES)
def test_within_a_round_the_most_wanted_bin_comes_first(
    pending: list[int], strategy: Strategy
) -> None:
    pairs = [(n % 3, 3 + n % 2) for n in range(len(pending))]
    for round_ in strategy.rounds(moves_of(pairs, pending)):
        wanted = round_.moves.pending.tolist()
        if not round_.interferes or strategy in (all_at_once(), fluid()):
            assert wanted == sorted(wanted, reverse=True)


def test_of_rounds_that_do_not_interfere_the_most_wanted_goes_first() -> None:
    moves = moves_of([(0, 1), (0, 2), (0, 3)], [0, 50, 900])
    order = [round_.moves.targets.tolist() for round_ in batched().rounds(moves)]
    assert order == [[3], [2], [1]]


def test_rounds_are_a_sequence() -> None:
    rounds = fluid().rounds(moves_of([(0, 1), (1, 2), (2, 3)]))
    assert rounds[-1].moves.targets.tolist() == [3]
    assert [round_.moves.targets.tolist() for round_ in rounds[1:]] == [[2], [3]]
    with pytest.raises(IndexError):
        rounds[3]
