"""The layout that a run begins with: what there is, or what little must change."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.initial_layout import layout_to_begin_with
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.keyspace.layout import Layout
from headrace.keyspace.planner import contiguous
from headrace.ledger.head import Head
from tests.support.layouts import layouts
from tests.support.schemas import declares


def asking(workers: int, bins: int) -> Any:
    """Return as much of a shape as says what a run asks for."""
    wire = contiguous(bins or 256, workers or 2).to_wire()
    return msgspec.structs.replace(_SHAPE, layout=wire, requested_sizes=(workers, bins))


_SHAPE = PipelineFacts(
    name="p",
    layers=1,
    injectors={},
    nodes=[],
    declared_schema=declares(),
    layout=contiguous(4, 1).to_wire(),
    store="",
    live=[],
    rules={},
    readers={},
    wide_exchange="driver",
)


def left(layout: Layout, requested_sizes: tuple[int, int]) -> Head:
    """Return a pipeline that a run before has left."""
    return Head(7, 1, "", layout.to_wire(), {}, requested_sizes=requested_sizes)


def begun(layout: Layout, requested_sizes: tuple[int, int], now: tuple[int, int]) -> Layout | None:
    wire = layout_to_begin_with(left(layout, requested_sizes), asking(*now))
    return None if wire is None else Layout.from_wire(wire)


def test_a_new_pipeline_gets_neighbouring_bins_for_each_worker() -> None:
    assert layout_to_begin_with(None, asking(3, 8)) == contiguous(8, 3).to_wire()


@given(layouts(), st.integers(0, 4), st.sampled_from([0, 4, 64]))
def test_who_asks_for_the_same_or_for_nothing_goes_on_with_what_there_is(
    layout: Layout, workers: int, bins: int
) -> None:
    assert begun(layout, (workers, bins), (workers, bins)) is None
    assert begun(layout, (workers, bins), (0, 0)) is None


@given(layouts(), st.integers(1, 9))
def test_for_another_number_of_workers_bins_stay_as_they_are(layout: Layout, workers: int) -> None:
    after = begun(layout, (0, 0), (workers, 0))
    if workers == layout.workers:
        assert after is None
        return
    assert after is not None
    assert (after.workers, after.bits.tolist()) == (workers, layout.bits.tolist())


@given(st.integers(1, 9), st.integers(1, 9))
def test_bins_go_to_workers_that_come_or_leave_those_that_go(before: int, workers: int) -> None:
    layout = contiguous(64, before)
    after = begun(layout, (before, 64), (workers, 64)) or layout
    moved = after.owners != layout.owners
    concerned = after.owners[moved] if workers > before else layout.owners[moved]
    assert (concerned >= min(before, workers)).all()
    each = np.bincount(after.owners, minlength=workers)
    assert each.max() - each.min() <= 1 + (64 % before > 0)


def test_from_two_to_five_workers_three_fifths_of_the_state_change_hands_and_no_more() -> None:
    before = contiguous(256, 2)
    after = begun(before, (2, 256), (5, 256))
    assert after is not None
    moved = (after.owners != before.owners).sum()
    assert 153 <= moved <= 155
    assert max(after.owners.tolist().count(worker) for worker in range(5)) <= 52


@given(layouts(), st.sampled_from([4, 16, 64]))
def test_with_another_number_of_bins_each_stays_with_who_had_its_first_hash(
    layout: Layout, bins: int
) -> None:
    after = begun(layout, (0, 0), (0, bins))
    if after is None:
        assert layout == Layout.uniform(bins, layout.owners, layout.workers)
        return
    assert len(after) == bins
    assert after.owners.tolist() == layout.workers_of(after.starts).tolist()
