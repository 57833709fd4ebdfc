"""New owners read ahead where that makes the longest step shorter, unless somebody says otherwise."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.coordinator.load.measured import Measured
from headrace.coordinator.migrations.goals import plan_goal
from headrace.coordinator.migrations.lifecycle import Planned
from headrace.driver.driver import Driver
from headrace.errors import ChangeRefused
from headrace.keyspace.layout import Layout
from headrace.ledger.migrations import Goal, Latency
from headrace.migration.costs import Scatter, Starting, StoreTimes
from headrace.migration.reading import Files
from headrace.testing import Harness, drive

BINS = 64
#: Where each of sixteen bins begins.
EDGES = np.arange(16, dtype=np.uint64) << np.uint64(60)
LAYOUT = Layout.uniform(BINS, [0] * (BINS // 2) + [1] * (BINS // 2), 2)


@st.composite
def measured(draw: st.DrawFn) -> Measured:
    """What may be known of a pipeline: near or far storage, short or long steps, much or little state."""
    step = draw(st.sampled_from([0, 5_000, 80_000, 2_000_000]))
    return Measured(
        sizes=draw(st.sampled_from([None, [1_000] * BINS, [2_000_000] * BINS])),
        steps=Latency(64, step, 2 * step, 2 * step) if step else Latency(),
        scatter=Scatter(int(1.5 * step), 0.1),
        store=StoreTimes(draw(st.sampled_from([0.0, 100.0, 10_000.0])), 0.01),
        files=Files(draw(st.integers(0, 300)), draw(st.integers(1, 3))),
        starting=Starting(2, 0.0, draw(st.sampled_from([0.0, 180_000.0]))),
        busy=draw(st.sampled_from([None, 0.2, 1.5])),
        ahead_bytes=draw(st.sampled_from([0, 2 << 20])),
    )


@st.composite
def goals(draw: st.DrawFn) -> Goal:
    """A goal that leaves open whether new owners read ahead."""
    to = draw(
        st.sampled_from([Goal("rescale", 4), Goal("rescale", 1), Goal("move", bins=[(0, 1)], to=1)])
    )
    strategy = draw(st.sampled_from([hr.batched(4), hr.all_at_once(), hr.fluid(gap=False)]))
    objective = draw(st.sampled_from([0, 0, 100_000, 400_000, 5_000_000]))
    return msgspec.structs.replace(to, strategy=strategy, objective_us=objective, prepare=None)


def planned(goal: Goal, known: Measured, **how: Any) -> Planned | None:
    """Return a plan; None if it is refused."""
    try:
        return plan_goal(LAYOUT, msgspec.structs.replace(goal, **how), known)
    except ChangeRefused:
        return None


def longest(found: Planned | None) -> float:
    """Return the longest step that a plan is expected to have."""
    if found is None:
        return float("inf")
    assert found.estimate is not None
    return found.estimate.expected_max_us


@given(goals(), measured())
def test_no_other_choice_has_a_longest_step_that_is_much_shorter(
    goal: Goal, known: Measured
) -> None:
    chosen = planned(goal, known)
    either = [planned(goal, known, prepare=prepare) for prepare in (True, False)]
    assert (chosen is None) == (
        either == [None, None] or (either[1] is None and not known.ahead_bytes)
    )
    if chosen is None:
        return
    assert chosen == either[0 if chosen.prepare else 1]
    if known.ahead_bytes:
        assert longest(chosen) <= 1.1 * min(map(longest, either))
    else:
        assert not chosen.prepare, "nothing is ever read ahead"


@given(goals(), measured())
def test_state_that_makes_no_step_longer_moves_without_waiting(goal: Goal, known: Measured) -> None:
    """Reading ahead takes time, so it is not done for nothing."""
    chosen, direct = planned(goal, known), planned(goal, known, prepare=False)
    if (
        chosen is not None
        and direct is not None
        and longest(direct) <= known.costs(prepare=False).usual_us
    ):
        assert not chosen.prepare


def test_a_store_that_is_far_away_is_read_ahead_and_little_state_of_a_near_one_is_not() -> None:
    goal = Goal("rescale", 4, prepare=None)
    steps = Latency(64, 80_000, 160_000, 160_000)
    many = msgspec.structs.replace(Measured(steps=steps), files=Files(200, 2))
    far = msgspec.structs.replace(many, store=StoreTimes(10_000.0))
    near = msgspec.structs.replace(many, files=Files(4, 1), store=StoreTimes(100.0))
    assert plan_goal(LAYOUT, goal, far).prepare
    assert not plan_goal(LAYOUT, goal, near).prepare


class Text(msgspec.Struct):
    page: int
    text: str


class Newest(hr.Computation):
    text = hr.ValueState(str, default="")
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.text.value = record.value.text
        ctx.produce("out", record.value.text[:1])


@pytest.mark.parametrize("prepare", [True, False, None])
def test_of_much_state_only_the_next_rounds_are_read_ahead(prepare: bool | None) -> None:
    """What is read ahead is in memory beside the state. A part of what may be remembered is for it."""
    bins, each, cached = 16, 100_000, 1_600_000
    pipeline = hr.Pipeline("texts")
    texts = pipeline.inject("texts", hr.sources.Iterable([], Text, event_time="page"))
    pipeline.compute("newest", Newest(), keys={texts: "page"})
    settings = hr.Settings(slices=16, cached_bytes=cached)
    pages = {hr.hash_key(page) >> 60: page for page in range(2_000)}
    with drive(pipeline, bins=bins, settings=settings) as harness:
        for page in pages.values():
            harness.push("texts", Text(page, "x" * each), at=0)
        for _ in range(18):  # (until every bin's size is known)
            harness.step()
            harness.push("texts", Text(pages[0], "y" * each), at=0)
        moved = harness.move("0/1", 1, strategy=hr.fluid(), prepare=prepare)
        most = 0
        while not moved.facts.is_over:
            harness.step()
            most = max(most, bins_ahead(harness))
        assert moved.state == "done" and set(harness.layout.owners.tolist()) == {1}
        harness.push("texts", Text(pages[3], "z"), at=0)
        harness.run()
        assert harness.state("newest", pages[3])
    assert 1 <= most <= 4, (
        "of eight that move: four have as many bytes as a quarter of what is cached"
    )


def bins_ahead(harness: Harness) -> int:
    """Return how many bins a worker has read ahead."""
    assert isinstance(harness._driver, Driver)
    (soft,) = harness._driver.runner._soft  # type: ignore[attr-defined]
    return max(len(ahead.prepared.ranges.cut_at(EDGES)) for ahead in soft._ahead.values())
