"""Policies leave drained workers empty, and merge bins that are light again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.errors import PipelineError
from headrace.keyspace.layout import Layout
from headrace.migration.loads import Load
from headrace.migration.measurements import Measurements
from headrace.policies import (
    Balance,
    How,
    Memory,
    MergeBins,
    Nothing,
    Rebalance,
    Rescale,
    Scaling,
    command_for,
)
from headrace.policies.builtin import SplitBins

MS = 1_000.0


def seen(layout: Layout, cpu_us: Any, sizes: Any = None, **more: Any) -> Measurements:
    work, size = np.array(cpu_us, dtype=float), np.array(sizes or [0] * len(layout), dtype=float)
    load = Load.of(layout, sizes=size, records=np.ones(len(layout)), cpu_us=work)
    by_worker = np.bincount(layout.owners, size, minlength=layout.workers).astype(np.int64)
    each = np.ones(layout.workers)
    facts = {"true_rates": each * 100, "arrivals_per_s": 100.0, **more}
    return Measurements(0, None, layout, load, by_worker, each, each, backlog=0, **facts)


EIGHT = Layout.uniform(8, [0, 0, 0, 0, 1, 1, 1, 1], 3)


def test_balance_moves_nothing_to_a_drained_worker() -> None:
    busy = [100 * MS] * 8
    assert isinstance(Balance().decide(seen(EIGHT, busy)), Rebalance)
    assert isinstance(Balance().decide(seen(EIGHT, busy, drained=(2,))), Nothing)


def test_memory_counts_the_room_of_workers_that_are_not_drained() -> None:
    sizes = [100] * 8
    policy = Memory(most_bytes=350)
    assert isinstance(policy.decide(seen(EIGHT, [1] * 8, sizes, drained=())), Rescale)
    decided = policy.decide(seen(EIGHT, [1] * 8, sizes, drained=(0,)))
    assert isinstance(decided, Rescale) and decided.workers == 5, "four share the state"


def test_scaling_asks_for_workers_beside_the_drained_ones() -> None:
    how = {"arrivals_per_s": 280.0, "drained": (1,)}
    decided = Scaling(target=0.7, most=16).decide(seen(EIGHT, [1] * 8, **how))
    assert isinstance(decided, Rescale)
    assert decided.workers == 5, "280 records/s at 70 % of 100 are four workers"


DEEP = Layout([2, 3, 4, 4, 1], [0, 0, 0, 0, 1], 2)


def test_balance_merges_what_is_light_again_as_far_up_as_it_may() -> None:
    policy = Balance(shallowest=2)
    decided = policy.decide(seen(DEEP, [50 * MS, 0.1 * MS, 0.1 * MS, 0.1 * MS, 50 * MS]))
    assert isinstance(decided, MergeBins)
    assert sorted(bits for _, bits in decided.bins) == [2, 3]
    command = command_for(policy, decided, How())
    assert command is not None and command.goal is not None and command.goal.kind == "merge"
    assert isinstance(Balance().decide(seen(DEEP, [1] * 5)), Nothing), "not above its first depth"
    off = Balance(shallowest=2, merge_below=0.0)
    assert isinstance(off.decide(seen(DEEP, [50 * MS, 1, 1, 1, 50 * MS])), Nothing)


@pytest.mark.parametrize("sizes", [[1, 1, 1_000, 1_000, 1], None])
def test_balance_merges_nothing_that_has_much_work_or_much_state(sizes: Any) -> None:
    cpu = [30 * MS, 1, 1, 1, 30 * MS] if sizes else [10 * MS, 10 * MS, 10 * MS, 10 * MS, 40 * MS]
    decided = Balance(shallowest=3).decide(seen(DEEP, cpu, sizes))
    assert isinstance(decided, Nothing)


def test_nothing_is_split_and_merged_in_turns() -> None:
    """What a split leaves is heavier than what is merged, whatever the load of its halves."""
    rng = np.random.default_rng(11)
    for _ in range(200):
        cpu = (rng.pareto(1.2, 8) * 50 * MS).tolist()
        decided = Balance(shallowest=0).decide(seen(EIGHT, cpu))
        if isinstance(decided, SplitBins):
            (start, bits), at = decided.bins[0], None
            at = EIGHT.starts.tolist().index(start)
            half = [*cpu[:at], cpu[at] / 2, cpu[at] / 2, *cpu[at + 1 :]]
            layout = Layout(
                np.insert(EIGHT.bits, at, bits + 1) + (np.arange(9) == at + 1),
                np.insert(EIGHT.owners, at, EIGHT.owners[at]),
                3,
            )
            after = Balance(shallowest=0).decide(seen(layout, half))
            assert not isinstance(after, MergeBins) or (start, bits) not in after.bins


def test_bounds_that_would_split_and_merge_in_turns_are_refused() -> None:
    with pytest.raises(PipelineError):
        Balance(heavy=0.5, merge_below=0.4)
