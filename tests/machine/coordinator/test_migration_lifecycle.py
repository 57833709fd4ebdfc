"""The life of a migration: it ends at its goal or where it began, and moves nothing twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

import headrace as hr
from headrace.coordinator.changes.changes import ControlState, at_opening
from headrace.coordinator.load.measured import Measured
from headrace.coordinator.manifests import give_up_all
from headrace.coordinator.migrations.goals import target_of
from headrace.coordinator.migrations.layout_state import layout_state_of
from headrace.coordinator.migrations.lifecycle import MOST_GAP_STEPS
from headrace.coordinator.migrations.steering import MigrationController, has_turn, wants_steps
from headrace.coordinator.migrations.step_times import WINDOW, StepStats, joined, latency_of
from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Command, CommandRequest
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.migrations import Goal, RecordedMigration
from headrace.migration.rounds import all_at_once, batched, fluid
from headrace.pipeline.source import Limit, Offer
from tests.unit.ledger.test_layouts import manifest

_BITS = 4
_ONE = StepStats(1, workers=4)
_WIDTH = 1 << (64 - _BITS)
_PROBES = np.arange(256, dtype=np.uint64) << np.uint64(56)

workers = st.integers(1, 4)
bins = st.lists(st.integers(0, 15), min_size=1, max_size=5, unique=True).map(
    lambda found: [(at * _WIDTH, _BITS) for at in found]
)
parents = st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True).map(
    lambda found: [(at * 2 * _WIDTH, _BITS - 1) for at in found]
)
goals = st.one_of(
    st.builds(Goal, st.just("rescale"), workers),
    st.builds(Goal, st.just("move"), bins=bins, to=st.integers(0, 3)),
    st.builds(Goal, st.just("split"), bins=bins),
    st.builds(Goal, st.just("merge"), bins=parents),
    st.builds(Goal, st.just("drain_workers"), drained=st.lists(st.integers(0, 3), max_size=2)),
)
strategies = st.sampled_from([all_at_once(), fluid(), batched(), batched(3), fluid(gap=False)])


def owners(head: Head) -> list[int]:
    """Return who owns each of some hashes, and with how many bits its bin is named."""
    layout = Layout.from_wire(head.layout)
    found: list[int] = layout.workers_of(_PROBES).tolist()
    return found


def shape(layout: Layout) -> tuple[int, list[int], list[int]]:
    return layout.workers, layout.bits.tolist(), layout.owners.tolist()


class World(RuleBasedStateMachine):
    """A pipeline that makes steps, and somebody who asks for all kinds of things."""

    @initialize(count=workers, calm=st.sampled_from([True, True, False]))
    def begin(self, count: int, calm: bool) -> None:
        layout = Layout.uniform(1 << _BITS, np.arange(1 << _BITS) % count, count)
        self.head = fold(
            None, manifest(0, claim=True, layout=layout.to_wire(), stored_schema={}), "0"
        )
        self.steering = MigrationController()
        self.number = 0
        self.calm = calm  # whether nobody else has a say
        # what is under way: (id, layout at its beginning, target, version at its beginning)
        self.watched: tuple[int, Layout, Layout, int] | None = None
        self.moved = np.zeros(len(_PROBES), dtype=np.int64)  # how often each hash has, since then
        self.disturbed = False  # whether somebody else has changed the layout since
        self.taken_back = False

    # -- what happens -------------------------------------------------------------------------

    def commit(self, **stats: Any) -> None:
        """Commit a manifest that says so, as the ledger would read it back."""
        before, was = {m.id: m for m in self.head.migrations}, owners(self.head)
        layout = Layout.from_wire(self.head.layout)
        self.rules = self.head.layout_rules.within(layout.workers)
        self.head = fold(self.head, manifest(self.head.step + 1, **stats), "x")
        self.moved += np.array(was) != np.array(owners(self.head))
        for migration in self.head.migrations:
            self.follow(before.get(migration.id), migration, layout)

    def follow(
        self, before: RecordedMigration | None, after: RecordedMigration, layout: Layout
    ) -> None:
        """Check what has become of a migration against what was seen from outside."""
        begun = before is None or before.began is None
        if after.began is not None and begun:
            assert after.goal is not None
            base = Layout.from_wire(self.head.layout)
            target = target_of(base, after.goal, Measured(), self.rules).layout
            self.watched = (after.id, base, target, 0)
            self.watched = (*self.watched[:3], self.head.layout_version)
            self.moved[:] = 0
            self.taken_back = False
            own = int(after.effective > self.head.step)
            self.disturbed = len(self.head.updates) > own  # what was published before
        if self.watched is None or after.id != self.watched[0]:
            return
        _, origin, target, version = self.watched
        self.taken_back |= after.state == "aborting"
        if not self.disturbed:
            assert self.moved.max() <= (2 if self.taken_back else 1), "a bin has moved twice"
        if after.is_over:
            self.watched = None
            if not self.disturbed:
                now = Layout.from_wire(self.head.layout)
                wanted = target if after.state == "done" else origin
                assert shape(now) == shape(wanted), after
                moved = (self.moved == 1).sum()
                assert moved == 0 if after.state == "aborted" else True
        elif not self.disturbed and not self.taken_back:
            in_force = after.next + (0 <= after.effective <= self.head.step)
            assert self.head.layout_version - version == in_force, "each round is in force once"

    def note(self, command: Command) -> bool:
        asked = CommandRequest(self.number, command)
        self.number += 1
        decided = self.steering.decide(self.head, asked, self.head.step * 1_000)
        self.commit(answers=[decided.answer], **decided.layout_state.manifest_fields(self.head))
        return decided.answer.applied

    # -- rules --------------------------------------------------------------------------------

    @rule(
        goal=goals,
        strategy=strategies,
        prepare=st.booleans(),
        busy=st.sampled_from(["queue", "refuse"]),
    )
    def ask(self, goal: Goal, strategy: Any, prepare: bool, busy: Any) -> None:
        goal = replace(goal, strategy=strategy, prepare=prepare)
        open_ = [m for m in self.head.migrations if not m.is_over]
        applied = self.note(Command("migrate", goal=goal, if_busy=busy))
        assert not (applied and open_ and busy == "refuse")

    @rule(goal=goals, strategy=st.sampled_from([fluid(), batched(2)]), steps=st.integers(0, 6))
    def ask_and_abort(self, goal: Goal, strategy: Any, steps: int) -> None:
        if self.note(Command("migrate", goal=replace(goal, strategy=strategy))):
            id_ = self.head.migrations[-1].id
            for _ in range(steps):
                self.step()
            self.note(Command("abort_migration", migration=id_))

    @rule(
        stats=st.lists(
            st.builds(StepStats, st.integers(1, 100), *[st.booleans()] * 3, st.just(4)),
            min_size=1,
            max_size=4,
        )
    )
    def steps(self, stats: list[StepStats]) -> None:
        for one in stats:
            self.step(one)

    def step(self, stats: StepStats = _ONE) -> None:
        if has_turn(self.head):
            layout_state = self.steering.next_turn(self.head, 0)
            self.commit(**layout_state.manifest_fields(self.head))
        self.commit(**self.steering.after_step(self.head, self.head.step * 1_000, stats))

    @rule(computed=st.booleans())
    def crash(self, computed: bool) -> None:
        """The driver dies; perhaps when it has computed a step that is not committed."""
        if computed:
            self.steering.after_step(self.head, 0, StepStats(1))
        self.steering = MigrationController()
        self.commit(claim=True, epoch=self.head.epoch + 1)

    @rule(
        kind=st.sampled_from(
            ["pause_migration", "resume_migration", "abort_migration", "hasten_migration"]
        ),
        back=st.integers(0, 2),
    )
    def tell(self, kind: Any, back: int) -> None:
        if self.head.migrations:
            id_ = max(1, self.head.migrations[-1].id - back)
            known = next((m for m in self.head.migrations if m.id == id_), None)
            applied = self.note(Command(kind, migration=id_))
            assert not (applied and (known is None or known.is_over))

    @precondition(lambda self: not self.calm)
    @rule(at=st.integers(0, 15), to=st.integers(0, 3), ahead=st.integers(-2, 5))
    def somebody_else(self, at: int, to: int, ahead: int) -> None:
        """Somebody publishes a configuration update for a step, whatever is under way."""
        step = self.head.step + 1 + ahead
        update = Update(step, moves=[(at * _WIDTH, _BITS, 1, to)])
        applied = self.note(Command("update", update=update))
        assert not (applied and step <= self.head.step), "it would be applied later than asked for"
        self.disturbed |= applied

    @precondition(lambda self: not self.calm)
    @rule(count=workers)
    def begin_with_another_layout(self, count: int) -> None:
        self.steering = MigrationController()
        layout = Layout.uniform(8, np.arange(8) % count, count)
        self.disturbed = True
        stats = give_up_all(self.head, 0).manifest_fields(self.head)
        self.commit(claim=True, layout=layout.to_wire(), **stats)
        assert all(migration.is_over for migration in self.head.migrations)

    # -- what always holds --------------------------------------------------------------------

    @invariant()
    def at_most_one_is_under_way(self) -> None:
        if hasattr(self, "head"):
            assert sum(migration.is_under_way for migration in self.head.migrations) <= 1

    @invariant()
    def all_that_is_published_fits(self) -> None:
        if hasattr(self, "head"):
            self.head.layout_now.at(1 << 62)

    def teardown(self) -> None:
        """Left alone, every migration ends in a bounded number of steps."""
        if not hasattr(self, "head"):
            return
        for migration in self.head.migrations:
            if migration.paused:
                self.note(Command("resume_migration", migration=migration.id))
        most = 4 + sum(
            (len(m.rounds or []) or 64) * (MOST_GAP_STEPS + 4)
            for m in self.head.migrations
            if not m.is_over
        )
        for _ in range(most):
            if not wants_steps(self.head) and not has_turn(self.head):
                break
            self.step()
        assert all(migration.is_over for migration in self.head.migrations)
        for migration in self.head.migrations:
            assert migration.ended is not None and not migration.rounds


World.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_migrations_end_where_they_should = World.TestCase


# -- examples ---------------------------------------------------------------------------------


def world(count: int = 2) -> World:
    found = World()
    found.begin(count, calm=True)
    return found


def ask(world: World, goal: Goal, **more: Any) -> RecordedMigration:
    assert world.note(Command("migrate", goal=goal, **more)), world.head.answers[-1]
    return world.head.migrations[-1]


def newest(world: World) -> RecordedMigration:
    return world.head.migrations[-1]


def usual(world: World, took: int, times: int = 10, more: bool = False) -> None:
    for _ in range(times):
        world.step(StepStats(took, more, workers=4))


_TWO = [(0, _BITS), (2 * _WIDTH, _BITS)]


def test_the_next_round_waits_until_steps_take_no_longer_than_before() -> None:
    it = world()
    usual(it, 100)
    ask(it, Goal("move", bins=_TWO, to=1, strategy=fluid()))
    it.step(StepStats(900))
    assert newest(it).state == "gap"
    for took in (600, 400, 300, 200, 150, 121):
        it.step(StepStats(took))
        assert (newest(it).state, newest(it).next) == ("gap", 1)
    it.step(StepStats(120))
    assert newest(it).state == "moving"
    it.step(StepStats(300))
    assert newest(it).state == "done"
    assert (newest(it).bins, newest(it).before.p50_us) == (2, 100)
    assert (newest(it).during.max_us, newest(it).during.steps) == (900, 9)


@pytest.mark.parametrize(
    "waits, over",
    [
        ([600, 400], 380),
        ([600, 400, 300], 280),
        ([600, 300], 500),
        ([600, 200], 600),
        ([900, 900], 900),
    ],
)
def test_the_next_round_comes_when_steps_do_not_get_shorter_any_more(
    waits: list[int], over: int
) -> None:
    """They have become longer than they were before the migration, and not by what it held up."""
    it = world()
    usual(it, 100)
    ask(it, Goal("move", bins=_TWO, to=1, strategy=fluid()))
    it.step(StepStats(900))
    for took in waits:
        it.step(StepStats(took))
        assert newest(it).state == "gap"
    it.step(StepStats(over))
    assert newest(it).state == "moving"


def test_the_next_round_waits_while_more_input_waits_than_used_to() -> None:
    it = world()
    usual(it, 100)
    ask(it, Goal("move", bins=_TWO, to=1, strategy=fluid()))
    it.steering.offered({"in": Offer(1, 50, 1)}, {"in": Limit(50, 100)})
    usual(it, 100)
    assert newest(it).state == "gap"
    it.steering.offered({"in": Offer(1, 49, 1)}, {"in": Limit(50, 100)})
    it.step(StepStats(100))
    assert newest(it).state == "moving"


def test_a_pipeline_that_never_has_a_quiet_moment_is_not_waited_for_for_ever() -> None:
    it = world()
    usual(it, 100)
    ask(it, Goal("move", bins=_TWO, to=1, strategy=fluid()))
    it.steering.offered({"in": Offer(1, 50, 1)}, {"in": Limit(50, 100)})
    usual(it, 500, times=MOST_GAP_STEPS)
    assert newest(it).state == "gap"
    usual(it, 500, times=2)
    assert newest(it).state == "done"


def test_how_steps_are_after_a_migration_is_known_when_there_were_enough() -> None:
    it = world()
    ask(it, Goal("move", bins=_TWO, to=1, strategy=all_at_once()))
    it.step(StepStats(700))
    assert newest(it).state == "done"
    usual(it, 50, times=WINDOW)
    assert (newest(it).after.steps, newest(it).after.max_us) == (WINDOW, 50)
    assert newest(it).during.max_us == 700


def test_steps_while_a_migration_is_paused_are_none_of_it() -> None:
    it = world()
    usual(it, 100)
    ask(it, Goal("move", bins=_TWO, to=1, strategy=fluid()))
    it.step(StepStats(700))
    assert it.note(Command("pause_migration", migration=newest(it).id))
    usual(it, 100, times=20)
    assert newest(it).state == "paused"
    before = newest(it).during.steps
    usual(it, 5_000, times=50)
    assert it.note(Command("resume_migration", migration=newest(it).id))
    usual(it, 100, times=20)
    assert newest(it).state == "done"
    assert newest(it).during.steps < before + 20
    assert newest(it).during.max_us == 700


def test_what_an_earlier_driver_noted_of_a_migration_is_not_lost() -> None:
    it = world()
    ask(it, Goal("move", bins=_TWO, to=1, strategy=fluid()))
    it.step(StepStats(700))
    it.crash(computed=True)
    usual(it, 10, times=2)
    assert newest(it).state == "done"
    assert (newest(it).during.max_us, newest(it).during.steps) == (700, 3)


def test_workers_are_there_before_anything_is_prepared_and_nothing_moves_before_all_is() -> None:
    it = world(2)
    ask(it, Goal("rescale", 4, prepare=True, strategy=all_at_once()))
    for _ in range(5):
        it.step(StepStats(1))
        assert (it.head.layout.workers, newest(it).state) == (2, "preparing")
    it.step()
    it.step()
    assert (it.head.layout.workers, newest(it).state) == (4, "gap")
    for _ in range(5):
        it.step(StepStats(1, prepared=False))
        assert (newest(it).state, newest(it).bins) == ("preparing", 0)
    it.step()
    it.step()
    assert (newest(it).state, newest(it).bins) == ("done", 8)


def test_a_migration_that_is_hastened_moves_the_rest_at_once() -> None:
    it = world()
    ask(it, Goal("rescale", 4, prepare=True, strategy=fluid()))
    it.step()
    assert (newest(it).state, it.head.layout.workers) == ("moving", 2)
    assert it.note(Command("hasten_migration", migration=1))
    usual(it, 1, times=2)
    assert (newest(it).state, newest(it).bins) == ("done", 8)


def test_who_refuses_to_wait_is_told_what_is_under_way() -> None:
    it = world()
    ask(it, Goal("rescale", 4))
    assert not it.note(Command("migrate", goal=Goal("rescale", 3), if_busy="refuse"))
    assert it.head.answers[-1].why == "migration 1 is preparing"
    assert ask(it, Goal("rescale", 3)).state == "queued"
    usual(it, 1, times=40)
    assert [one.state for one in it.head.migrations] == ["done", "done"]
    assert it.head.layout.workers == 3


def test_a_goal_that_is_reached_already_ends_at_once() -> None:
    it = world()
    found = ask(it, Goal("rescale", 2))
    assert (found.state, found.why) == ("done", "there was nothing to do")


def test_what_makes_no_sense_is_refused_with_what_would() -> None:
    it = world()
    for goal, why in [
        (Goal("move", bins=[(0, 5)], to=1), "00000/5 is only a part of bin 0000/4"),
        (Goal("move", bins=[(0, 4)], to=7), "there is no worker 7; there are 2, from 0 to 1"),
        (Goal("rescale", 0), "0 is not a number of workers"),
        (Goal("merge", bins=[(0, 4)]), "0000/4 is one bin already"),
        (Goal("split", bins=[(0, 3)]), "there is no bin 000/3"),
        (Goal("drain_workers", drained=[0, 1]), "of 2 workers none may own a bin"),
        (Goal("move", to=1), "it names no bin"),
    ]:
        assert not it.note(Command("migrate", goal=goal))
        assert why in it.head.answers[-1].why
    assert not it.head.migrations


def test_an_update_takes_effect_at_exactly_its_step_or_is_refused() -> None:
    it = world()
    step = it.head.step
    assert not it.note(Command("update", update=Update(step + 1, moves=[(0, 4, 1, 1)])))
    assert "is planned already" in it.head.answers[-1].why
    assert it.note(Command("update", update=Update(step + 5, moves=[(0, 4, 1, 1)])))
    assert it.head.answers[-1].step == step + 5
    assert not it.note(Command("update", update=Update(step + 6, moves=[(0, 5, 1, 1)])))
    while it.head.step < step + 4:
        assert owners(it.head)[0] == 0
        it.step()
    it.step()
    assert (it.head.step, owners(it.head)[0]) == (step + 5, 1)


def test_a_round_that_does_not_fit_any_more_ends_the_migration_and_not_the_pipeline() -> None:
    it = world()
    usual(it, 1)
    ask(it, Goal("move", bins=_TWO, to=1, strategy=fluid()))
    it.disturbed = True
    step = it.head.step
    assert it.note(Command("update", update=Update(step + 2, splits=[_TWO[1]])))
    usual(it, 1, times=3)
    assert newest(it).state == "aborted"
    assert "there is no bin 0010/4; what it had moved stays" in newest(it).why
    assert owners(it.head)[0] == 1


def test_a_command_that_came_before_the_run_is_queued_by_its_claim() -> None:
    it = world()
    asked = CommandRequest(0, Command("migrate", goal=Goal("rescale", 3)))
    opening = at_opening(
        ControlState(frozenset()),
        {},
        hr.Pipeline("p"),
        [asked],
        it.head.step + 1,
        layout_state_of(it.head, 0),
    )
    assert [(answer.applied, answer.migration) for answer in opening.answers] == [(True, 1)]
    assert opening.layout_state is not None
    it.commit(claim=True, answers=opening.answers, **opening.layout_state.manifest_fields(it.head))
    usual(it, 1, times=20)
    assert (newest(it).state, it.head.layout.workers) == ("done", 3)


@given(st.lists(st.tuples(st.integers(1, 1000), st.booleans()), max_size=40))
def test_latencies_are_those_of_the_steps(steps: list[tuple[int, bool]]) -> None:
    took = sorted(us for us, _ in steps)
    found = latency_of([us for us, _ in steps])
    assert found.steps == len(took)
    assert found.max_us == (took[-1] if took else 0)
    assert found.p50_us in took or not took
    parts = [[us for us, first in steps if first is which] for which in (True, False)]
    whole = joined(*(latency_of(part) for part in parts))
    assert (whole.steps, whole.max_us) == (found.steps, found.max_us)
    if took:
        assert took[0] <= whole.p50_us <= whole.p99_us <= took[-1]
