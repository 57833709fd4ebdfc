"""The coordinator: a state machine that decides what the driver does next.

::

    LedgerOpened
         │
    Commit(claim) ──► ManifestCommitted ──► Release… ──► Poll ──► Offered ─┬─► Run ──► AttemptEnded
                              ▲                           ▲                │                 │
                              │                           └──── Wait ◄─────┘           Commit(step)
                              └──────────────────────────────────────────────────────────────┘

Events go in, instructions come out, with one method for each event (``_on_…``). Between two events,
the machine is in a named phase (:mod:`headrace.coordinator.phases`). The diagram shows the ordinary
course. It is extended in these cases:

* After a claim, ``LoadIntent`` comes before ``Poll``. An earlier driver may have shown results of
  the next step, so that exactly this step must be run.
* With weak sinks, ``DeliverBeforeCommit`` comes before ``Commit``. If a sink does not acknowledge
  in time, ``WriteOutputs`` follows.
* When the outbox is full, ``AwaitSinks`` comes before ``Poll``. It also comes at the end of a run,
  because a stop delivers what was committed.
* Steps since the last checkpoint are computed again before anything else. Each takes
  ``PrepareReplay`` and ``Run``, and no ``Commit``.
* A handover is a stop that waits for the claim of the next driver (``AwaitClaim``). If no claim
  comes, the run goes on. A driver that is replaced, and commits faster than the next one can claim,
  waits for the claim in the same way, but finishes nothing before.

The coordinator reads no clock, draws no random number and touches no store. Times come with events,
and nonces from a source that is passed in. So a run is a function of its events and can be
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.coordinator.adoption import Adopted, Conflict, adopt
from headrace.coordinator.available import AvailableNow
from headrace.coordinator.backfill import (
    known_then,
    offers_as_they_were,
    retained_after,
    what_to_read_again,
)
from headrace.coordinator.backlog import has_backlog
from headrace.coordinator.clean_up import CleanUp
from headrace.coordinator.manifests import (
    StepDraft,
    claim_manifest,
    layout_begun_with,
    note_manifest,
)
from headrace.coordinator.messages import (
    AttemptEnded,
    AttemptFailed,
    AvoidHosts,
    AwaitClaim,
    Awaited,
    AwaitSinks,
    BackfillOffered,
    ChangeRequested,
    Commanded,
    Commit,
    DeliverBeforeCommit,
    DeliveredBeforeCommit,
    Event,
    Instruction,
    IntentLoaded,
    LayoutCommand,
    LedgerOpened,
    LoadIntent,
    LookForPins,
    ManifestCommitted,
    Offered,
    OutputsStaged,
    OutputsWritten,
    PinsFound,
    Poll,
    PollBackfill,
    PrepareReplay,
    PrepareWorkers,
    Release,
    Released,
    ReplayPrepared,
    Run,
    StageOutputs,
    Stop,
    StopRequested,
    Sweep,
    Wait,
    Woken,
    WriteOutputs,
)
from headrace.coordinator.migrations.layout_state import LayoutState
from headrace.coordinator.migrations.lifecycle import workers_to_come
from headrace.coordinator.migrations.steering import MigrationController, wants_steps
from headrace.coordinator.migrations.step_times import StepStats
from headrace.coordinator.outbox import SinkOutbox
from headrace.coordinator.phases import Phase, check_expected, phase_after
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.coordinator.planning import PlannedStep, plan_step
from headrace.coordinator.polls import Input, Polls
from headrace.coordinator.replay import Replay, UncheckpointedSteps, check_same
from headrace.coordinator.settings import Settings, check_settings
from headrace.coordinator.step_output import (
    StepDelivery,
    StepOutput,
    UnstagedOutputs,
    packed_for_long,
)
from headrace.coordinator.story import Story
from headrace.errors import (
    CodeChanged,
    Fenced,
    ReplayDiffers,
    StateLost,
    StepAbandoned,
    ensure,
)
from headrace.ledger.commands import Answer
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HANDED_OVER
from headrace.ledger.intent import Intent
from headrace.ledger.manifest import Manifest
from headrace.ledger.records import Backfill
from headrace.protocol.failures import error_of
from headrace.protocol.plan import Failure
from headrace.runfiles.format import FileRef

#: During a backfill, the number of backfill steps for each step that may take new input.
_MOST_BACKFILL_STEPS = 2

#: Why a run ends: it starts over with another topology.
CHANGED = "changed"
#: Why a run ends: all input that was available has been read.
CAUGHT_UP = "caught up"
#: The reason for the end of a run whose input has ended.
DRAINED = "drained"


class _StepUnderWay(msgspec.Struct):
    """The step under way.

    Attributes:
        planned: the step.
        adopted: its results, once its attempt is adopted.
        draft: its manifest, once its attempt is adopted.
        recorded: the manifest that it was committed with, if it is a committed step that is
            computed again.
    """

    planned: PlannedStep
    adopted: Adopted | None = None
    draft: StepDraft | None = None
    recorded: Manifest | None = None


#: The phases in which a step is under way, after its attempt was adopted.
_AFTER_ADOPTION = (Phase.DELIVERING, Phase.WRITING, Phase.STAGING)


class Coordinator:
    """The decisions of one driver, and the state that it keeps between events.

    Args:
        pipeline_facts: facts about the pipeline.
        settings: how to run it.
        nonce: returns a fresh name at each call, which others are unlikely to guess.
        drain: whether to stop when all input has ended.
        steering: remembers how long steps take and which load they had, to plan migrations.

    Attributes:
        pipeline_facts, settings: as passed.
        head: the pipeline as of the newest manifest; None before the claim is committed.
        phase: what it waits for.
        story: its newest events. A run that fails unexpectedly prints it.
        begins_with: the layout that is in force once the claim is committed; until the ledger is
            opened, that of ``pipeline_facts``.
    """

    #: Whether each event is followed by :meth:`validate`. Tests switch it on.
    validates = False

    def __init__(
        self,
        pipeline_facts: PipelineFacts,
        settings: Settings,
        nonce: Callable[[], str],
        *,
        drain: bool,
        steering: MigrationController | None = None,
    ) -> None:
        check_settings(settings)
        self.pipeline_facts = pipeline_facts
        self.settings = settings
        self.head: Head | None = None
        self.phase = Phase.OPENING
        self.story = Story()
        self.begins_with = pipeline_facts.layout
        self._nonce = nonce
        # The end of the run.
        self._drain = drain
        self._stopping = False
        self._changing = False  # the run starts over with another topology
        self._ending: str | None = None  # why the run ends once the newest manifest is committed
        self._successor: Commanded | None = None  # the command of the driver that takes over
        # The step under way, and what follows a commit.
        self._step: _StepUnderWay | None = None
        self._intent_loaded = False  # whether an intent of an earlier driver was looked for
        self._deferred: LayoutCommand | Commanded | None = None  # handled after the next checkpoint
        self._polls = Polls(pipeline_facts, settings)
        self._backfill_steps = 0  # consecutive steps of a backfill
        self._outbox = SinkOutbox(
            pipeline_facts.sinks, steps=settings.outbox_steps, size=settings.outbox_bytes
        )
        self._steering = steering or MigrationController()
        self._clean_up = CleanUp(settings, intents=bool(pipeline_facts.weak))
        # Uncheckpointed steps, and computing them again.
        self._uncheckpointed = UncheckpointedSteps(settings)
        self._unstaged = UnstagedOutputs()
        self._replay: Replay | None = None
        self._lost = 0  # how often uncheckpointed state was lost since the last progress
        self._newest_replayed = -1

    def handle(self, event: Event) -> list[Instruction]:
        """Return the instructions that follow from an event, in the order to carry them out.

        Raises:
            InvariantBroken: if the event cannot come now.
            HeadraceError: if the pipeline cannot run on what is stored.
        """
        before = self.phase
        check_expected(before, event)
        instructions = self._dispatch(event)
        self.phase = phase_after(before, event, instructions)
        step = -1 if self.head is None else self.head.step
        self.story.note(step, before, event, self.phase, instructions)
        if self.validates:
            self.validate()
        return instructions

    def _dispatch(self, event: Event) -> list[Instruction]:  # noqa: PLR0912 (a case for each event)
        match event:
            case LedgerOpened():
                return self._on_ledger_opened(event)
            case ManifestCommitted():
                return self._on_manifest_committed(event)
            case IntentLoaded():
                return self._on_intent_loaded(event)
            case Offered():
                return self._on_offered(event)
            case BackfillOffered():
                return self._on_backfill_offered(event)
            case ReplayPrepared():
                return self._on_replay_prepared(event)
            case AttemptEnded():
                return self._on_attempt_ended(event)
            case AttemptFailed():
                return self._on_attempt_failed(event)
            case DeliveredBeforeCommit():
                return self._on_delivered_before_commit(event)
            case OutputsWritten():
                return self._on_outputs_written(event)
            case OutputsStaged():
                return self._on_outputs_staged(event)
            case Released():
                return self._on_released(event)
            case PinsFound():
                return self._on_pins_found(event)
            case Woken():
                return self._go_on()
            case Awaited():
                return self._on_awaited(event)
            case StopRequested():
                return self._on_stop_requested(event)
            case Commanded():
                return self._on_commanded(event)
            case LayoutCommand():
                return self._on_layout_command(event)
            case ChangeRequested():
                return self._on_change_requested()

    def validate(self) -> None:
        """Check what must hold between two events.

        Raises:
            InvariantBroken: if something does not.
        """
        phase, step = self.phase, self._step
        if phase is Phase.RUNNING:
            ensure(
                step is not None and step.draft is None, "an attempt runs, and no step is planned"
            )
        if phase in _AFTER_ADOPTION:
            ensure(step is not None and step.draft is not None, "no adopted step is under way")
        if phase in (Phase.POLLING, Phase.POLLING_BACKFILL):
            ensure(step is None, "sources are polled while a step is under way")
            ensure(self._deferred is None, "sources are polled before a deferred command")
        if phase is Phase.PREPARING_REPLAY:
            ensure(self._replay is not None, "no step is to be computed again")
        if self._replay is not None:
            ensure(self._head.is_behind, "all state is in storage, and steps are computed again")
        if phase is Phase.AWAITING_CLAIM:
            ensure(self._successor is not None, "nobody takes over")
        if self._ending is not None:
            ensure(phase in (Phase.COMMITTING, Phase.ENDED), "the run has ended, and goes on")
        self._outbox.check()

    @property
    def _head(self) -> Head:
        assert self.head is not None
        return self.head

    # -- opening ------------------------------------------------------------------------------

    def _on_ledger_opened(self, event: LedgerOpened) -> list[Instruction]:
        head = event.head
        self._polls.open(event.now_us)
        self._uncheckpointed.open(event.checkpoint, event.uncheckpointed, event.now_us)
        if head is not None:
            self._outbox.open(head)
            self._clean_up.open(head)
        claim = claim_manifest(
            event,
            self.pipeline_facts,
            self._outbox,
            nonce=self._nonce(),
            portion_bytes=self.settings.seed_bytes,
        )
        self.begins_with = layout_begun_with(head, claim)
        return [Commit(head, claim)]

    # -- after a commit -----------------------------------------------------------------------

    def _on_manifest_committed(self, event: ManifestCommitted) -> list[Instruction]:
        head, claimed = event.head, self.head is None
        if event.after_us is not None:
            self._steering.committed(event.after_us)
        self.head = head
        adopted = self._note_step(event)
        self._stopping |= head.stops_here
        if self._ending is not None:
            return [Stop(self._ending)]
        if self._successor is not None and event.manifest.answers:
            return [AwaitClaim(self.settings.handover_us)]
        if claimed and head.is_behind:
            self._replay = self._uncheckpointed.replay()
        return [
            *self._follow_layout(event),
            *self._release_all(self._available_outputs(head), adopted),
            *self._clean(claimed=claimed),
            *self._go_on(),
        ]

    def _note_step(self, event: ManifestCommitted) -> Adopted | None:
        """Note the committed manifest.

        Return the step's results, or None if nothing was computed.
        """
        step, self._step, self._lost = self._step, None, 0
        adopted = None if step is None else step.adopted
        self._uncheckpointed.committed(event.head, event.manifest, adopted)
        if adopted is not None and event.manifest.uncheckpointed:
            self._unstaged.keep(event.head.step, adopted.output)
        return adopted

    def _follow_layout(self, event: ManifestCommitted) -> list[Instruction]:
        """Let the runner follow what the manifest says of hosts, and of workers to come."""
        todo: list[Instruction] = []
        workers = workers_to_come(event.head)
        if workers:
            todo.append(PrepareWorkers(workers))
        if event.manifest.drained_hosts is not None:
            todo.append(AvoidHosts(list(event.head.drained_hosts)))
        return todo

    def _clean(self, *, claimed: bool) -> list[Instruction]:
        todo: list[Instruction] = []
        if claimed or self._head.step % self.settings.sweep_every == 0:
            todo.append(Sweep())
        clean = self._clean_up.after(self._head)
        return todo if clean is None else [*todo, clean]

    def _available_outputs(self, head: Head) -> Mapping[int, list[FileRef]]:
        """Return the steps whose outputs can be delivered now.

        A step that is still to be computed again comes later, with all steps after it.
        """
        missing = None if self._replay is None else self._replay.next
        if missing is None:
            return head.unreleased
        return {step: files for step, files in head.unreleased.items() if step < missing.step}

    def _release_all(
        self, unreleased: Mapping[int, list[FileRef]], newest: Adopted | None = None
    ) -> list[Instruction]:
        """Deliver what sinks were not given yet.

        Args:
            unreleased: the steps, with the files that their manifests name.
            newest: the results of the step that was just committed.
        """
        todo: list[Instruction] = []
        for step, sinks in self._outbox.give_all(unreleased):
            output = StepOutput(unreleased[step])
            if newest is not None and step == self._head.step:
                output = newest.output
            ensure(not output.is_empty, f"the output of step {step} is nowhere")
            todo.append(self._release(step, sinks, output))
        return todo

    def _release(self, step: int, sinks: list[str], output: StepOutput) -> Release:
        return Release(StepDelivery(step, self._head.origin_of(step), output), sinks)

    def _go_on(self) -> list[Instruction]:
        """Start the next step, unless something else comes first.

        Before it come, in this order: a replay, a deferred command, the end of the run, a handover,
        and waiting for room in the outbox.
        """
        if self._replay is not None:
            return self._replay_next()
        if self._deferred is not None:
            return self._handle_deferred()
        if self._changing:
            return self._end(CHANGED)
        if self._stopping:
            return self._end("stopped")
        if self._successor is not None:
            return self._hand_over(self._successor)
        if self._outbox.waits_for(self._head.unreleased):
            return [AwaitSinks(self._outbox.awaited(self._head.unreleased))]
        # While paused, no intent is looked for. The step that an earlier driver started is run
        # after the pause.
        return [self._poll() if self._intent_loaded or self._head.paused else self._load_intent()]

    def _await_all_sinks(self) -> list[Instruction]:
        """Wait until all sinks have received everything. Return nothing if they have."""
        undelivered = self._outbox.undelivered(self._head.unreleased)
        return [AwaitSinks(self._outbox.behind(undelivered[-1]))] if undelivered else []

    def _on_released(self, event: Released) -> list[Instruction]:
        self._outbox.note(event.sink, event.step, event.newest)
        return []

    def _on_pins_found(self, event: PinsFound) -> list[Instruction]:
        self._clean_up.pinned = event.lowest
        return []

    # -- what comes next ----------------------------------------------------------------------

    def _load_intent(self) -> LoadIntent:
        """Ask for the intent of the next step.

        This is safe only after the claim. See the protocol in :mod:`headrace.ledger.ledger`.
        """
        return LoadIntent(self._head.done + 1, self.pipeline_facts.starts(self._head))

    def _on_intent_loaded(self, event: IntentLoaded) -> list[Instruction]:
        """Run the step that an earlier driver intended, if it left an intent.

        Its results may have been shown.
        """
        if self._stopping:
            return self._end("stopped")
        if event.intent is not None and not event.ready:
            return [Wait(event.now_us + self.settings.poll_us), self._load_intent()]
        self._intent_loaded = True
        if event.intent is None:
            self._step = None
            return [self._poll()]
        intent = event.intent
        # An intended backfill step is not run if its computations have been removed since.
        read_by_nobody = intent.is_backfill and self._head.backfill is None
        if not event.same_code and not read_by_nobody:
            if not self.settings.recompute_shown:
                return [Stop("failed", _code_changed(intent, self.pipeline_facts))]
            # Under the number of this very step, no row has been shown.
            intent = msgspec.structs.replace(intent, step=self._head.step + 1)
        superseded = self._step
        return self._begin(
            intent, attempt=0 if superseded is None else superseded.planned.plan.attempt + 1
        )

    def _poll(self) -> Poll | PollBackfill:
        head, pipeline_facts = self._head, self.pipeline_facts
        if head.paused:
            return Poll({}, {})
        if head.backfill is not None and self._backfill_steps < _MOST_BACKFILL_STEPS:
            self._backfill_steps += 1
            return what_to_read_again(head, pipeline_facts, head.backfill, self.settings.limit)
        self._backfill_steps = 0
        if has_backlog(head, pipeline_facts, backfilling=False):
            return Poll({}, {})
        return self._polls.next(head)

    def _on_offered(self, event: Offered) -> list[Instruction]:
        head, polls = self._head, self._polls
        polls.note_time(event.now_us)
        if self._stopping:
            return self._end("stopped")
        if head.paused:
            polls.note_silence(event.now_us)
            return [Wait(event.now_us + self.settings.poll_us), self._poll()]
        if has_backlog(head, self.pipeline_facts, backfilling=False):
            polls.note_silence(event.now_us)
            return self._begin_without_input(event.now_us)
        found = polls.answered(head, event)
        self._steering.offered(found.offers, polls.limits)
        is_due = self._is_timer_due(event.now_us)
        if (
            found.brings_news(head)
            or is_due
            or self._uncheckpointed.is_overdue(head, event.now_us)
            or wants_steps(head)
            or head.seeding is not None
        ):
            return self._begin(self._intent(event.now_us, found))
        return self._idle(event.now_us)

    def _is_timer_due(self, now_us: int) -> bool:
        """Return whether a wall timer is due."""
        all_is_read = self._all_is_read
        held = all_is_read and self._holds_remain()
        to_us = self._polls.counts_timers_to(now_us, all_is_read=all_is_read, held=held)
        return self._head.next_wall_timer <= to_us

    @property
    def _all_is_read(self) -> bool:
        """Whether the run ends once its input has been read, and all of it has been."""
        left = set(self.pipeline_facts.injectors) - set(self._head.ended)
        if self._polls.available is not None:
            return self._polls.available.is_done(left)
        return self._drain and not left

    def _idle(self, now_us: int) -> list[Instruction]:
        """Wait for input or for a timer. End the run if neither will come."""
        head, available = self._head, self._polls.available
        if head.backfill is not None:
            return [self._poll()]
        if available is not None and self._all_is_read:
            return self._end(CAUGHT_UP)
        if available is not None and available.lift_skew():
            return [self._poll()]
        if self._all_is_read and not self._holds_remain():
            return self._end(DRAINED)
        until = min(now_us + self.settings.poll_us, head.next_wall_timer)
        return [Wait(until), self._poll()]

    def _holds_remain(self) -> bool:
        """Return whether a hold keeps an output watermark from the end.

        Its timer is still to fire.
        """
        marks = (self._head.watermark_of(name) for name in self.pipeline_facts.nodes)
        return any(after_out < after_in for after_in, after_out in marks)

    def _on_backfill_offered(self, event: BackfillOffered) -> list[Instruction]:
        """Start the next step of a backfill, or note that the backfill is complete."""
        if self._stopping:
            return self._end("stopped")
        head = self._head
        offers = offers_as_they_were(head, event.offers)
        if has_backlog(head, self.pipeline_facts, backfilling=True):
            offers = {}
        elif not offers and retained_after(head, self.pipeline_facts) is None:
            return [self._note(backfill=Backfill([]))]
        found = Input(offers, known_then(head, self.pipeline_facts, event.offers))
        return self._begin(self._intent(event.now_us, found, backfill=True))

    # -- a step -------------------------------------------------------------------------------

    def _intent(self, now_us: int, found: Input, *, backfill: bool = False) -> Intent:
        return Intent(
            order=self._head.done + 1,
            step=self._head.step + 1,
            nonce=self._nonce(),
            clock_us=now_us,
            offers=found.offers,
            known=found.facts,
            is_backfill=backfill,
            code=self.pipeline_facts.code,
        )

    def _begin(
        self, intent: Intent, *, attempt: int = 0, checkpoint: bool = False
    ) -> list[Instruction]:
        """Run the step of an intent, which may be this driver's own or that of an earlier one."""
        uncheckpointed = not (
            checkpoint or self._uncheckpointed.is_due(self._head, intent.clock_us)
        )
        planned = plan_step(
            self._head,
            self.pipeline_facts,
            self.settings,
            intent,
            uncheckpointed=uncheckpointed,
            soft=self._uncheckpointed.links,
        )
        planned = msgspec.structs.replace(planned, plan=self._steering.measured(planned.plan))
        self._step = _StepUnderWay(planned.as_attempt(attempt))
        # Pins are looked for no sooner, since readers may pin a step while the pipeline is idle.
        look = [LookForPins()] if self._clean_up.wants_pins(self._head, intent.clock_us) else []
        return [*look, self._run_of(self._step.planned)]

    def _begin_checkpoint(self) -> list[Instruction]:
        """Start a step without input that writes all state to storage."""
        return self._begin_without_input(self._polls.now_us, checkpoint=True)

    def _begin_without_input(self, now_us: int, *, checkpoint: bool = False) -> list[Instruction]:
        """Start a step that takes no input."""
        found = self._polls.without_input(self._head, now_us)
        return self._begin(self._intent(now_us, found), checkpoint=checkpoint)

    def _run_of(self, planned: PlannedStep) -> Run:
        weak = bool(self.pipeline_facts.weak)
        return Run(planned.plan, planned.divisions, planned.intent if weak else None)

    def _on_attempt_ended(self, event: AttemptEnded) -> list[Instruction]:
        if event.superseded:
            return [self._load_intent()]
        step = self._under_way
        result = adopt(step.planned.plan, self.pipeline_facts.layers, event.reports)
        if isinstance(result, Conflict):
            return self._retry(result.why)
        if isinstance(result, Failure):
            return self._on_failure(result)
        if step.recorded is not None:
            return self._replayed(step.recorded, result)
        return self._adopted(step, result, event)

    @property
    def _under_way(self) -> _StepUnderWay:
        assert self._step is not None
        return self._step

    def _adopted(
        self, step: _StepUnderWay, adopted: Adopted, event: AttemptEnded
    ) -> list[Instruction]:
        """Deliver and commit a step whose attempt was adopted."""
        plan = step.planned.plan
        if not plan.is_backfill:
            self._polls.note_step(step.planned.intent, event.took_us)
        self._steering.adopted(plan, adopted)
        took = StepStats(
            event.took_us,
            usual=not plan.is_backfill,
            prepared=bool(plan.ahead) and not adopted.unread,
            workers=event.workers,
        )
        step.adopted = adopted
        step.draft = StepDraft(
            step.planned,
            adopted,
            self._head,
            self.pipeline_facts,
            self.settings,
            nonce=self._nonce(),
            cleaned=self._clean_up.cleaned,
            pinned=self._clean_up.pinned,
            layout_changes=self._steering.after_step(self._head, plan.clock_us, took),
        )
        return self._deliver_before_commit(step.draft, adopted) or self._stage(step.draft)

    def _on_failure(self, failure: Failure) -> list[Instruction]:
        """Stop with the error, unless lost state can be computed again."""
        self._lost += 1
        if failure.kind != StateLost.__name__ or self._lost >= self.settings.max_attempts:
            return [Stop("failed", error_of(failure))]
        self._step = None
        self._replay = self._uncheckpointed.replay()
        return self._replay_next()

    def _on_attempt_failed(self, event: AttemptFailed) -> list[Instruction]:
        return [self._load_intent()] if event.superseded else self._retry(event.why)

    def _retry(self, why: str) -> list[Instruction]:
        """Discard the attempt, and run the same step with the same division again."""
        step = self._under_way
        plan = step.planned.plan
        attempt = plan.attempt + 1
        if attempt >= self.settings.max_attempts:
            error = StepAbandoned(
                f"step {plan.step} failed {attempt} times; the last time: {why}",
                place=f"step {plan.step}, epoch {plan.epoch}",
                remedy="see Spark's log for the cause; nothing was committed, start again to go on",
            )
            return [Stop("failed", error)]
        step.planned = step.planned.as_attempt(attempt)
        return [msgspec.structs.replace(self._run_of(step.planned), after=why)]

    # -- from adoption to commit --------------------------------------------------------------

    def _deliver_before_commit(self, draft: StepDraft, adopted: Adopted) -> list[Instruction]:
        """Give weak sinks the output of an adopted step.

        Return no instruction if they have none.
        """
        streams = {sink: self.pipeline_facts.sinks[sink] for sink in self.pipeline_facts.weak}
        sinks = [sink for sink, name in streams.items() if adopted.stream_digests.get(name)]
        if not sinks:
            return []
        awaited = [sink for sink in sinks if streams[sink] in adopted.output.unstaged]
        # If a sink lags already, the step does not wait for it. Its outputs are staged at once.
        patience = 0 if self._outbox.lagging(awaited) else self.settings.straggler_us
        step = self._under_way.planned.plan.step
        self._outbox.give(sinks, step)
        delivery = StepDelivery(step, draft.origin, adopted.output, committed=False)
        return [DeliverBeforeCommit(delivery, sinks, awaited, patience)]

    def _on_delivered_before_commit(self, event: DeliveredBeforeCommit) -> list[Instruction]:
        step = self._under_way
        assert step.draft is not None and step.adopted is not None
        if not event.late:
            return self._stage(step.draft)
        streams = sorted({self.pipeline_facts.sinks[sink] for sink in event.late})
        return [WriteOutputs(step.planned.plan, step.adopted.output.only_unstaged(streams))]

    def _on_outputs_written(self, event: OutputsWritten) -> list[Instruction]:
        """Name the file with what a weak sink has not acknowledged, and go on."""
        step = self._under_way
        assert step.draft is not None and step.adopted is not None
        output = step.adopted.output.staged_in(event.file)
        step.adopted = msgspec.structs.replace(step.adopted, output=output)
        step.draft.name_output(event.file)
        return self._stage(step.draft)

    def _stage(self, draft: StepDraft) -> list[Instruction]:
        """Commit a step.

        Before a checkpoint, stage outputs that no later replay would make again. And once in a
        while stage those for which old manifests would stay, since a sink is slow.
        """
        if draft.is_checkpoint:
            undelivered = self._outbox.undelivered(self._head.unreleased)
            left = self._unstaged.left(undelivered)
            if draft.is_base:
                left = {**packed_for_long(self._head, undelivered), **left}
            if left:
                return [StageOutputs(self._under_way.planned.plan, left)]
        return [self._commit(draft)]

    def _on_outputs_staged(self, event: OutputsStaged) -> list[Instruction]:
        draft = self._under_way.draft
        assert draft is not None
        self._unstaged.staged()
        draft.name_staged(event.files)
        return [self._commit(draft)]

    def _commit(self, draft: StepDraft) -> Commit:
        return Commit(self._head, draft.finish(self._outbox), self._under_way.adopted)

    # -- replay -------------------------------------------------------------------------------

    def _replay_next(self) -> list[Instruction]:
        """Compute the steps since the last checkpoint again, one at a time."""
        assert self._replay is not None
        recorded = self._replay.next
        if recorded is None:
            self._replay = None
            return [*self._release_all(self._head.unreleased), *self._go_on()]
        assert recorded.intent is not None
        return [
            PrepareReplay(
                recorded.intent, self.pipeline_facts.starts(self._replay.head(self._head))
            )
        ]

    def _on_replay_prepared(self, event: ReplayPrepared) -> list[Instruction]:
        """Compute a step again, once its input is available."""
        assert self._replay is not None
        recorded = self._replay.next
        assert recorded is not None and recorded.intent is not None
        self._polls.note_time(event.now_us)
        if not event.ready and self._stopping:
            return [Stop("stopped")]  # the next run starts with the rest of the replay
        if not event.ready:
            return [Wait(event.now_us + self.settings.poll_us), *self._replay_next()]
        planned = plan_step(
            self._replay.head(self._head),
            self.pipeline_facts,
            self.settings,
            recorded.intent,
            uncheckpointed=True,
            soft=self._uncheckpointed.links,
            ledger=self._head.step,
        )
        self._step = _StepUnderWay(planned, recorded=recorded)
        return [Run(planned.plan, planned.divisions)]

    def _replayed(self, recorded: Manifest, result: Adopted) -> list[Instruction]:
        """Compare a step with its manifest, give sinks what they still lack of it, and go on."""
        assert self._replay is not None
        try:
            check_same(recorded, result)
        except ReplayDiffers as error:
            return [Stop("failed", error)]
        self._step = None
        self._uncheckpointed.note_files(self._head, result.runs)
        self._replay.pass_()
        step, unreleased = recorded.step, self._head.unreleased
        if step > self._newest_replayed:
            self._newest_replayed, self._lost = step, 0
        if step in unreleased and recorded.unstaged:
            self._unstaged.keep_replayed(step, result.output)
        own = {step: unreleased[step]} if step in unreleased else {}
        given = [self._release(at, to, result.output) for at, to in self._outbox.give_all(own)]
        return [*given, *self._go_on()]

    # -- commands -----------------------------------------------------------------------------

    def _on_stop_requested(self, event: StopRequested) -> list[Instruction]:
        self._stopping |= event.at_once
        self._drain = not event.catch_up
        if event.catch_up:
            self._polls.available = self._polls.available or AvailableNow()
        elif event.drain:
            self._polls.available = None
        return []

    def _on_change_requested(self) -> list[Instruction]:
        self._changing = True
        return self._end(CHANGED)

    def _on_layout_command(self, event: LayoutCommand) -> list[Instruction]:
        """Commit a change of the layout state, with the answer if a command asked for it."""
        head = self._head
        if head.is_behind:
            self._polls.note_time(event.now_us)
            return self._defer(event)
        if event.request is None:
            layout_state = self._steering.next_turn(head, event.now_us)
            return [self._note(layout_state=layout_state)]
        decided = self._steering.decide(head, event.request, event.now_us)
        return [self._note([decided.answer], layout_state=decided.layout_state)]

    def _defer(self, event: LayoutCommand | Commanded) -> list[Instruction]:
        """Defer a command until the next checkpoint, since some state is not in storage yet.

        This holds while paused, too: a pause that was agreed on for a step may start with a note.
        """
        self._deferred = event
        return self._begin_checkpoint()

    def _handle_deferred(self) -> list[Instruction]:
        deferred, self._deferred = self._deferred, None
        if isinstance(deferred, Commanded):
            answer = msgspec.structs.replace(deferred.answer, step=self._head.step + 1)
            return self._on_commanded(msgspec.structs.replace(deferred, answer=answer))
        assert deferred is not None
        return self._on_layout_command(deferred)

    def _on_commanded(self, event: Commanded) -> list[Instruction]:
        """Commit the answer to a command before anything follows from it."""
        answer, head = event.answer, self._head
        if answer.applied and event.kind == "hand_over":
            return self._hand_over(event)
        if answer.applied and event.kind == "step_aside":
            return self._step_aside(event)
        if answer.applied and event.kind in ("drain", "catch_up"):
            self._on_stop_requested(
                StopRequested(drain=event.kind == "drain", catch_up=event.kind == "catch_up")
            )
        if event.kind == "pause" and answer.applied and head.is_behind and not head.paused:
            return self._defer(event)
        # The agreed step may have been the very checkpoint for which this command was deferred.
        scheduled_stop = event.scheduled_stop
        at_once = answer.applied and (
            scheduled_stop is None
            or scheduled_stop.kind == "none"
            or scheduled_stop.step <= head.step
        )
        if at_once and event.kind == "stop":
            self._stopping = True
        paused = {"pause": True, "resume": False}.get(event.kind or "") if at_once else None
        return [self._note([answer], paused=paused, commanded=event)]

    def _hand_over(self, event: Commanded) -> list[Instruction]:
        """Write all state to storage and deliver everything.

        Then answer with the manifest that the claim follows.
        """
        self._successor = event
        if self._head.is_behind:
            return self._begin_checkpoint()
        waits = self._await_all_sinks()
        if waits:
            return waits
        answer = msgspec.structs.replace(event.answer, step=self._head.step + 1)
        return [msgspec.structs.replace(self._note([answer]), hands_over=True)]

    def _step_aside(self, event: Commanded) -> list[Instruction]:
        """Answer, and commit nothing more, so that the claim meets no step."""
        self._successor = event
        return [msgspec.structs.replace(self._note([event.answer]), hands_over=True)]

    def _on_awaited(self, event: Awaited) -> list[Instruction]:
        """End if the pipeline was claimed.

        Otherwise go on in the same epoch, since nothing was committed between.
        """
        successor, self._successor = self._successor, None
        if successor is None or not event.claimed:
            return self._go_on()
        if successor.kind == "step_aside":
            return [Stop("replaced", self._replaced(successor))]
        return [Stop(f"{HANDED_OVER} to {successor.to}, step {self._head.step}")]

    def _replaced(self, successor: Commanded) -> Fenced:
        return Fenced(
            f"driver of epoch {self._head.epoch} is fenced after step {self._head.step}: "
            f"{successor.to} has replaced it",
            place=self.pipeline_facts.store,
            remedy="nothing is lost; let the newer driver work, or replace it (--take-over, "
            "take_over=True)",
        )

    def _end(self, why: str) -> list[Instruction]:
        """Stop, once everything committed is delivered and that is noted durably."""
        head = self._head
        if head.is_behind and (why == CHANGED or not (head.paused or head.stops_here)):
            return self._begin_checkpoint()
        waits = self._await_all_sinks()
        if waits:
            return waits
        if not head.unreleased and why != CAUGHT_UP:
            return [Stop(why)]
        self._ending = why
        return [self._note(caught_up=why == CAUGHT_UP)]

    def _note(
        self,
        answers: Sequence[Answer] = (),
        *,
        paused: bool | None = None,
        backfill: Backfill | None = None,
        layout_state: LayoutState | None = None,
        commanded: Commanded | None = None,
        caught_up: bool = False,
    ) -> Commit:
        """Commit a manifest without a computed step, for what it says."""
        head = self._head
        note = note_manifest(
            head,
            self.pipeline_facts,
            self._outbox,
            answers=answers,
            paused=paused,
            backfill=backfill,
            layout_state=layout_state,
            drained_hosts=None if commanded is None else commanded.drained_hosts,
            scheduled_stop=None if commanded is None else commanded.scheduled_stop,
            caught_up=caught_up,
            nonce=self._nonce(),
            cleaned=self._clean_up.cleaned,
        )
        return Commit(head, note)


def _code_changed(intent: Intent, pipeline_facts: PipelineFacts) -> CodeChanged:
    """Return the error for a step that other code has started to show."""
    weak = (
        ", ".join(repr(name) for name in pipeline_facts.weak)
        or "weak sinks that the pipeline no longer has"
    )
    return CodeChanged(
        f"the step that comes next was started by other code, which may have shown its results to {weak} "
        f"under id {intent.step}, and ended before it was committed; this code may compute other rows",
        place=f"pipeline {pipeline_facts.name!r}, step {intent.order} of those with records, "
        f"id {intent.step}",
        remedy="start once with the code as it was, until a step is committed, and then with this one; or "
        "let this code compute the step under a new id (Settings.recompute_shown, headrace run "
        "--recompute-shown): what was shown under the old id then stays shown, and no step has it",
    )
