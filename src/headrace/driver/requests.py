"""Requests: what users ask of a running pipeline, and getting ready for another topology.

Changes come from threads of the driver's process. Commands come from files in the storage. Before a
switch to another topology, everything that can fail is done while the running one is left alone.
The switch itself is the driver's task.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection

import msgspec

from headrace.coordinator.changes.changes import (
    ChangePlan,
    CommandsAtStart,
    ControlState,
    applied,
    at_opening,
    check_behind,
    decide,
    plan_change,
    refused,
    with_checks,
    without,
)
from headrace.coordinator.changes.replayable import check_replayable
from headrace.coordinator.changes.scheduled_stops import NOT_RUNNING
from headrace.coordinator.messages import ChangeRequested, Commanded, LayoutCommand
from headrace.coordinator.migrations.drained_hosts import remark
from headrace.coordinator.migrations.layout_state import layout_state_of
from headrace.coordinator.migrations.steering import Bounds, has_turn, without_excess
from headrace.coordinator.pipeline_compatibility import check_schema, merged_schema, removed_of
from headrace.coordinator.refused import Refused
from headrace.coordinator.reopening import input_goes_on
from headrace.coordinator.settings import Settings
from headrace.driver.change import Change
from headrace.driver.change_trial import ChangeTrial
from headrace.driver.source_polling import SourcePoller
from headrace.errors import ChangeRefused, HeadraceError, PipelineError, StorageError
from headrace.errors.user_code import is_from_outside
from headrace.ledger.commands import MOVING, Answer, Command, CommandLog, CommandRequest
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import Heartbeats
from headrace.pipeline import Pipeline
from headrace.runners.base import Runner

log = logging.getLogger("headrace")

#: Kinds of commands that wait until the replay is over, besides those about the layout.
_AFTER_A_REPLAY = ("remove", "restore", "pause")
#: Commands of a process that is to lead next.
_SUCCEEDING = ("hand_over", "step_aside")
#: Looks for commands take at most about one part in this many of the driver's time.
_LOOKING_SHARE = 100
#: Longest pause between two looks in seconds, even if the storage stood still during a look.
_LONGEST_S = 2.0


class Current(msgspec.Struct, frozen=True):
    """What runs now.

    Attributes:
        head: the pipeline as of its newest step.
        pipeline: the topology that runs.
        full_pipeline: the same, including what is removed by command.
        now_us: the time of day.
    """

    head: Head
    pipeline: Pipeline
    full_pipeline: Pipeline
    now_us: int


class Ready(msgspec.Struct, frozen=True):
    """A topology that is ready to run, and the request for it.

    Attributes:
        pipeline, control_state: the topology, and what of it does not run.
        switch: switches the runner to it.
        before: what runs until then.
        started: when the preparation started, by the monotonic clock.
        change: the change; None for other commands.
        request: the command; None for a change of a thread.
        full_pipeline: the topology with what is removed by command; None if that stays as it is.
        takes_back: whether the change is not made here, but taken back.
    """

    pipeline: Pipeline
    control_state: ControlState
    switch: Callable[[], None]
    before: Current
    started: float
    change: Change | None = None
    request: CommandRequest | None = None
    full_pipeline: Pipeline | None = None
    takes_back: bool = False

    @property
    def is_of_a_thread(self) -> bool:
        """Whether a thread of this process has asked. A command stays in the storage."""
        return self.request is None and not self.takes_back

    def answers(self, step: int) -> list[Answer]:
        """Return the answers for the claim with which the topology starts."""
        return [] if self.request is None else [applied(self.request, step, self._remark)]

    @property
    def _remark(self) -> str:
        """What of the code that was loaded does not run."""
        if self.full_pipeline is None:
            return ""
        out = {*self.full_pipeline.nodes} - {*self.pipeline.nodes, *self.full_pipeline.checks}
        names = ", ".join(sorted(out))
        return f"removed before, and stays so until it is restored: {names}" if names else ""


class Requests:
    """The requests that have not taken effect.

    Args:
        commands: where commands are found.
        source_poller: opens the sources of a topology that is being prepared.
        runner: prepares to run the topology.
        settings: the settings of the run.
        heartbeats: show whether a process that asked for a handover is still there.
        check_upgrades: tries the upgrade functions of a topology, given also what is stored, and the
            computations whose state is given up.
        reload: loads the pipeline's code again, if it has a given digest; None if it cannot be.

    Attributes:
        ready: the topology to switch to, from the event for the coordinator until the claim.
    """

    def __init__(
        self,
        commands: CommandLog,
        source_poller: SourcePoller,
        runner: Runner,
        settings: Settings,
        heartbeats: Heartbeats,
        check_upgrades: Callable[[Pipeline, Head, Collection[str]], None],
        reload: Callable[[str], Pipeline] | None = None,
    ) -> None:
        self._reload = reload
        self._check_upgrades = check_upgrades
        self.ready: Ready | None = None
        self._commands = commands
        self._source_poller = source_poller
        self._runner = runner
        self._settings = settings
        self._heartbeats = heartbeats
        self._changes: deque[Change] = deque()
        self._closed = False
        self._look_again_s = 0.0
        self._there_before = 0  # commands with a lower number were given before this run

    def opening(self, head: Head | None, full_pipeline: Pipeline, now_us: int) -> CommandsAtStart:
        """Return the state after the commands from before this run. Warn of what is not run."""
        stored = {} if head is None else head.stored_schema
        control_state = ControlState(frozenset()) if head is None else _control_state_of(head)
        request = self._commands.pending(0 if head is None else head.commands)
        self._there_before = request[-1].number + 1 if request else 0
        if head is not None and head.is_behind:
            request = list(itertools.takewhile(_may_come_first, request))
        step = 0 if head is None else head.step + 1
        layout_state = None if head is None else layout_state_of(head, now_us)
        bounds = Bounds.of(self._settings)
        opening = at_opening(
            control_state, stored, full_pipeline, request, step, layout_state, bounds
        )
        opening = _within(opening, bounds)
        users = set(full_pipeline.nodes) - set(full_pipeline.checks)
        for name in sorted(opening.control_state.removed & users):
            log.warning(
                "computation %r is in the code, but was removed: it stays removed "
                "(headrace restore %s brings it back)",
                name,
                name,
            )
        if opening.control_state.paused:
            log.warning("the pipeline is paused (headrace resume lets it go on)")
        return opening

    def ask(self, change: Change) -> None:
        """Ask for another topology. Safe from any thread. The change itself reports the outcome."""
        self._changes.append(change)
        if self._closed:
            change.refused(None)

    def next(self, current: Current) -> ChangeRequested | Commanded | LayoutCommand | None:
        """Return the next event for the coordinator between two steps; None for nothing."""
        while self._changes:
            event = self._begin(self._changes.popleft(), current)
            if event is not None:
                return event
        now = time.monotonic()
        if now < self._look_again_s:
            return _turn(current)
        request: CommandRequest | None = None
        try:
            request = self._commands.read(current.head.commands)
        except StorageError as error:  # a later look will find the command
            log.warning("could not look for a command: %s", error.what)
        if request is not None:
            return self._apply_command(request, current)  # the next look follows at once
        done = time.monotonic()
        self._look_again_s = done + min(_LOOKING_SHARE * (done - now), _LONGEST_S)
        return _turn(current)

    def is_to_stop_now(self, head: Head) -> bool:
        """Return whether an unanswered command asks for a stop at once. Safe from any thread.

        Raises:
            StorageError: if the commands cannot be read.
        """
        request = [one for one in self._commands.pending(head.commands) if one.command is not None]
        return any(
            one.command.kind == "stop" and one.command.now  # type: ignore[union-attr]
            for one in request
            if one.number >= self._there_before
        )

    def look_at_once(self) -> None:
        """Let :meth:`next` look for commands, however recent the last look was."""
        self._look_again_s = float("-inf")

    def started(self, head: Head) -> None:
        """Note that a claim is committed, so that what was ready has taken effect."""
        ready, self.ready = self.ready, None
        if ready is not None and ready.change is not None and not ready.takes_back:
            ready.change.applied(head.step, time.perf_counter() - ready.started)

    def overtaken(self) -> Current | None:
        """Drop the requests of this process after another driver took over. Return what ran before.

        Commands stay in the storage for the new leader. Changes of this process are refused,
        whether they were started or not. Returns None if no topology was ready.
        """
        ready, self.ready = self.ready, None
        if ready is not None and ready.change is not None and ready.is_of_a_thread:
            self._changes.appendleft(ready.change)
        while self._changes:
            self._changes.popleft().refused(
                ChangeRefused(
                    "another driver has taken over before the change was in effect",
                    remedy="ask for it again when this one leads",
                )
            )
        return None if ready is None else ready.before

    def close(self) -> None:
        """Refuse all changes that wait, and all later ones."""
        self._closed = True
        ready = self.ready
        started = None if ready is None or ready.takes_back else ready.change
        for change in [*([] if started is None else [started]), *self._changes]:
            change.refused(None)

    # -- getting ready ------------------------------------------------------------------------

    def _begin(self, change: Change, current: Current) -> ChangeRequested | None:
        """Get ready for another topology. Return None if it is refused and nothing changes."""
        started = time.perf_counter()
        head = current.head
        try:
            plan = plan_of(change, head, current.pipeline)
            change.check_still(plan)
            gone = (set(removed_of(head)) | set(plan.removed)) - set(change.pipeline.nodes)
            control_state = ControlState(frozenset(gone), frozenset(plan.forgotten))
            switch = self._prepare(change.pipeline, control_state, head)
        except Exception as error:
            change.refused(error)
            return None
        change.plan = plan
        self.ready = Ready(
            change.pipeline,
            control_state,
            switch,
            current,
            started,
            change=change,
            full_pipeline=change.pipeline,
        )
        return ChangeRequested()

    def take_back(self, trial: ChangeTrial, current: Current) -> None:
        """Get ready for the topology before a change that has failed.

        Raises:
            HeadraceError: if that cannot run any more.
        """
        removed = frozenset(removed_of(current.head)) - set(trial.before.nodes)
        control_state = ControlState(removed | frozenset(trial.added), frozenset(trial.added))
        self.ready = Ready(
            trial.before,
            control_state,
            self._prepare(trial.before, control_state, current.head),
            current,
            time.perf_counter(),
            change=trial.change,
            full_pipeline=trial.before_full,
            takes_back=True,
        )

    def _apply_command(
        self, request: CommandRequest, current: Current
    ) -> ChangeRequested | Commanded | LayoutCommand:
        """Decide on a command. The coordinator records the outcome before it takes effect."""
        if request.command is not None and request.command.kind in MOVING:
            return LayoutCommand(request, current.now_us)
        if request.command is not None and request.command.kind == "change":
            return self._change_code(request, request.command, current)
        started = time.perf_counter()
        head = current.head
        before, places = _control_state_of(head), self._runner.places
        command, step = request.command, head.step + 1
        kind = None if command is None else command.kind
        try:
            after = decide(
                before,
                head.stored_schema,
                current.full_pipeline,
                request,
                step=step,
                places=places,
                running=request.number >= self._there_before,
            )
            if command is not None and kind in _SUCCEEDING:
                self._check_asker(command)
            if kind in ("remove", "restore"):
                pipeline, switch = self._prepare_without(current.full_pipeline, after, head)
                self.ready = Ready(pipeline, after, switch, current, started, request=request)
                return ChangeRequested()
        except Refused as refusal:
            return Commanded(refused(request, step, refusal.why), kind)
        if kind in ("drain_hosts", "undrain_hosts"):
            drained = sorted(after.drained_hosts)
            why = remark(drained, places) if kind == "drain_hosts" else ""
            return Commanded(applied(request, step, why), kind, drained)
        to = command.by if command is not None and kind in _SUCCEEDING else ""
        return Commanded(applied(request, step), kind, scheduled_stop=after.scheduled_stop, to=to)

    def _change_code(
        self, request: CommandRequest, command: Command, current: Current
    ) -> ChangeRequested | Commanded:
        """Load the code again, and get ready to run it.

        The code may raise anything. Then the pipeline goes on as it was.
        """
        step = current.head.step + 1
        try:
            if request.number < self._there_before:
                raise Refused(f"{NOT_RUNNING}: start it with the new code")
            self.ready = self._ready_for_code(request, command, current)
        except Refused as refusal:
            return Commanded(refused(request, step, refusal.why), command.kind)
        except BaseException as error:
            if is_from_outside(error):
                raise
            why = repr(error)
            if isinstance(error, HeadraceError):
                why = f"{error.what}; {error.remedy}" if error.remedy else error.what
            return Commanded(refused(request, step, why), command.kind)
        return ChangeRequested()

    def _ready_for_code(self, request: CommandRequest, command: Command, current: Current) -> Ready:
        """Return the topology of the code as it is now.

        What was removed by command stays removed: that is what the code so far builds, too. What the code
        left out, and builds again, comes back.

        Raises:
            Refused: if the code cannot be loaded again here.
        """
        started, head = time.perf_counter(), current.head
        if self._reload is None:
            raise Refused(
                "the process that runs the pipeline cannot load its code again: it was not started by "
                "headrace run, and hr.run() was given no reload="
            )
        whole = self._reload(command.code)
        stays = [name for name in removed_of(head) if name in current.full_pipeline.nodes]
        pipeline = without(whole, with_checks(whole, stays))
        change = Change(pipeline, command.begin, command.names)
        change.plan = plan = plan_of(change, head, current.pipeline)
        gone = (set(removed_of(head)) | set(plan.removed)) - set(pipeline.nodes)
        control_state = ControlState(frozenset(gone), frozenset(plan.forgotten))
        switch = self._prepare(pipeline, control_state, head)
        return Ready(pipeline, control_state, switch, current, started, change, request, whole)

    def _check_asker(self, command: Command) -> None:
        """Check that the process that is to follow still waits for it.

        Raises:
            Refused: if it is gone.
        """
        try:
            there = bool(command.to) and self._heartbeats.is_there(command.to)
        except StorageError as error:
            raise Refused(error.what) from error
        if not there:
            raise Refused("the process that asked for it no longer waits for it")

    def _prepare_without(
        self, full_pipeline: Pipeline, control_state: ControlState, head: Head
    ) -> tuple[Pipeline, Callable[[], None]]:
        """Prepare the switch to a pipeline without what a command removes.

        Return the pipeline, and the function that switches the runner.

        Raises:
            Refused: if the pipeline cannot run. Opening a source may raise anything.
        """
        try:
            pipeline = without(full_pipeline, control_state.removed)
            return pipeline, self._prepare(pipeline, control_state, head)
        except Exception as error:
            why = error.what if isinstance(error, HeadraceError) else repr(error)
            raise Refused(why) from error

    def _prepare(
        self, pipeline: Pipeline, control_state: ControlState, head: Head
    ) -> Callable[[], None]:
        """Do everything about a switch that can fail. Return the function that switches the runner.

        Raises:
            HeadraceError: if the topology cannot run.
        """
        check_replayable(pipeline, self._settings)
        check_schema(
            head.stored_schema,
            pipeline.declared_schema(),
            removed=control_state.removed,
            forgotten=control_state.forgotten,
        )
        self._check_upgrades(pipeline, head, control_state.forgotten)
        with self._source_poller.opened_for(pipeline):
            more = self._source_poller.more_in(pipeline, head.positions, head.ended)
            if more:
                readers = {name: pipeline.readers_of(name) for name in more}
                raise input_goes_on(head, readers, more)
            return self._runner.prepare(pipeline)


def _within(opening: CommandsAtStart, bounds: Bounds) -> CommandsAtStart:
    """Return the state without published updates that are beyond the bounds. Warn of each.

    Raises:
        PipelineError: if the layout in force has more workers than the pipeline may have.
    """
    if opening.layout_state is None:
        return opening
    workers = opening.layout_state.now.wire.workers
    if workers > bounds.workers:
        raise PipelineError(
            f"the layout in storage has {workers:,} workers, and the pipeline can have "
            f"{bounds.workers:,}",
            remedy="run with Settings(most_workers=…), if that layout is meant; or go on from a copy "
            "of an earlier checkpoint (headrace checkpoint copy)",
        )
    layout_state, why = without_excess(opening.layout_state, bounds)
    for line in why:
        log.warning("%s", line)
    return msgspec.structs.replace(opening, layout_state=layout_state)


def _control_state_of(head: Head) -> ControlState:
    return ControlState(
        frozenset(removed_of(head)),
        paused=head.paused,
        drained_hosts=frozenset(head.drained_hosts),
    )


def _may_come_first(request: CommandRequest) -> bool:
    """Return whether a command changes neither topology nor layout.

    Such a command may be applied before a replay.
    """
    return request.command is None or request.command.kind not in (*MOVING, *_AFTER_A_REPLAY)


def _turn(current: Current) -> LayoutCommand | None:
    """Return the event that starts the next queued migration, if it is its turn."""
    return LayoutCommand(None, current.now_us) if has_turn(current.head) else None


def plan_of(change: Change, head: Head | None, pipeline: Pipeline) -> ChangePlan:
    """Return the plan of a change, as of the newest step.

    Args:
        change: the change.
        head: the pipeline as of its newest step; None before its first.
        pipeline: the topology that runs.

    Raises:
        HeadraceError: if the change would be refused.
    """
    stored = merged_schema({}, pipeline.declared_schema()) if head is None else head.stored_schema
    plan = plan_change(
        stored,
        pipeline,
        change.pipeline,
        forget=change.forget,
        begin=change.begin,
        behind=[] if head is None else head.incomplete,
    )
    check_behind(change.pipeline, None if head is None else head.backfill)
    return plan
