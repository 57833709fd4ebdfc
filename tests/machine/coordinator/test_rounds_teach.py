"""Estimates and objectives by a simulated clock: rounds take what a hidden model says, which is learnt.

The pipeline is a row of manifests that the controller makes. How long a step takes is drawn from prices
that differ from what is assumed.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.load.round_times import RoundMeter
from headrace.coordinator.migrations.steering import MigrationController, has_turn
from headrace.coordinator.migrations.step_times import StepStats
from headrace.errors import ChangeRefused
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandRequest
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.migrations import Goal, RecordedMigration
from headrace.ledger.records import Slice
from headrace.migration.rounds import Batched, Fluid
from headrace.protocol.loads import OpenedState
from tests.unit.ledger.test_layouts import manifest

BINS, BIN_BYTES = 256, 1_000_000


class Prices(NamedTuple):
    """What really happens, in microseconds."""

    step: float
    round: float
    bin: float
    byte: float


class World:
    """A pipeline of two workers, whose steps take what prices say."""

    def __init__(self, prices: Prices, seed: int) -> None:
        layout = Layout.uniform(BINS, [0] * (BINS // 2) + [1] * (BINS // 2), 2)
        first = manifest(0, claim=True, layout=layout.to_wire(), stored_schema={})
        self.head: Head = fold(None, first, "0")
        self.head = fold(self.head, manifest(1, slice=Slice(0, 1, 1, [], BINS * BIN_BYTES)), "1")
        self.controller = MigrationController()
        self.rounds: list[float] = []
        self.clock_us = 0
        self._prices, self._random = prices, random.Random(seed)
        self._asked = 0

    def step(self) -> None:
        before = self.head.layout_now.at(self.head.step + 1)
        came = self._came(Layout.from_wire(self.head.layout), Layout.from_wire(before.wire))
        took = self._prices.step * self._random.uniform(0.95, 1.05)
        self.controller.meter.newest = []
        if came:
            nbytes = came * BIN_BYTES
            opening = came * self._prices.bin + nbytes * self._prices.byte
            took += self._prices.round + opening
            self.rounds.append(took)
            self.controller.meter.newest = [OpenedState(came, nbytes, opening)]
        self.clock_us += round(took)
        told = self.controller.after_step(
            self.head, self.clock_us, StepStats(round(took), prepared=True)
        )
        more = manifest(self.head.step + 1, clock_us=self.clock_us, **told)
        self.head = fold(self.head, more, str(self.head.step))

    @staticmethod
    def _came(before: Layout, after: Layout) -> int:
        """How many bins the busiest target gets."""
        new = [at for at in range(len(after)) if before.owners[at] != after.owners[at]]
        return max((sum(after.owners[at] == w for at in new) for w in range(2)), default=0)

    def migrate(self, goal: Goal) -> RecordedMigration:
        """Run a migration to its end."""
        for _ in range(70):
            self.step()
        request = CommandRequest(self._asked, Command("migrate", goal=goal))
        self._asked += 1
        decided = self.controller.decide(self.head, request, self.clock_us)
        if not decided.answer.applied:
            raise ChangeRefused(decided.answer.why)
        note = manifest(
            self.head.step + 1,
            clock_us=self.clock_us,
            **decided.layout_state.manifest_fields(self.head),
        )
        self.head = fold(self.head, note, "note")
        id_ = max(one.id for one in self.head.migrations)
        self.rounds = []
        while not (found := next(m for m in self.head.migrations if m.id == id_)).is_over:
            self.step()
        assert not has_turn(self.head)
        return found


PRICES = st.builds(
    Prices,
    st.sampled_from([10_000.0, 80_000.0]),
    st.sampled_from([500.0, 20_000.0, 200_000.0]),
    st.sampled_from([100.0, 2_000.0]),
    st.sampled_from([0.002, 0.01, 0.03]),
)
HALF = [(int(start), 8) for start in Layout.uniform(BINS, [0] * BINS, 1).starts[: BINS // 2]]


def half_to(worker: int, **how: object) -> Goal:
    return Goal("move", bins=HALF, to=worker, **how)  # type: ignore[arg-type]


@given(PRICES, st.sampled_from([Batched(8), Fluid()]), st.booleans(), st.integers(0, 9))
@settings(max_examples=12)
def test_after_one_migration_estimates_are_within_two_of_what_comes(
    prices: Prices, strategy: Batched | Fluid, prepare: bool, seed: int
) -> None:
    world = World(prices, seed)
    world.migrate(half_to(1, strategy=strategy, prepare=prepare))
    back = world.migrate(half_to(0, strategy=strategy, prepare=prepare))
    assert back.state == "done" and back.began is not None and back.ended is not None
    expected = back.estimate
    assert expected is not None and expected.expected_duration_us is not None
    took = back.ended.clock_us - back.began.clock_us
    assert 0.5 <= expected.expected_max_us / back.during.max_us <= 2
    assert 0.5 <= expected.expected_duration_us / took <= 2


@given(PRICES, st.booleans(), st.sampled_from([1.5, 3.0, 20.0]), st.integers(0, 9))
@settings(max_examples=20)
def test_nine_of_ten_rounds_keep_an_objective_or_the_migration_ends_with_the_reason(
    prices: Prices, prepare: bool, times: float, seed: int
) -> None:
    """What is assumed may be far off. So the first rounds may be too long, and then it is known."""
    world = World(prices, seed)
    objective = round(prices.step * times) + 20_000
    try:
        moved = world.migrate(half_to(1, objective_us=objective, prepare=prepare))
    except ChangeRefused as refused:
        assert "ms" in refused.what
        return
    kept = [took <= objective for took in world.rounds]
    if moved.state == "aborted":
        assert "what it had moved stays where it is" in moved.why
        return
    assert moved.state == "done"
    assert set(Layout.from_wire(world.head.layout).owners.tolist()) == {1}
    assert sum(kept[2:]) >= 0.9 * len(kept[2:]), (objective, world.rounds)


def test_rounds_that_are_replanned_lead_to_the_same_layout() -> None:
    """A byte costs a tenth of what is assumed, so most rounds are joined on the way."""
    world = World(Prices(10_000, 500, 50, 0.001), 1)
    moved = world.migrate(half_to(1, objective_us=60_000))
    assert moved.state == "done" and moved.estimate is not None
    assert len(world.rounds) < moved.estimate.rounds
    assert set(Layout.from_wire(world.head.layout).owners.tolist()) == {1}
    assert moved.bins == BINS // 2


@given(
    st.floats(0.05, 20),
    st.floats(0.2, 8),
    st.lists(st.tuples(st.floats(1e3, 1e5), st.floats(1e3, 1e6)), min_size=12, max_size=30),
)
@settings(max_examples=60)
def test_what_rounds_take_is_learnt_as_far_as_it_was_seen(
    fixed: float, opening: float, seen: list[tuple[float, float]]
) -> None:
    meter = RoundMeter()
    for a, b in seen:
        meter.note("later", a, b, fixed * a + opening * b)
    found = meter.factors.kind("later")
    newest = seen[-6:]
    expected = sum(found.fixed * a + found.opening * b for a, b in newest)
    assert expected == pytest.approx(sum(fixed * a + opening * b for a, b in newest), rel=0.35)
    assert meter.factors.kind("first").rounds == 0
