"""Policies say what a layout should become, and why; they settle, and do not go to and fro."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import InvariantBroken, PipelineError
from headrace.keyspace.layout import Layout
from headrace.keyspace.planner import contiguous
from headrace.keyspace.updates import Update, updated
from headrace.migration.loads import Load, regroup
from headrace.migration.measurements import Measurements
from headrace.migration.targets import balanced, minimum_movement
from headrace.policies.builtin import (
    Balance,
    Memory,
    Nothing,
    Rebalance,
    Rescale,
    Scaling,
    SplitBins,
    Together,
)

HOUR_US = 3_600_000_000


def measured(
    layout: Layout,
    *,
    records: npt.ArrayLike = 0,
    sizes: npt.ArrayLike = 0,
    rate: float = 0,
    arrivals: float = 0,
    backlog: int = 0,
    changed_us: int | None = None,
) -> Measurements:
    """Measurements of a pipeline whose workers each work at a rate, an hour after its start."""
    each = Load.of(
        layout,
        records=np.broadcast_to(np.asarray(records, np.float64), len(layout)),
        sizes=np.broadcast_to(np.asarray(sizes, np.float64), len(layout)),
    )
    state = np.bincount(layout.owners, each.sizes, minlength=layout.workers).astype(np.int64)
    none = np.zeros(layout.workers)
    return Measurements(
        now_us=HOUR_US,
        changed_us=changed_us,
        layout=layout,
        load=each,
        state_bytes=state,
        records_per_s=none,
        busy_us=none,
        true_rates=none + rate,
        arrivals_per_s=arrivals,
        backlog=backlog,
    )


# -- scaling: DS2 ---------------------------------------------------------------------------------


@given(st.integers(1, 50), st.floats(1e3, 1e6), st.floats(1, 1e8))
@settings(max_examples=60)
def test_as_many_workers_as_the_input_needs_and_then_no_change(
    workers: int, rate: float, arrivals: float
) -> None:
    policy = Scaling(most=10**6)
    decided = policy.decide(measured(contiguous(64, workers), rate=rate, arrivals=arrivals))
    busy = arrivals / (rate * workers)
    if isinstance(decided, Rescale):
        assert not policy.low <= busy <= policy.high
        assert (decided.workers > workers) == (busy > policy.high)
        assert arrivals / (rate * decided.workers) <= policy.target * 1.000001
        again = policy.decide(
            measured(contiguous(64, decided.workers), rate=rate, arrivals=arrivals)
        )
        assert isinstance(again, Nothing), "one change is enough where rates were measured"
    elif workers > 1:
        few = abs(np.ceil(arrivals / (rate * policy.target)) - workers) < workers * 0.1
        assert policy.low <= busy <= policy.high or few


def test_the_reason_says_what_was_measured() -> None:
    decided = Scaling().decide(measured(contiguous(64, 4), rate=10_000, arrivals=70_000))
    assert str(decided) == (
        "rescale to 10: 70000 records/s to work on keep 4 workers of 10000 records/s each "
        "175% busy, where 50% to 85% are wanted"
    )


def test_a_backlog_counts_as_input_that_is_to_be_worked_off_in_time() -> None:
    layout, policy = contiguous(64, 4), Scaling(catch_up_us=100_000_000)
    calm = measured(layout, rate=10_000, arrivals=25_000)
    assert isinstance(policy.decide(calm), Nothing)
    behind = replace(calm, backlog=2_000_000)  # 20 000 records/s more for 100 s
    assert policy.decide(behind) == Rescale(7, policy.decide(behind).reason)


def test_a_first_worker_becomes_as_many_as_are_needed_at_once() -> None:
    decided = Scaling().decide(measured(contiguous(64, 1), rate=1_000, arrivals=350_000))
    assert isinstance(decided, Rescale) and decided.workers == 500


@pytest.mark.parametrize(
    ("policy", "arrivals", "expected"),
    [
        (Scaling(most=6), 100_000, Rescale(6, "")),
        (Scaling(most=4), 100_000, Nothing("")),
        (Scaling(fewest=3), 100, Rescale(3, "")),
        (Scaling(fewest=8), 28_000, Rescale(8, "")),
        (Scaling(most=2), 28_000, Rescale(2, "")),
        (Scaling(least_gain=0.5), 35_000, Nothing("")),
        (Scaling(most_bytes=100), 100, Rescale(2, "")),
    ],
)
def test_bounds_hold(policy: Scaling, arrivals: float, expected: Nothing | Rescale) -> None:
    seen = measured(contiguous(64, 4), rate=10_000, arrivals=arrivals, sizes=3)  # 192 bytes
    decided = policy.decide(seen)
    assert type(decided) is type(expected)
    assert getattr(decided, "workers", None) == getattr(expected, "workers", None)


def test_after_a_change_nothing_is_wanted_for_a_while_and_fewer_workers_for_longer() -> None:
    def decide(seconds_ago: int, arrivals: float) -> type:
        changed = HOUR_US - seconds_ago * 1_000_000
        seen = measured(contiguous(64, 4), rate=10_000, arrivals=arrivals, changed_us=changed)
        return type(Scaling().decide(seen))

    assert [decide(ago, 90_000) for ago in (10, 59, 60, 700)] == [Nothing] * 2 + [Rescale] * 2
    assert [decide(ago, 9_000) for ago in (10, 60, 599, 600)] == [Nothing] * 3 + [Rescale]


def test_without_a_rate_nothing_is_known() -> None:
    assert isinstance(Scaling().decide(measured(contiguous(4, 2), arrivals=1e9)), Nothing)


# -- memory ---------------------------------------------------------------------------------------


@given(
    st.integers(1, 6),
    st.lists(st.integers(0, 400), min_size=16, max_size=16),
    st.integers(50, 2000),
)
def test_following_the_decisions_for_memory_leads_to_workers_with_room(
    workers: int, sizes: list[int], most: int
) -> None:
    policy, layout = Memory(most_bytes=most), contiguous(16, workers)
    first, weights = layout, np.array(sizes, dtype=np.float64)
    for _ in range(12):
        has = regroup(weights, first, layout)
        seen = measured(layout, sizes=has, records=has)
        match policy.decide(seen):
            case Nothing():
                assert seen.state_bytes.max() <= most
                return
            case SplitBins(bins):
                layout = updated(layout, Update(0, splits=bins))
            case Rescale(more):
                assert more > layout.workers
                layout = minimum_movement(layout, more, seen.load)
            case Rebalance():
                even = minimum_movement(layout, layout.workers, seen.load)
                if even == layout:
                    return  # bins do not allow more
                layout = even


@pytest.mark.parametrize(
    ("policy", "places", "wanted"),
    [
        (Memory(most_bytes=30), 8, 8),
        (Memory(most_bytes=30, most_workers=12), 8, 12),
        (Memory(most_bytes=30), 0, 46),
    ],
)
def test_memory_wants_no_more_workers_than_can_run(
    policy: Memory, places: int, wanted: int
) -> None:
    """92 workers were wanted where two could run."""
    seen = measured(contiguous(64, 4), sizes=16)
    decided = policy.decide(replace(seen, places=places))
    assert isinstance(decided, Rescale) and decided.workers == wanted


def test_state_that_fits_is_spread_and_state_that_does_not_gets_more_workers() -> None:
    sizes = np.where(np.arange(16) < 8, 100, 10)
    layout = contiguous(16, 2)  # 800 and 80 bytes
    assert isinstance(Memory(most_bytes=700).decide(measured(layout, sizes=sizes)), Rebalance)
    decided = Memory(most_bytes=300).decide(measured(layout, sizes=sizes))
    assert isinstance(decided, Rescale) and decided.workers == 4
    capped = Memory(most_bytes=300, most_workers=2).decide(measured(layout, sizes=sizes))
    assert isinstance(capped, Nothing) and "the most that there may be" in capped.reason
    decided = Memory(most_bytes=120).decide(measured(layout, sizes=sizes))
    assert isinstance(decided, SplitBins) and len(decided.bins) == 8
    recent = measured(layout, sizes=sizes, changed_us=HOUR_US)
    assert isinstance(Memory(most_bytes=300).decide(recent), Nothing)


# -- skew -----------------------------------------------------------------------------------------


def test_skew_that_moves_can_level_is_levelled_and_then_left_alone() -> None:
    layout = contiguous(16, 2)
    records = np.where(layout.owners == 0, 7_500, 2_500)
    seen = measured(layout, records=records)
    assert isinstance(Balance().decide(seen), Rebalance)
    after = balanced(layout, seen.load).layout
    assert isinstance(Balance().decide(measured(after, records=records)), Nothing)
    recent = measured(layout, records=records, changed_us=HOUR_US - 1)
    assert isinstance(Balance().decide(recent), Nothing)


def test_a_bin_that_is_too_heavy_for_any_worker_is_split_until_its_parts_can_be_shared() -> None:
    layout, decisions = contiguous(4, 4), []
    hot = np.array([100_000, 1_000, 1_000, 1_000], dtype=np.float64)
    first = layout
    for _ in range(10):
        seen = measured(layout, records=regroup(hot, first, layout))
        decided = Balance().decide(seen)
        decisions.append(type(decided))
        match decided:
            case SplitBins(bins):
                layout = updated(layout, Update(0, splits=bins))
            case Rebalance():
                layout = balanced(layout, seen.load).layout
            case _:
                break
    assert decisions[0] is SplitBins
    assert decisions[-1] is Nothing
    has = np.bincount(layout.owners, regroup(hot, first, layout))
    assert has.max() < 1.3 * has.mean()


@pytest.mark.parametrize("background", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("policy", [Balance(), Memory(most_bytes=300_000)])
@given(hot=st.integers(0, (1 << 64) - 1))
@settings(max_examples=20)
def test_a_hot_key_is_split_a_few_times_and_then_said_to_be_one(
    policy: Balance | Memory, background: float, hot: int
) -> None:
    """The bin of a hot key was split on and on, 14 bits deep, though no split can help."""
    layout, splits = contiguous(16, 4), 0
    for _ in range(30):
        widths = (layout.ends - layout.starts).astype(np.float64) / 2**64
        has = 1_000_000 * background * widths
        has[int(layout.bins_of(np.array([hot], dtype=np.uint64))[0])] += 1_000_000
        seen = measured(layout, records=has, sizes=has)
        match policy.decide(seen):
            case SplitBins(bins):
                splits += len(bins)
                layout = updated(layout, Update(0, splits=bins))
            case Rebalance():
                even = balanced(layout, seen.load).layout
                if even == layout:
                    break
                layout = even
            case Rescale(more):
                layout = minimum_movement(layout, more, seen.load)
            case Nothing(reason):
                assert "again and again" in reason and "two_phase" in reason
                break
    assert isinstance(policy.decide(seen), Nothing)
    assert splits <= 3 + 4 * bool(background), "three of the hot one, and a few others"


def test_small_differences_are_left_alone() -> None:
    layout = contiguous(4, 2)
    decided = Balance().decide(measured(layout, records=[10, 10, 1, 1]))
    assert isinstance(decided, Nothing)
    assert "ms saved a step are less than" in decided.reason


# -- together -------------------------------------------------------------------------------------


def test_of_several_policies_the_first_that_wants_a_change_decides() -> None:
    layout = contiguous(16, 2)
    seen = measured(layout, records=np.where(layout.owners == 0, 7_500, 2_500), rate=1, arrivals=9)
    calm = Memory(most_bytes=10)
    assert isinstance(Together([calm, Balance(), Scaling()]).decide(seen), Rebalance)
    assert isinstance(Together([calm, Scaling(), Balance()]).decide(seen), Rescale)
    assert "no worker has more" in str(Together([calm]).decide(seen))
    assert isinstance(Together([]).decide(seen), Nothing)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Scaling(low=0.9),
        lambda: Scaling(fewest=5, most=4),
        lambda: Memory(most_bytes=0),
        lambda: Memory(most_bytes=1, fill=1.5),
        lambda: Memory(most_bytes=1, deepest=64),
        lambda: Balance(heavy=0),
    ],
)
def test_a_policy_that_cannot_be_is_refused(wrong: object) -> None:
    with pytest.raises(PipelineError, match="a policy cannot be"):
        wrong()


def test_measurements_of_another_number_of_workers_are_refused() -> None:
    seen = measured(contiguous(4, 2))
    with pytest.raises(InvariantBroken, match="one number a worker"):
        replace(seen, true_rates=np.zeros(3))


# -- what is not known ----------------------------------------------------------------------------


def test_before_enough_was_measured_nothing_is_balanced() -> None:
    skewed = measured(contiguous(8, 2), records=[900_000, 0, 0, 0, 0, 0, 0, 100_000])
    assert not isinstance(Balance().decide(skewed), Nothing)
    assert isinstance(Balance().decide(replace(skewed, known=False)), Nothing)


@given(st.integers(1, 40), st.floats(1e3, 1e6), st.floats(0.51, 1.0))
@settings(max_examples=60)
@example(3, 52_339.0, 0.85)
def test_while_more_is_waiting_than_is_read_workers_become_more_until_all_is_read(
    workers: int, rate: float, read: float
) -> None:
    """How much more there is nobody knows; so they grow by a share, and never the other way."""
    policy = Scaling(most=10**6)
    busy = replace(measured(contiguous(64, workers), rate=rate), saturated=True)
    decided = policy.decide(replace(busy, arrivals_per_s=read * rate * workers))
    assert isinstance(decided, Rescale)
    assert workers < decided.workers <= np.ceil(workers / policy.target * (1 + 1e-9))
    calm = replace(busy, arrivals_per_s=read * rate * workers, saturated=False)
    assert not isinstance(policy.decide(calm), Rescale) or read > policy.high * (1 - 1e-9)


def test_where_workers_have_time_left_others_would_not_help() -> None:
    seen = measured(contiguous(64, 4), rate=10_000, arrivals=8_000)
    decided = Scaling().decide(replace(seen, saturated=True))
    assert isinstance(decided, Nothing) and "but not for the workers" in decided.reason


def test_records_that_lead_to_others_count_with_these() -> None:
    seen = measured(contiguous(64, 4), rate=10_000, arrivals=25_000)
    assert isinstance(Scaling().decide(seen), Nothing)
    assert Scaling().decide(replace(seen, amplification=2.8)) == Rescale(
        10, Scaling().decide(replace(seen, amplification=2.8)).reason
    )


@pytest.mark.parametrize(
    ("policy", "places", "wanted"),
    [(Scaling(), 6, 6), (Scaling(most=8), 6, 8), (Scaling(), 0, 10), (Scaling(fewest=7), 6, 7)],
)
def test_more_workers_than_can_work_at_once_are_only_wanted_where_somebody_says_so(
    policy: Scaling, places: int, wanted: int
) -> None:
    seen = measured(contiguous(64, 4), rate=10_000, arrivals=70_000)
    decided = policy.decide(replace(seen, places=places))
    assert isinstance(decided, Rescale) and decided.workers == wanted
