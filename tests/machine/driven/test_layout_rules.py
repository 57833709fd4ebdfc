"""What later layouts keep to: drained workers stay empty, and a pipeline has its way of sharding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.errors import ChangeRefused, PipelineError
from headrace.keyspace.layout import Layout
from headrace.keyspace.planner import contiguous_owners
from headrace.ledger.commands import Command
from headrace.storage import MemoryStore, Store
from headrace.testing import Harness, drive
from tests.support.records import Item
from tests.support.visits import Count

KEYS = [f"key {n}" for n in range(60)]


def driven(store: Store | None = None, *, groups: list[str] | None = None, **how: Any) -> Harness:
    pipeline = hr.Pipeline("ruled", groups=groups or [])
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    for group in groups or [None]:  # type: ignore[list-item]
        pipeline.compute(f"count{group or ''}", Count(), keys={stream: "key"}, group=group)
    return drive(pipeline, storage=store or MemoryStore(), **{"workers": 4, **how})


def push(t: Harness, at: int) -> None:
    for key in KEYS:
        t.push("items", Item(key, at, at))
    t.run()


def owning(t: Harness) -> set[int]:
    return set(t.layout.owners.tolist())


# -- drained workers --------------------------------------------------------------------------


def test_a_drained_worker_gets_nothing_from_later_migrations_until_it_is_undrained() -> None:
    with driven(settings=hr.Settings(retain_steps=1_000)) as t:
        push(t, 1)
        t.drain_workers([1]).wait()
        assert owning(t) == {0, 2, 3}
        t.move(t.layout.bin(0), 2).wait()
        t.rebalance(by="state").wait()
        assert owning(t) == {0, 2, 3}
        t.rescale(6).wait()
        assert owning(t) == {0, 2, 3, 4, 5}
        t.drain_workers(4).wait()
        t.rescale(3).wait()
        assert owning(t) == {0, 2}
        with pytest.raises(ChangeRefused, match="worker 1 is drained"):
            t.move(t.layout.bin(0), 1)
        t.undrain_workers(1)
        t.rescale(4).wait()
        assert owning(t) == {0, 1, 2, 3}
        push(t, 2)
        assert [t.state("count", key)["seen"] for key in KEYS] == [2] * len(KEYS)


def test_drained_workers_are_remembered_over_restarts_with_other_numbers() -> None:
    store = MemoryStore()
    with driven(store) as t:
        push(t, 1)
        t.drain_workers([0, 2]).wait()
        t.crash()
        t.resume(workers=5)
        assert owning(t) == {1, 3, 4}
    with driven(store, workers=3, bins=32) as t:
        push(t, 2)
        assert owning(t) == {1}
        assert Control(store).head().layout_rules.drained == [0, 2]
    Control(store).put(Command("undrain_workers", workers=[2]))
    with driven(store, workers=4) as t:
        push(t, 3)
        assert owning(t) == {1, 2, 3}, "one was undrained while nothing ran"
    with driven(store, workers=1) as t:
        push(t, 3)
        assert owning(t) == {0}, "somebody has to own the state"
        assert Control(store).head().layout_rules.drained == []


def test_workers_that_are_gone_are_not_drained_when_their_number_comes_back() -> None:
    with driven() as t:
        push(t, 1)
        t.drain_workers(3).wait()
        t.rescale(3).wait()
        t.rescale(4).wait()
        assert owning(t) == {0, 1, 2, 3}


def test_a_drain_that_is_aborted_drains_nothing() -> None:
    with driven() as t:
        push(t, 1)
        migration = t.drain_workers(3, strategy=hr.fluid())
        t.step()
        migration.abort()
        t.run()
        t.rebalance(by="state").wait()
        assert migration.state == "aborted" and owning(t) == {0, 1, 2, 3}
        with pytest.raises(ChangeRefused, match="worker 3 is not drained; drained are: none"):
            t.undrain_workers(3)


def test_not_all_workers_can_be_drained() -> None:
    with driven(workers=2) as t:
        t.drain_workers(0).wait()
        with pytest.raises(ChangeRefused, match="none may own a bin"):
            t.drain_workers(1)
        with pytest.raises(ChangeRefused, match="all 1 workers that would be left are drained"):
            t.rescale(1)


# -- ways of sharding -------------------------------------------------------------------------


def neighbours(layout: Layout) -> bool:
    """Return whether each worker has the bins that Heron's equations give it."""
    return bool((layout.owners == contiguous_owners(len(layout), layout.workers)).all())


def test_contiguous_ranges_stay_contiguous_through_rescales_and_restarts() -> None:
    store = MemoryStore()
    with driven(store, layout=hr.contiguous()) as t:
        push(t, 1)
        for workers in (3, 7, 2):
            t.rescale(workers).wait()
            assert t.layout.workers == workers and neighbours(t.layout)
            push(t, 1)
    with driven(store, workers=5) as t:
        push(t, 1)
        assert t.layout.workers == 5 and neighbours(t.layout), "the storage knows its way"
        assert [t.state("count", key)["seen"] for key in KEYS] == [5] * len(KEYS)


def test_in_each_group_contiguous_ranges_are_over_all_workers() -> None:
    with driven(layout=hr.contiguous(), groups=["one", "two"], workers=2) as t:
        push(t, 1)
        t.rescale(3).wait()
        each = contiguous_owners(16, 3).tolist()
        assert t.layout.owners.tolist() == each + each


def test_one_rescale_may_be_contiguous_in_a_pipeline_that_is_not() -> None:
    with driven() as t:
        push(t, 1)
        t.rescale(3, layout=hr.contiguous()).wait()
        assert neighbours(t.layout)
        t.rescale(5).wait()
        assert not neighbours(t.layout), "by default the least state moves"


def test_a_dynamic_layout_has_as_many_bins_as_the_imbalance_allows() -> None:
    with driven(layout=hr.dynamic(0.2), workers=2) as t:
        push(t, 1)
        assert len(t.layout) == 16  # 2 / 0.2, rounded up to a power of two
        for workers, bins in [(5, 32), (7, 64), (1, 8)]:
            t.rescale(workers).wait()
            assert (t.layout.workers, len(t.layout)) == (workers, bins)
            counts = np.bincount(t.layout.owners)
            assert counts.min() >= counts.max() * 0.8
            push(t, 1)
        assert [t.state("count", key)["seen"] for key in KEYS] == [4] * len(KEYS)


def test_another_way_of_sharding_at_a_restart_is_planned_then_and_kept() -> None:
    store = MemoryStore()
    with driven(store, workers=3) as t:
        push(t, 1)
        t.rescale(5).wait()
        assert not neighbours(t.layout)
    with driven(store, workers=5, layout=hr.contiguous()) as t:
        push(t, 1)
        assert neighbours(t.layout)
    with driven(store, workers=5, layout=hr.dynamic(0.25)) as t:
        push(t, 1)
        assert len(t.layout) == 32
        assert [t.state("count", key)["seen"] for key in KEYS] == [3] * len(KEYS)


def test_a_number_of_bins_and_a_dynamic_layout_contradict_each_other() -> None:
    pipeline = hr.Pipeline("ruled")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: "key"})
    with pytest.raises(PipelineError, match="contradict each other"):
        hr.run(pipeline, storage=MemoryStore(), runner="inline", bins=8, layout=hr.dynamic())
    with pytest.raises(PipelineError, match="workers cannot differ by"):
        hr.dynamic(1.5)
