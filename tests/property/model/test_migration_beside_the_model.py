"""Megaphone §3.2: Correctness, Migration and Completion, while everything else happens as well.

The model of ``tests/property/model`` knows nothing of workers and bins; so a system whose state
moves must still
agree with it, in results, state, timers, watermarks and counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

import headrace as hr
from headrace.errors import ChangeRefused
from headrace.keyspace.layout import Bin
from headrace.keyspace.updates import Update
from headrace.ledger.migrations import RecordedMigration
from tests.property.model.test_system_beside_the_model import NUMBER, WORKERS, Together

STRATEGIES = st.sampled_from(
    [
        hr.all_at_once(gap=False),
        hr.fluid(gap=False),
        hr.batched(gap=False),
        hr.batched(3, gap=False),
    ]
)
NUMBERS = st.lists(NUMBER, min_size=1, max_size=4)
#: More steps than any migration of so few bins takes.
MANY = 2_000


class Moving(Together):
    """Moves, splits and merges bins, adds and removes workers, aborts and pauses that, at any time."""

    def ask(self, what: Callable[[], Any]) -> None:
        """Ask for something that may be refused; the pipeline never is the worse for it."""
        self.restarted()
        try:
            what()
        except ChangeRefused:
            return

    @rule()
    def run(self) -> None:
        self.restarted()
        while self.model.step():
            pass
        self.harness.run(at_most=MANY)
        self.partitions_are_noted()

    def partitions_are_noted(self) -> None:
        """A step that moves state notes the partitions that are expected, so idleness counts from it on.

        (The model knows of no such steps.)
        """
        for name in self.harness.current().frontiers:
            for part in self.model.outside[name].parts.values():
                if part.active is None:
                    part.active = self.model.clock

    @rule(workers=WORKERS, strategy=STRATEGIES, prepare=st.booleans())
    def rescale(self, workers: int, strategy: Any, prepare: bool) -> None:
        self.ask(lambda: self.harness.rescale(workers, strategy=strategy, prepare=prepare))

    @rule(numbers=NUMBERS, worker=NUMBER, strategy=STRATEGIES, prepare=st.booleans())
    def move(self, numbers: list[int], worker: int, strategy: Any, prepare: bool) -> None:
        to = worker % self.harness.layout.workers
        bins = self.bins(numbers)
        self.ask(lambda: self.harness.move(bins, to, strategy=strategy, prepare=prepare))

    @rule(numbers=NUMBERS)
    def split(self, numbers: list[int]) -> None:
        self.ask(lambda: self.harness.split(self.bins(numbers)))

    @rule(numbers=NUMBERS)
    def merge(self, numbers: list[int]) -> None:
        def parent(of: Bin) -> Bin:
            return Bin(of.start & ~((1 << (65 - of.bits)) - 1), of.bits - 1)

        bins = [parent(bin_) for bin_ in self.bins(numbers) if bin_.bits]
        self.ask(lambda: self.harness.merge(bins))

    @rule(worker=NUMBER, prepare=st.booleans())
    def drain_workers(self, worker: int, prepare: bool) -> None:
        drained = worker % self.harness.layout.workers
        self.ask(lambda: self.harness.drain_workers(drained, prepare=prepare))

    @rule()
    def rebalance(self) -> None:
        self.ask(self.harness.rebalance)

    @rule(number=NUMBER, worker=NUMBER, ahead=st.integers(1, 3))
    def publish(self, number: int, worker: int, ahead: int) -> None:
        """Somebody outside moves a bin at a step of his choice, whatever else is under way."""
        ((start, bits),) = self.bins([number])
        step = self.harness.current().step + 1 + ahead
        self.ask(lambda: self.harness.publish(Update(step, moves=[(start, bits, 1, worker)])))

    @precondition(lambda self: any(not one.is_over for one in self.harness.current().migrations))
    @rule(how=st.sampled_from(["abort", "pause", "resume", "hasten"]))
    def steer(self, how: str) -> None:
        open_ = [one for one in self.harness.current().migrations if not one.is_over]
        migration = self.harness.migration(open_[0].id)
        self.ask(getattr(migration, how))

    def bins(self, numbers: list[int]) -> list[Bin]:
        layout = self.harness.layout
        return sorted({layout.bin(7 * number % len(layout)) for number in numbers})

    # -- what holds at every moment -----------------------------------------------------------

    @invariant()
    def every_bin_has_one_owner_that_is_there(self) -> None:
        layout = self.harness.layout
        widths = 2.0 ** -layout.bits.astype(np.float64)
        assert widths.sum() == 1.0
        assert (layout.owners < layout.workers).all()

    @invariant()
    def a_migration_that_is_over_has_ended_in_its_goal_or_says_why_not(self) -> None:
        for one in self.harness.current().migrations:
            if one.is_over and one.state == "aborted":
                assert one.why, one
            if one.is_over:
                assert one.rounds == [], one

    def teardown(self) -> None:
        """Completion: what was asked for comes to an end, without any input."""
        if hasattr(self, "harness") and not self.crashed:
            self.run()
            left = [one for one in self.harness.current().migrations if self.should_end(one)]
            assert not left, left
        super().teardown()

    def should_end(self, one: RecordedMigration) -> bool:
        paused = any(other.paused for other in self.harness.current().migrations)
        return not one.is_over and not paused


@pytest.mark.drawn(2, "beside the model")
def test_a_pipeline_whose_state_moves_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        Moving, settings=settings(max_examples=20, stateful_step_count=30, derandomize=True)
    )


@pytest.mark.soak
def test_a_pipeline_whose_state_moves_does_what_the_model_does_thousands_of_times() -> None:
    run_state_machine_as_test(Moving, settings=settings(max_examples=3_000, stateful_step_count=40))
