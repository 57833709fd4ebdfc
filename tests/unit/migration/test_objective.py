"""Rounds within an objective never expect a longer step; what cannot be is refused, with the way out."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import ChangeRefused, PipelineError
from headrace.keyspace.layout import Bin
from headrace.keyspace.planner import contiguous
from headrace.migration.costs import Costs
from headrace.migration.moves import Move, Moves, moves_between
from headrace.migration.objective import Estimate, estimate, within
from headrace.migration.rounds import Rounds, Strategy, all_at_once, batched, fluid

MEASURED = Costs(step_us=30_000, bytes_per_s=100e6, bin_us=1_000, busy=0.5)


@st.composite
def weighed(draw: st.DrawFn) -> Moves:
    """Moves from three workers to three others, of bins of up to 10 MB (0.1 s at 100 MB/s)."""
    ends = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(3, 5)), max_size=25))
    moves = Moves.of([Move(Bin(n << 54, 10), *pair) for n, pair in enumerate(ends)])
    for column, most in ((moves.sizes, 10_000_000), (moves.pending, 3)):
        column[:] = draw(st.lists(st.integers(0, most), min_size=len(moves), max_size=len(moves)))
    return moves


COSTS = st.builds(
    Costs,
    step_us=st.floats(0, 50_000),
    bytes_per_s=st.floats(1e7, 1e9),
    bin_us=st.floats(0, 5_000),
    round_us=st.floats(0, 5_000),
    busy=st.floats(0, 0.9),
)


def step_times(rounds: Rounds, costs: Costs) -> list[float]:
    """How long the step of each round takes: its busiest target opens bin after bin."""
    times = []
    for round_ in rounds:
        busy: dict[int, float] = defaultdict(float)
        for move, size in zip(round_.moves, round_.moves.sizes.tolist(), strict=True):
            busy[move.target] += costs.bin_us + size / costs.bytes_per_s * 1e6
        times.append(costs.step_us + costs.round_us + max(busy.values()))
    return times


@given(weighed(), COSTS, st.integers(20_000, 500_000), st.booleans())
def test_no_step_is_expected_to_take_longer_than_the_objective(
    moves: Moves, costs: Costs, objective: int, gap: bool
) -> None:
    strategy = within(objective, costs, gap=gap)
    try:
        rounds = strategy.rounds(moves)
    except ChangeRefused:
        assert strategy.spare_us <= 0 or strategy.too_large(moves)
        return
    assert all(time <= objective + 1 for time in step_times(rounds, costs))
    assert not len(moves) or estimate(rounds, costs).expected_max_us <= objective + 1
    assert sorted(rounds.moves) == sorted(moves)


@given(weighed(), COSTS, st.integers(20_000, 500_000))
def test_a_target_leaves_no_bin_for_the_next_round_that_this_one_has_time_for(
    moves: Moves, costs: Costs, objective: int
) -> None:
    strategy = within(objective, costs)
    if strategy.spare_us <= 0 or strategy.too_large(moves):
        return
    rounds = list(strategy.rounds(moves))
    for now, later in zip(rounds, rounds[1:], strict=False):
        for target in set(later.moves.targets.tolist()):
            took = costs.opening_us(now.moves)[now.moves.targets == target].sum()
            next_ = costs.opening_us(later.moves)[later.moves.targets == target][0]
            assert took + next_ > strategy.spare_us


@given(weighed(), COSTS, st.sampled_from([all_at_once(), fluid(), batched(), batched(3)]))
def test_an_estimate_follows_from_the_rounds_of_any_strategy(
    moves: Moves, costs: Costs, strategy: Strategy
) -> None:
    rounds = strategy.rounds(moves)
    found, times = estimate(rounds, costs), step_times(rounds, costs)
    assert (found.bins, found.bytes) == (len(moves), sum(moves.sizes.tolist()))
    assert (found.rounds, found.interferes) == (len(rounds), sum(r.interferes for r in rounds))
    assert found.expected_max_us == pytest.approx(max(times, default=costs.step_us), abs=1)
    drains = [(time - costs.step_us) * costs.busy / (1 - costs.busy) for time in times[:-1]]
    assert found.expected_duration_us == pytest.approx(sum(times) + sum(drains), abs=1)


def moves_of(*sizes: int) -> Moves:
    """Bins of these sizes from one worker to another."""
    moves = Moves.of([Move(Bin(n << 60, 4), 0, 1) for n in range(len(sizes))])
    moves.sizes[:] = sizes
    return moves


def test_the_objective_sizes_the_rounds() -> None:
    moves = moves_of(*[1_000_000] * 12)  # 11 ms each: 1 for the bin, 10 for its bytes
    sizes = {
        objective: [len(round_.moves) for round_ in within(objective, MEASURED).rounds(moves)]
        for objective in (45_000, 80_000, 250_000)
    }
    assert sizes == {45_000: [1] * 12, 80_000: [4, 4, 4], 250_000: [12]}


def test_without_gaps_a_record_may_wait_for_two_rounds_so_that_each_is_half_as_large() -> None:
    moves = moves_of(*[1_000_000] * 12)
    rounds = within(80_000, MEASURED, gap=False).rounds(moves)
    assert {len(round_.moves) for round_ in rounds} == {2}
    assert estimate(rounds, MEASURED).expected_max_us == 30_000 + 2 * 22_000


def test_bins_that_most_records_wait_for_go_in_the_first_round() -> None:
    moves = moves_of(*[1_000_000] * 4)
    moves.pending[:] = [0, 9, 0, 10]
    first = within(60_000, MEASURED).rounds(moves)[0]
    assert first.moves.pending.tolist() == [10, 9]


def test_a_bin_that_is_too_large_alone_is_named_with_what_would_help() -> None:
    moves = moves_of(1_000, 40_000_000)  # 401 ms
    with pytest.raises(ChangeRefused) as refused:
        within(250_000, MEASURED).rounds(moves)
    assert "bin 0001/4 alone takes 401 ms to open, where 220 ms are to spare" in refused.value.what
    assert "split bin 0001/4 into 2 before it moves" in refused.value.remedy
    assert "raise the objective to 431 ms or more" in refused.value.remedy
    assert [str(bin_) for bin_, _ in within(250_000, MEASURED).too_large(moves)] == ["0001/4"]


@given(st.integers(0, 200_000_000), COSTS, st.integers(20_000, 300_000), st.booleans())
@example(72_974_446, Costs(step_us=42, bytes_per_s=10_000_447, round_us=1_123), 20_000, False)
def test_to_do_as_a_refusal_says_is_enough(
    size: int, costs: Costs, objective: int, gap: bool
) -> None:
    moves = moves_of(size)
    try:
        within(objective, costs, gap=gap).rounds(moves)
    except ChangeRefused as refused:
        words = refused.remedy.split()
        asked = float(words[words.index("ms") - 1])
        raised = within(int(np.ceil(asked * 1000)) + 1, costs, gap=gap)
        if "above" not in words:
            assert len(raised.rounds(moves)) == 1
        if "split" in words:
            times = int(words[words.index("into") + 1]).bit_length() - 1
            half = moves_of(size >> times)
            assert len(within(objective, costs, gap=gap).rounds(half)) == 1


def test_where_steps_take_longer_anyway_nothing_can_be_promised() -> None:
    with pytest.raises(ChangeRefused, match=r"(?s)leaves no time.*above 30 ms"):
        within(25_000, MEASURED).rounds(moves_of(1))
    assert len(within(25_000, MEASURED).rounds(moves_of())) == 0


def test_a_gap_never_ends_where_steps_are_busy_all_the_time() -> None:
    busy = Costs(step_us=30_000, bytes_per_s=1e8, busy=1.0)
    assert estimate(fluid().rounds(moves_of(1, 1)), busy).expected_duration_us is None
    assert estimate(fluid(gap=False).rounds(moves_of(1, 1)), busy).expected_duration_us is not None


def test_an_estimate_names_the_bin_that_takes_longest() -> None:
    moves = moves_of(1_000, 40_000_000, 5)
    assert estimate(batched().rounds(moves), MEASURED).largest == ("0001/4", 401_000)
    nothing = estimate(batched().rounds(moves_of()), MEASURED)
    assert nothing == Estimate(0, 0, 0, 0, 30_000, 0)


def test_the_trade_between_strategies_is_megaphones() -> None:
    layout = contiguous(1 << 10, 4)
    moves = moves_between(layout, contiguous(1 << 10, 8)).moves
    moves = moves.weighed(layout, [8_000_000] * 1024, [0] * 1024)
    once, many, some = (
        estimate(strategy.rounds(moves), MEASURED)
        for strategy in (all_at_once(), fluid(), batched())
    )
    assert once.expected_max_us > 10 * some.expected_max_us
    assert some.expected_max_us == many.expected_max_us
    assert once.expected_duration_us < some.expected_duration_us < many.expected_duration_us


@pytest.mark.parametrize("wrong", [{"bytes_per_s": 0}, {"step_us": -1}, {"bin_us": -1}])
def test_costs_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PipelineError, match="cannot be reckoned with"):
        Costs(**{"step_us": 1.0, "bytes_per_s": 1.0, **wrong})


def test_a_bin_that_no_split_makes_small_enough_has_one_way_out() -> None:
    slow = Costs(step_us=10_000, bytes_per_s=1e8, bin_us=50_000)
    with pytest.raises(ChangeRefused) as refused:
        within(40_000, slow).rounds(moves_of(10))
    assert "split" not in refused.value.remedy
