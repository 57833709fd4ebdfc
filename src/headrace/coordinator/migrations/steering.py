"""Decisions on commands about the layout: the new layout state, or why a command is refused. Pure.

A goal is queued at once, and planned when its turn comes. If nothing is under way, that is in the
same note. So a plan always starts from the layout in force, whatever happened to the migrations
before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.coordinator.adoption import Adopted
from headrace.coordinator.load.measured import Measured
from headrace.coordinator.load.meter import Meter
from headrace.coordinator.migrations.drained_hosts import must_move
from headrace.coordinator.migrations.goals import plan_goal
from headrace.coordinator.migrations.layout_state import LayoutState, layout_at, layout_state_of
from headrace.coordinator.migrations.learning import note_round, with_rounds_left
from headrace.coordinator.migrations.lifecycle import after_step, begin, refused, steer_migration
from headrace.coordinator.migrations.step_times import RecentStepTimes, StepStats
from headrace.coordinator.refused import Refused
from headrace.coordinator.settings import Settings
from headrace.errors import HeadraceError
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Answer, Command, CommandRequest
from headrace.ledger.head import Head
from headrace.ledger.measurements import Published
from headrace.ledger.migrations import Goal, RecordedMigration, RecordedRound, under_way
from headrace.migration.measurements import Measurements
from headrace.pipeline.source import Limit, Offer
from headrace.protocol.plan import StepPlan

#: Most partitions that are read by a worker of their own: each plan names them.
_MOST_READERS = 4_096


class Bounds(msgspec.Struct, frozen=True):
    """The most that can be asked of a layout.

    Attributes:
        workers: the most workers.
        ahead: how many steps ahead an update may be published, at most.
    """

    workers: int = Settings().most_workers
    ahead: int = Settings().update_within_steps

    @classmethod
    def of(cls, settings: Settings) -> Bounds:
        """Return the bounds of a run."""
        return cls(settings.most_workers, settings.update_within_steps)

    def problem(self, layout_state: LayoutState, update: Update) -> str:
        """Return why an update is out of bounds; "" if it is not."""
        if update.workers > self.workers:
            return _too_many(update.workers, self)
        if update.step > layout_state.step + self.ahead:
            return (
                f"step {update.step:,} is more than Settings.update_within_steps={self.ahead:,} "
                f"after step {layout_state.step:,}"
            )
        return ""


class Decided(msgspec.Struct, frozen=True):
    """The outcome of a command.

    Attributes:
        layout_state: the layout state after it.
        answer: the answer to it.
    """

    layout_state: LayoutState
    answer: Answer


class MigrationController:
    """Decides commands about the layout, and remembers what steps report for planning.

    Args:
        meter: adds up what steps report.
        bounds: the most that can be asked of the layout.
    """

    def __init__(self, meter: Meter | None = None, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self.meter = meter or Meter()
        self._times = RecentStepTimes()
        self._more = False
        self._commit_us = 0  # from the end of the newest attempt to the commit of its step

    def offered(self, offers: Mapping[str, Offer], most: Mapping[str, Limit]) -> None:
        """Note what a step takes, and whether more input is waiting than it may take."""
        self._more = any(
            name in most and (offer.rows >= most[name].rows or offer.bytes >= most[name].bytes)
            for name, offer in offers.items()
            if not offer.empty
        )

    def measured(self, plan: StepPlan) -> StepPlan:
        """Return the plan, marked for measuring if it is time for that."""
        if plan.is_backfill or not self.meter.wants(plan.clock_us):
            return plan
        return msgspec.structs.replace(plan, measured=True)

    def adopted(self, plan: StepPlan, result: Adopted) -> None:
        """Note the loads that an adopted step reports."""
        self.meter.note(plan, result, more=self._more)

    def committed(self, after_us: int) -> None:
        """Note how long after its attempt a step was committed.

        This counts towards the next step.
        """
        self._commit_us = after_us

    def after_step(self, head: Head, clock_us: int, stats: StepStats) -> dict[str, Any]:
        """Return the fields on migrations for the manifest of a step that was computed.

        Args:
            head: the head that it was planned on.
            clock_us: its clock reading.
            stats: statistics of the step.
        """
        took_us = stats.took_us + self._commit_us
        stats = msgspec.structs.replace(stats, took_us=took_us, more=self._more and stats.usual)
        layout_state = layout_state_of(head, clock_us)

        def after_round(
            now: LayoutState, migration: RecordedMigration, done: RecordedRound, stats: StepStats
        ) -> tuple[RecordedMigration, str]:
            known = self._known(head)
            took_us, opened = stats.took_us, self.meter.newest
            note_round(self.meter.rounds, migration, done, known, took_us, opened)
            return with_rounds_left(
                now, migration, lambda: self._measured(head, now), self._known(head)
            )

        after = after_step(layout_state, stats, self._times, after_round)
        self._note_published(layout_state.under_way, after)
        return after.manifest_fields(head)

    def _known(self, head: Head) -> Measured:
        """Return what is known but for single bins, at no cost."""
        return self.meter.known(head, self._times.before, self._times.scatter)

    def _note_published(self, before: RecordedMigration | None, after: LayoutState) -> None:
        """Note how long a gap or reading ahead took, if it has ended with a round to come."""
        now = None if before is None else after.migrations.get(before.id)
        if before is None or now is None or now.effective != after.step + 1:
            return
        if before.state == "gap":
            self.meter.rounds.note_gap(after.step - before.since)
        ahead = before.estimate.before_us if before.estimate is not None else 0
        if before.state == "preparing" and before.prepare and before.began and ahead:
            first = next((at for at, of in enumerate(now.rounds or []) if of.moves), -1)
            if now.next == first:
                took_us = after.clock_us - before.began.clock_us
                self.meter.rounds.note_ahead(ahead, took_us)

    def decide(self, head: Head, request: CommandRequest, now_us: int) -> Decided:
        """Return the outcome of a command that came while the pipeline runs."""
        layout_state = layout_state_of(head, now_us)
        return decide(
            layout_state, request, self._times, self._measured(head, layout_state), self._bounds
        )

    def next_turn(self, head: Head, now_us: int) -> LayoutState:
        """Return the layout state after the first queued migration is planned."""
        layout_state = layout_state_of(head, now_us)
        return _next_turn(
            layout_state, self._times, self._measured(head, layout_state), self._bounds
        )

    def _measured(self, head: Head, layout_state: LayoutState) -> Measured:
        times = self._times
        return self.meter.measured(head, layout_state.layout, times.before, times.scatter)

    def published(self, head: Head, seen: Measurements) -> Published:
        """Return the measurements as data."""
        return self.meter.published(head, seen, self._times.before, self._times.scatter)


def has_turn(head: Head) -> bool:
    """Return whether a queued migration can start."""
    waiting = any(one.state == "queued" and not one.paused for one in head.migrations)
    return waiting and under_way(head.migrations) is None


def wants_steps(head: Head) -> bool:
    """Return whether steps are wanted even without input."""
    current = under_way(head.migrations)
    return (current is not None and current.wants_steps) or must_move(head)


def without_excess(layout_state: LayoutState, bounds: Bounds) -> tuple[LayoutState, list[str]]:
    """Return the layout state without updates that are out of bounds, and why each was withdrawn.

    Any process with write access to the storage can write a manifest with such updates. Rounds of
    migrations stay, because they were planned within the bounds of the run that planned them.
    """
    why = []
    for update in layout_state.now.updates:
        problem = bounds.problem(layout_state, update)
        if problem and not layout_state.is_a_round(update):
            layout_state = layout_state.withdrawing(update)
            why.append(f"the update of step {update.step:,} is withdrawn: {problem}")
    return layout_state, why


def decide(
    layout_state: LayoutState,
    request: CommandRequest,
    times: RecentStepTimes,
    measured: Measured | None,
    bounds: Bounds | None = None,
) -> Decided:
    """Return the outcome of a command about the layout.

    Args:
        layout_state: the layout state, as of the manifest that will answer.
        request: the command.
        times: recent step times.
        measured: what plans are based on; None before the pipeline runs, when goals are queued.
        bounds: the most that can be asked of the layout.
    """
    bounds = bounds or Bounds()
    command = request.command
    assert command is not None
    try:
        if command.kind == "update" and measured is None:
            raise Refused("the pipeline was not running")
        after = _applied(layout_state, request.number, command, bounds)
        id_, why = command.migration, ""
        if command.goal is not None:
            id_ = layout_state.next_id
            if measured is not None:
                after = _with_turn(after, id_, times, measured)
            why = _describe(after.migrations[id_])
    except Refused as refusal:
        answer = Answer(
            request.number, command.text, False, layout_state.step, refusal.why, by=command.by
        )
        return Decided(layout_state, answer)
    step = layout_state.step if command.update is None else command.update.step
    answer = Answer(request.number, command.text, True, step, why, id_, by=command.by)
    return Decided(after, answer)


def _applied(
    layout_state: LayoutState, number: int, command: Command, bounds: Bounds
) -> LayoutState:
    if command.kind == "update":
        return _published(layout_state, command, bounds)
    if command.kind == "withdraw_update":
        return _withdrawn(layout_state, command.at_step)
    if command.kind == "undrain_workers":
        return _undrained(layout_state, command.workers)
    if command.kind == "assign_partitions":
        return _assigned(layout_state, command)
    if command.kind != "migrate":
        after = steer_migration(layout_state, command.kind, command.migration)
        return _drained_no_more(after, command)
    if command.goal is None:
        raise Refused("it names no goal")
    if command.goal.workers > bounds.workers:
        raise Refused(_too_many(command.goal.workers, bounds))
    busy = next((one for one in layout_state.migrations.values() if not one.is_over), None)
    if busy is not None and command.if_busy == "refuse":
        raise Refused(f"migration {busy.id} is {busy.state}")
    goal = command.goal
    migration = RecordedMigration(
        id=layout_state.next_id,
        what=str(goal),
        by=command.by or f"command {number}",
        strategy=_strategy(command),
        goal=goal,
        gap=goal.strategy.gap,
        prepare=goal.prepare is not False,
        since=layout_state.step,
    )
    return layout_state.knowing(migration)


def _too_many(workers: int, bounds: Bounds) -> str:
    return f"{workers:,} workers are more than Settings.most_workers={bounds.workers:,}"


def _strategy(command: Command) -> str:
    goal = command.goal
    assert goal is not None
    if goal.objective_us:
        return f"steps within {goal.objective_us / 1e3:g} ms"
    name = type(goal.strategy).__name__
    words = {"AllAtOnce": "all at once", "Fluid": "fluid", "Batched": "batched"}[name]
    bins = getattr(goal.strategy, "bins", None)
    return words if bins is None else f"{words}, {bins} bins a round"


def _published(layout_state: LayoutState, command: Command, bounds: Bounds) -> LayoutState:
    """Return the layout state with a configuration update for the step it names."""
    update = command.update
    if update is None:
        raise Refused("it has no update")
    if update.step <= layout_state.step:
        raise Refused(
            f"step {update.step} is planned already; the next one that is not is {layout_state.step + 1}"
        )
    problem = bounds.problem(layout_state, update)
    if problem:
        raise Refused(problem)
    try:
        return layout_state.publishing(update)
    except HeadraceError as error:
        raise Refused(error.what) from error


def _withdrawn(layout_state: LayoutState, step: int) -> LayoutState:
    """Return the layout state without an update for a later step."""
    found = [update for update in layout_state.now.updates if update.step == step]
    if not found:
        steps = ", ".join(str(update.step) for update in layout_state.now.updates)
        raise Refused(f"no update is published for step {step}; there are: {steps or 'none'}")
    for update in found:
        if layout_state.is_a_round(update):
            current = layout_state.under_way
            assert current is not None
            raise Refused(f"it is a round of migration {current.id}: abort that")
        layout_state = layout_state.withdrawing(update)
    try:
        layout_at(layout_state.now)
    except HeadraceError as error:
        why = f"a later update rests on it, which must be withdrawn before: {error.what}"
        raise Refused(why) from error
    return layout_state


def _describe(migration: RecordedMigration) -> str:
    """Return a remark on a migration that was just asked for."""
    text = f"migration {migration.id}"
    if migration.state == "queued":
        return f"{text}, queued"
    if migration.why:
        return f"{text}: {migration.why}"
    found = migration.estimate
    return text if found is None else f"{text}: {found.bins} bins in {found.rounds} rounds"


def _with_turn(
    layout_state: LayoutState, id_: int, times: RecentStepTimes, measured: Measured
) -> LayoutState:
    """Return the layout state with a new goal, planned if its turn has come."""
    if layout_state.under_way is not None or any(one.id != id_ for one in layout_state.queued):
        return layout_state
    goal = layout_state.migrations[id_].goal
    assert goal is not None
    try:
        return _begun(layout_state, id_, goal, measured, times)
    except HeadraceError as error:
        raise Refused(f"{error.what}; {error.remedy}" if error.remedy else error.what) from error


def _next_turn(
    layout_state: LayoutState, times: RecentStepTimes, measured: Measured, bounds: Bounds
) -> LayoutState:
    id_ = next(one.id for one in layout_state.queued if not one.paused)
    goal = layout_state.migrations[id_].goal
    assert goal is not None
    if goal.workers > bounds.workers:
        return refused(layout_state, id_, _too_many(goal.workers, bounds))
    try:
        return _begun(layout_state, id_, goal, measured, times)
    except HeadraceError as error:
        return refused(layout_state, id_, error.what)


def _begun(
    layout_state: LayoutState, id_: int, goal: Goal, measured: Measured, times: RecentStepTimes
) -> LayoutState:
    """Return the layout state with a migration planned, and its drained workers remembered.

    Raises:
        HeadraceError: when there is no way to the goal.
    """
    planned = plan_goal(layout_state.layout, goal, measured, layout_state.rules)
    rules = layout_state.rules.draining(goal.drained)
    return begin(layout_state.keeping_to(rules), id_, planned, times)


def _undrained(layout_state: LayoutState, workers: list[int]) -> LayoutState:
    """Return the layout state in which some workers may own bins again."""
    drained = layout_state.rules.drained
    wrong = [worker for worker in workers if worker not in drained]
    if wrong or not workers:
        of = f"worker {wrong[0]} is not drained" if wrong else "it names no worker"
        raise Refused(f"{of}; drained are: {', '.join(map(str, drained)) or 'none'}")
    return layout_state.keeping_to(layout_state.rules.undraining(workers))


def _assigned(layout_state: LayoutState, command: Command) -> LayoutState:
    """Return the layout state in which some partitions have workers of their own to read them."""
    if len(command.names) != 1 or not command.partitions:
        raise Refused("it names no injector and its partitions")
    workers, drained = layout_state.layout.workers, layout_state.rules.drained
    for worker in command.partitions.values():
        if worker >= workers:
            raise Refused(f"there is no worker {worker}; there are {workers}, from 0")
        if worker in drained:
            raise Refused(f"worker {worker} is drained")
    after = layout_state.rules.with_readers(command.names[0], command.partitions)
    if sum(map(len, after.reading.values())) > _MOST_READERS:
        raise Refused(f"more than {_MOST_READERS:,} partitions cannot have workers of their own")
    return layout_state.keeping_to(after)


def _drained_no_more(layout_state: LayoutState, command: Command) -> LayoutState:
    """Return the layout state after a command to a migration: an aborted one drains no workers."""
    goal = layout_state.migrations[command.migration].goal
    if command.kind != "abort_migration" or goal is None:
        return layout_state
    return layout_state.keeping_to(layout_state.rules.undraining(goal.drained))
