"""Planners: as even as bins allow, as little moved as can be, and nothing where it is not worth it."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ChangeRefused, InvariantBroken, PipelineError
from headrace.keyspace import planner
from headrace.keyspace.layout import Layout
from headrace.migration.loads import Load, Prices, regroup
from headrace.migration.targets import Worth, balanced, bits_for, contiguous, minimum_movement
from tests.support.layouts import layouts

WORKERS = st.integers(1, 5)
WEIGHTS = st.integers(0, 9)


@st.composite
def loaded(draw: st.DrawFn) -> tuple[Layout, Load]:
    layout = draw(layouts())
    column = st.lists(WEIGHTS, min_size=len(layout), max_size=len(layout))
    return layout, Load.of(layout, sizes=draw(column), records=draw(column), cpu_us=draw(column))


@st.composite
def small(draw: st.DrawFn, *, equal: bool) -> tuple[Layout, Load, int]:
    """Few enough bins and workers to try every layout that there is."""
    bins = draw(st.sampled_from([1, 2, 4, 8]))
    before, after = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    owners = draw(st.lists(st.integers(0, before - 1), min_size=bins, max_size=bins))
    layout = Layout.uniform(bins, owners, before)
    weights = st.just(1) if equal else st.integers(1, 6)
    records = draw(st.lists(weights, min_size=bins, max_size=bins))
    return layout, Load.of(layout, records=records), after


def sums(layout: Layout, work: np.ndarray, workers: int | None = None) -> np.ndarray:
    return np.bincount(layout.owners, work, minlength=workers or layout.workers)


def least(layout: Layout, work: np.ndarray, like: Layout) -> float:
    """The least work that a layout must move to be as even as another: every one is tried."""
    every = np.array(list(itertools.product(range(like.workers), repeat=len(layout))))
    loads = np.stack([(work * (every == w)).sum(axis=1) for w in range(like.workers)], axis=1)
    has = sums(like, work)
    even = (loads.max(axis=1) <= has.max() * 1.000001) & (loads.min(axis=1) >= has.min() * 0.999999)
    return float((work * (every != layout.owners))[even].sum(axis=1).min())


def moved(before: Layout, after: Layout, work: np.ndarray) -> float:
    return float(work[before.owners != after.owners].sum())


# -- another number of workers --------------------------------------------------------------------


@given(small(equal=True))
@settings(max_examples=150)
def test_of_bins_of_equal_work_exactly_the_least_number_moves(
    case: tuple[Layout, Load, int],
) -> None:
    layout, load, workers = case
    after, work = minimum_movement(layout, workers, load), load.work(layout)
    assert moved(layout, after, work) == pytest.approx(least(layout, work, after))
    if workers >= layout.workers:
        counts = np.bincount(after.owners, minlength=workers)
        assert counts.max() - counts.min() <= 1


@given(small(equal=False))
@settings(max_examples=100)
def test_of_bins_of_any_work_at_most_one_heaviest_bin_more_than_the_least_moves(
    case: tuple[Layout, Load, int],
) -> None:
    layout, load, workers = case
    after, work = minimum_movement(layout, workers, load), load.work(layout)
    assert moved(layout, after, work) <= least(layout, work, after) + work.max() * 1.000001


def weights_of(kind: str, bins: int, random: np.random.Generator) -> np.ndarray:
    match kind:
        case "equal":
            return np.ones(bins)
        case "exponential":
            return random.exponential(1, bins)
        case _:
            return random.permutation(1 / np.arange(1, bins + 1) ** random.uniform(0.2, 0.7))


@given(
    st.sampled_from(["equal", "exponential", "zipf"]),
    st.integers(8, 12),
    st.integers(1, 10),
    st.integers(1, 3),
    st.integers(0, 2**32),
)
@settings(max_examples=150)
def test_adding_workers_moves_at_most_a_twentieth_more_than_the_least(
    kind: str, bits: int, workers: int, more: int, seed: int
) -> None:
    random, bins = np.random.default_rng(seed), 1 << bits
    first = Layout.uniform(bins, random.integers(0, workers, bins), workers)
    load = Load.of(first, records=1000 * weights_of(kind, bins, random))
    before = minimum_movement(first, workers, load)
    after = minimum_movement(before, workers + more, load)
    work = load.work(before)
    old, new, mean = sums(before, work), sums(after, work), work.sum() / (workers + more)
    share = moved(before, after, work) / work.sum()
    if work.max() > (old - mean).min() / 4:
        return  # single bins are too heavy for bounds that divide them
    bound = max(np.maximum(old - new.max(), 0).sum(), new.min() * more)
    assert share * work.sum() <= 1.05 * bound
    assert share == pytest.approx(more / (workers + more), rel=0.05)


@given(loaded(), WORKERS, st.sets(st.integers(0, 5), max_size=2))
@settings(max_examples=60)
def test_removing_workers_moves_only_what_they_own(
    case: tuple[Layout, Load], workers: int, avoid: set[int]
) -> None:
    layout, load = case
    if workers > layout.workers or set(range(workers)) <= avoid:
        return
    leave = avoid | set(range(workers, layout.workers))
    after = minimum_movement(layout, workers, load, avoid=avoid)
    stay = ~np.isin(layout.owners, list(leave))
    assert not np.isin(after.owners, list(leave)).any()
    assert after.workers == workers
    if not stay.all():
        assert (after.owners[stay] == layout.owners[stay]).all()


@given(loaded(), WORKERS, st.sampled_from(["contiguous", "minimum"]))
def test_no_worker_gets_more_than_the_mean_and_a_heaviest_bin(
    case: tuple[Layout, Load], workers: int, name: str
) -> None:
    layout, load = case
    planned = contiguous if name == "contiguous" else minimum_movement
    after, work = planned(layout, workers, load), load.work(layout)
    most = max(work.sum() / workers + work.max(), 0.0)
    if name == "minimum" and workers < layout.workers:
        most = max(most, sums(layout, work)[:workers].max())  # who stays gives nothing
    assert sums(after, work).max() <= most * 1.000001
    assert (after.bits == layout.bits).all()


def test_one_worker_replaced_by_another_hands_its_bins_over_and_no_other_moves() -> None:
    layout = planner.contiguous(64, 4)
    after = minimum_movement(layout, 5, avoid={1})
    assert (after.owners == np.where(layout.owners == 1, 4, layout.owners)).all()


def test_a_million_bins_are_planned_in_a_few_seconds() -> None:
    random = np.random.default_rng(1)
    layout = planner.contiguous(1 << 20, 64)
    load = Load.of(layout, records=random.exponential(100, 1 << 20))
    began = time.process_time()
    minimum_movement(layout, 65, load)
    contiguous(layout, 65, load)
    assert time.process_time() - began < 3


def test_without_a_worker_there_is_no_layout() -> None:
    layout = planner.contiguous(4, 2)
    for planned in (contiguous, minimum_movement):
        with pytest.raises(ChangeRefused, match="none may own a bin"):
            planned(layout, 2, avoid={0, 1})
        with pytest.raises(ChangeRefused, match="none may own a bin"):
            planned(layout, 0)


# -- neighbours -----------------------------------------------------------------------------------


@given(st.integers(0, 8), WORKERS)
def test_contiguous_is_herons_where_no_load_is_known(bits: int, workers: int) -> None:
    layout = Layout.uniform(1 << bits, np.zeros(1 << bits), 1)
    assert contiguous(layout, workers) == planner.contiguous(1 << bits, workers)


@given(loaded(), WORKERS, st.sets(st.integers(0, 4), max_size=2))
@settings(max_examples=60)
def test_contiguous_workers_have_neighbours(
    case: tuple[Layout, Load], workers: int, avoid: set[int]
) -> None:
    layout, load = case
    if set(range(workers)) <= avoid:
        return
    after = contiguous(layout, workers, load, avoid=avoid)
    assert (np.diff(after.owners) >= 0).all()
    assert not set(after.owners.tolist()) & avoid


# -- dynamic sharding -----------------------------------------------------------------------------


@given(layouts(), WORKERS, st.sampled_from([0.9, 0.5, 0.2, 0.1]))
def test_dynamic_sharding_has_as_many_bins_as_the_imbalance_asks_for(
    layout: Layout, workers: int, imbalance: float
) -> None:
    after = minimum_movement(layout, workers, imbalance=imbalance)
    assert len(after) / 2 < workers / imbalance <= len(after) * 1.000001
    assert len(set(after.bits.tolist())) == 1


@pytest.mark.parametrize("workers", range(1, 12))
def test_dynamic_sharding_keeps_workers_within_its_imbalance_and_moves_little(workers: int) -> None:
    before = minimum_movement(planner.contiguous(1, 1), workers, imbalance=0.1)
    after = minimum_movement(before, workers + 1, imbalance=0.1)
    counts = np.bincount(after.owners)
    assert counts.max() <= counts.min() * 1.1 + 1
    fine = np.repeat(before.owners, len(after) // len(before))
    assert (fine != after.owners).mean() <= 1 / (workers + 1) + 1 / len(after)


@pytest.mark.parametrize("imbalance", [0, 1, -0.5])
def test_an_imbalance_that_is_no_share_is_refused(imbalance: float) -> None:
    with pytest.raises(PipelineError, match="cannot differ by"):
        bits_for(3, imbalance)


# -- rebalancing ----------------------------------------------------------------------------------


def skewed(sizes: int = 0) -> tuple[Layout, Load]:
    """Two workers, of which the first has three quarters of 80 ms of work."""
    layout = planner.contiguous(16, 2)
    records = np.where(layout.owners == 0, 7_500.0, 2_500.0)
    return layout, Load.of(layout, records=records, sizes=[sizes] * 16)


def test_skew_is_levelled_where_that_is_worth_it_and_the_reason_says_what_is_won() -> None:
    layout, load = skewed()
    target = balanced(layout, load)
    has = sums(target.layout, load.work(layout))
    assert has.max() / has.min() < 1.01
    assert "1.50 times the mean" in target.reason
    assert "moving 4 bins (0 bytes) makes the most 40.5 ms" in target.reason


@pytest.mark.parametrize(
    ("worth", "sizes", "why"),
    [
        (Worth(gain=2.0), 0, "is less than 2.0"),
        (Worth(floor_us=40_000), 0, "ms saved a step are less than"),
        (Worth(within_steps=10), 10_000_000, "more than 10 steps save"),
    ],
)
def test_what_is_not_worth_it_leaves_the_layout_as_it_is(
    worth: Worth, sizes: int, why: str
) -> None:
    layout, load = skewed(sizes)
    target = balanced(layout, load, worth=worth)
    assert target.layout is layout
    assert why in target.reason


@given(loaded())
def test_a_balanced_layout_is_left_alone(case: tuple[Layout, Load]) -> None:
    layout, load = case
    worth = Worth(floor_us=0.1, within_steps=10**9)
    once = balanced(layout, load, worth=worth)
    again = balanced(once.layout, load, worth=worth)
    assert again.layout is once.layout
    work = load.work(layout)
    if once.layout is not layout:
        assert sums(layout, work).max() >= 1.2 * sums(once.layout, work).max()


@given(loaded(), st.data())
@settings(max_examples=60)
def test_a_worker_that_is_to_be_drained_has_nothing_afterwards(
    case: tuple[Layout, Load], data: st.DataObject
) -> None:
    layout, load = case
    drained = data.draw(st.sets(st.integers(0, layout.workers - 1), max_size=layout.workers - 1))
    target = balanced(layout, load, worth=Worth(gain=1e9), avoid=drained)
    assert not set(target.layout.owners.tolist()) & drained
    if not set(layout.owners.tolist()) & drained:
        assert target.layout is layout


# -- loads ----------------------------------------------------------------------------------------


def test_work_is_cpu_where_it_was_measured_and_records_elsewhere_and_bytes_if_they_have_a_price() -> (
    None
):
    layout = planner.contiguous(2, 1)
    none = Prices(idle=0)
    assert Load.of(layout, records=[5, 1], cpu_us=[10, 0]).work(layout, none).tolist() == [10, 0]
    assert Load.of(layout, records=[5, 1]).work(layout, none).tolist() == [5, 1]
    priced = Prices(idle=0, byte_us=0.5)
    assert Load.of(layout, records=[5, 1], sizes=[0, 8]).work(layout, priced).tolist() == [5, 5]


@given(loaded(), layouts())
@settings(max_examples=60)
def test_a_load_is_the_same_in_all_in_other_bins(case: tuple[Layout, Load], other: Layout) -> None:
    layout, load = case
    there = regroup(load.sizes, layout, other)
    assert there.sum() == pytest.approx(load.sizes.sum())
    assert regroup(load.sizes, layout, layout).tolist() == load.sizes.tolist()


def test_a_load_of_another_layout_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="one number a bin"):
        Load.of(planner.contiguous(4, 1), records=[1, 2])
    with pytest.raises(InvariantBroken, match="negative"):
        Load.of(planner.contiguous(2, 1), records=[1, -2])
