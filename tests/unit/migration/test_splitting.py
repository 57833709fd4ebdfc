"""Heavy bins are split and light siblings merged, never in turns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Update, updated
from headrace.migration.loads import regroup
from headrace.migration.splitting import Reshaping, SplitRule, reshape
from tests.support.layouts import layouts
from tests.unit.migration.bins_on_workers import children, owners

RULES = st.builds(
    lambda above, part, shallow, deep: SplitRule(above, above * part, shallow + deep, shallow),
    above=st.floats(0.05, 1),
    part=st.floats(0, 0.5),
    shallow=st.integers(0, 3),
    deep=st.integers(0, 9),
)


@st.composite
def worked(draw: st.DrawFn) -> tuple[Layout, np.ndarray]:
    layout = draw(layouts(workers=2))
    work = draw(st.lists(st.integers(0, 20), min_size=len(layout), max_size=len(layout)))
    return layout, np.array(work, dtype=np.float64)


def carried_out(layout: Layout, found: Reshaping) -> Layout:
    layout = updated(layout, Update(0, splits=found.splits.pairs()))
    for level in found.merges:
        layout = updated(layout, Update(0, merges=level.pairs()))
    return layout


@given(worked(), RULES)
@settings(max_examples=60)
def test_exactly_the_bins_with_more_than_their_share_are_split(
    case: tuple[Layout, np.ndarray], rule: SplitRule
) -> None:
    layout, work = case
    heavy = [
        bin_
        for bin_, has in zip(owners(layout), work.tolist(), strict=True)
        if work.any() and has / work.sum() > rule.split_above and bin_[1] < rule.deepest
    ]
    assert reshape(layout, work, rule).splits.pairs() == heavy


@given(worked(), RULES)
@settings(max_examples=60)
def test_siblings_of_one_owner_with_little_work_become_one_as_far_up_as_can_be(
    case: tuple[Layout, np.ndarray], rule: SplitRule
) -> None:
    layout, work = case
    bins, share = owners(layout), dict(zip(owners(layout), work / max(work.sum(), 1), strict=True))
    expected = set()
    for bits in range(max(depth for _, depth in bins) - 1, rule.shallowest - 1, -1):
        for parent in {(start >> (64 - bits) << (64 - bits), bits) for start, _ in bins}:
            low, high = children(*parent)
            if low in bins and high in bins and bins[low] == bins[high]:
                both = share[low] + share[high]
                if both < rule.merge_below:
                    bins[parent], share[parent] = bins[low], both
                    del bins[low], bins[high]
                    expected.add(parent)
    found = reshape(layout, work, rule)
    assert {pair for level in found.merges for pair in level.pairs()} == expected


@given(worked(), RULES, st.floats(0.3, 0.7))
@settings(max_examples=60)
def test_what_was_split_is_not_merged_and_what_was_merged_not_split(
    case: tuple[Layout, np.ndarray], rule: SplitRule, low_half: float
) -> None:
    layout, work = case
    found = reshape(layout, work, rule)
    after = carried_out(layout, found)
    there = regroup(work, layout, after)
    bins = list(owners(after))
    for parent in found.splits.pairs():  # its work is not in equal halves
        low, high = (bins.index(child) for child in children(*parent))
        both = there[low] + there[high]
        there[low], there[high] = both * low_half, both * (1 - low_half)
    again = reshape(after, there, rule)
    merged = {pair for level in found.merges for pair in level.pairs()}
    assert not {pair for level in again.merges for pair in level.pairs()} & set(
        found.splits.pairs()
    )
    assert not set(again.splits.pairs()) & merged


@given(worked(), RULES)
@settings(max_examples=60)
def test_splits_and_merges_change_no_owner(
    case: tuple[Layout, np.ndarray], rule: SplitRule
) -> None:
    layout, work = case
    after = carried_out(layout, reshape(layout, work, rule))
    hashes = np.concatenate([layout.starts, after.starts])
    assert (layout.workers_of(hashes) == after.workers_of(hashes)).all()


def test_one_hot_key_is_split_down_to_the_deepest_and_no_further() -> None:
    layout, rule = Layout([0], [0], 1), SplitRule(0.5, deepest=48)
    hot = 0x123456789ABCDEF0
    for _ in range(60):
        work = np.zeros(len(layout))
        work[layout.bins_of(np.array([hot], dtype=np.uint64))] = 100.0
        found = reshape(layout, work, rule)
        layout = carried_out(layout, found)
    assert int(layout.bits.max()) == 48
    assert len(layout) == 49
    assert not found.splits.pairs()


def test_without_work_nothing_is_split() -> None:
    layout = Layout([1, 1], [0, 0], 1)
    assert not reshape(layout, np.zeros(2), SplitRule(0.1)).splits.pairs()


@pytest.mark.parametrize(
    "rule", [(0.2, 0.15), (1.5, 0.1), (0.5, -0.1), (0.5, 0.1, 60, 0), (0.5, 0.1, 4, 5)]
)
def test_rules_that_would_split_and_merge_in_turns_are_refused(rule: tuple[float, ...]) -> None:
    with pytest.raises(PipelineError, match=r"in turns|bits deep"):
        SplitRule(*rule)
