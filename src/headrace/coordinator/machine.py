"""The coordinator: a state machine that decides what the driver does next.

::

    LedgerOpened
         │
    Commit(claim) ──► ManifestCommitted ──► Release… ──► Poll ──► Offered ─┬─► Run ──► AttemptEnded
                              ▲                           ▲                │                 │
                              │                           └──── Wait ◄─────┘           Commit(step)
                              └──────────────────────────────────────────────────────────────┘

Events go in, instructions come out, with one method for each event. The diagram shows the ordinary
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
  comes, the run goes on.

The coordinator reads no clock, draws no random number and touches no store. Times come with events,
and nonces from a source that is passed in. So a run is a function of its events and can be
replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

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
from headrace.coordinator.batch_size import BatchSize
from headrace.coordinator.clean_up import CleanUp
from headrace.coordinator.manifests import (
    claim_manifest,
    layout_begun_with,
    note_manifest,
    step_manifest,
)
from headrace.coordinator.messages import (
    AttemptEnded,
    AttemptFailed,
    AwaitClaim,
    Awaited,
    AwaitSinks,
    BackfillOffered,
    ChangeAsked,
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
    Release,
    Released,
    ReplayPrepared,
    Run,
    StageOutputs,
    Stop,
    StopAsked,
    Sweep,
    Wait,
    Woken,
    WriteOutputs,
)
from headrace.coordinator.migrations.layout_state import LayoutState
from headrace.coordinator.migrations.steering import MigrationController, wants_steps
from headrace.coordinator.migrations.step_times import StepStats
from headrace.coordinator.outbox import SinkOutbox
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.coordinator.planning import PlannedStep, plan_step
from headrace.coordinator.polling import Heard, known, limits, named_in, paused_partitions
from headrace.coordinator.replay import Replay, UncheckpointedSteps, check_same
from headrace.coordinator.results import Results
from headrace.coordinator.settings import Settings, check_settings
from headrace.errors import CodeChanged, ReplayDiffers, StateLost, TryAbandoned
from headrace.eventtime.watermark import Frontiers, news
from headrace.ledger.commands import Answer
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HANDED_OVER
from headrace.ledger.intent import Intent
from headrace.ledger.manifest import Manifest
from headrace.ledger.records import CatchUp
from headrace.pipeline.source import Limit, Offer, Part
from headrace.protocol.failures import error_of
from headrace.protocol.plan import Failure
from headrace.runfiles.format import FileRef

#: During a backfill, the number of backfill steps for each step that may take new input.
_STEPS_OF_CATCHING_UP = 2

#: Why a run ends: it starts over with another topology.
CHANGED = "changed"
#: Why a run ends: all input that was available has been read.
CAUGHT_UP = "caught up"


class _Pending(msgspec.Struct):
    """The step under way, with its results once its attempt is adopted.

    Attributes:
        planned: the step.
        manifest: its manifest, once it is adopted.
        adopted: its results, once it is adopted.
        recorded: the manifest that it was committed with, if it is a committed step that is
            computed again.
    """

    planned: PlannedStep
    manifest: Manifest | None = None
    adopted: Adopted | None = None
    recorded: Manifest | None = None


class Coordinator:
    """The decisions of one driver, and the state that it keeps between events.

    Args:
        shape: facts about the pipeline.
        settings: how to run it.
        nonce: returns a fresh name at each call, which others are unlikely to guess.
        drain: whether to stop when all input has ended.
        steering: remembers how long steps take and which load they had, to plan migrations.

    Attributes:
        shape, settings: as passed.
        head: the pipeline as of the newest manifest; None before the claim is committed.
        begins_with: the layout that is in force once the claim is committed; until the ledger is
            opened, that of ``shape``.
    """

    def __init__(
        self, shape: PipelineFacts, settings: Settings, nonce: Callable[[], str], *, drain: bool,
        steering: MigrationController | None = None,
    ) -> None:  # fmt: skip
        check_settings(settings)
        self.shape = shape
        self.settings = settings
        self.head: Head | None = None
        self._nonce = nonce
        self._drain = drain
        self._available: AvailableNow | None = None  # if the run ends once it has caught up
        self._read_us: int | None = None  # the time since which nothing more is left to read
        self._polled = Poll({}, {})
        self._stopping = False
        self._pending: _Pending | None = None
        self._ending: str | None = None
        self._pace = BatchSize(settings.target_us, settings.limit.rows)
        self._caught_up_steps = 0  # consecutive steps of a backfill
        self._changing = False
        self._heir: Commanded | None = None  # the command of the driver that takes over
        self._most: Mapping[str, Limit] = {}  # what the poll lets each source offer
        self._listening_us = 0  # the time since which sources are asked
        self._back_us = 0  # when the clock was last seen to go back
        self._paused: Mapping[str, frozenset[str]] = {}  # partitions that the poll leaves out
        self._named: dict[str, Mapping[str, Part]] = {}  # partitions that sources named last
        self.begins_with = shape.layout
        self._outbox = SinkOutbox(
            shape.sinks, steps=settings.outbox_steps, size=settings.outbox_bytes
        )
        self._awaiting: Literal["nothing", "room", "all"] = "nothing"
        self._steering = steering or MigrationController()
        self._recalled = False  # whether an intent of an earlier driver was looked for
        self._clean_up = CleanUp(settings, intents=bool(shape.weak))
        self._stretch = UncheckpointedSteps(settings)
        self._replay: Replay | None = None
        self._lost = 0  # how often uncheckpointed state was lost since the last commit
        self._deferred: LayoutCommand | Commanded | None = None  # handled after the next checkpoint
        self._now_us = 0
        self._results = Results()
        self._furthest = -1  # the newest step that was computed again

    @property
    def waits(self) -> bool:
        """Whether ``AwaitSinks`` still has something to wait for."""
        if self._awaiting == "room":
            return bool(self._outbox.waits_for(self._head.unreleased))
        return self._awaiting == "all" and bool(self._outbox.undelivered(self._head.unreleased))

    def lagging(self, sinks: Iterable[str]) -> list[str]:
        """Return those of the given sinks that have not acknowledged all they were given."""
        return self._outbox.lagging(sinks)

    def handle(self, event: Event) -> list[Instruction]:
        """Return the instructions that follow from an event, in the order to carry them out."""
        match event:
            case LedgerOpened():
                return self._opened(event)
            case ManifestCommitted():
                return self._committed(event)
            case IntentLoaded() | Offered() | BackfillOffered() | ReplayPrepared():
                return self._found(event)
            case AttemptEnded():
                return self._try_ended(event)
            case AttemptFailed():
                return self._try_broke(event)
            case DeliveredBeforeCommit():
                return self._handed_out(event.late)
            case OutputsWritten() | OutputsStaged():
                return self._written(event)
            case Released() | PinsFound():
                return self._remember(event)
            case Woken() | Awaited():
                return self._woken() if isinstance(event, Woken) else self._awaited(event)
            case StopAsked() | Commanded() | LayoutCommand() | ChangeAsked():
                return self._asked(event)

    # -- opening ------------------------------------------------------------------------------

    def _opened(self, event: LedgerOpened) -> list[Instruction]:
        head = event.head
        self._listening_us = self._now_us = event.now_us
        self._stretch.open(event.checkpoint, event.light, event.now_us)
        claim = claim_manifest(event, self.shape, nonce=self._nonce())
        self.begins_with = layout_begun_with(head, claim)
        if head is None:
            return [Commit(head, claim)]
        self._outbox.open(head)
        self._clean_up.open(head)
        return [Commit(head, self._outbox.noted(head, claim))]

    # -- after a commit -----------------------------------------------------------------------

    def _committed(self, event: ManifestCommitted) -> list[Instruction]:
        head = event.head
        if event.after_us is not None:
            self._steering.committed(event.after_us)
        claimed = self.head is None
        self.head = head
        adopted = self._note_step(event)
        self._stopping |= head.stops_here
        if self._ending is not None:
            return [Stop(self._ending)]
        if self._heir is not None and event.manifest.answers:
            return [AwaitClaim(self.settings.handover_us)]
        if claimed and head.is_behind:
            self._replay = self._stretch.replay()
        todo: list[Instruction] = [
            Release(step, sinks, adopted if step == head.step else None)
            for step, sinks in self._outbox.give_all(self._at_hand(head))
        ]
        if claimed or head.step % self.settings.sweep_every == 0:
            todo.append(Sweep())
        clean = self._clean_up.after(head)
        if clean is not None:
            todo.append(clean)
        return [*todo, *self._go_on()]

    def _note_step(self, event: ManifestCommitted) -> Adopted | None:
        """Note the committed manifest.

        Return the step's results, or None if nothing was computed.
        """
        pending, self._pending, self._lost = self._pending, None, 0
        adopted = None if pending is None else pending.adopted
        self._stretch.committed(event.head, event.manifest, adopted)
        if pending is not None and adopted is not None and event.manifest.light:
            self._results.keep(event.head.step, adopted)
        return adopted

    def _at_hand(self, head: Head) -> Mapping[int, list[FileRef]]:
        """Return the steps whose outputs are in files or at hand, so that they can be delivered.

        A step that is still to be computed again comes later, with all steps after it.
        """
        missing = None if self._replay is None else self._replay.next
        if missing is None:
            return head.unreleased
        return {step: files for step, files in head.unreleased.items() if step < missing.step}

    def _go_on(self) -> list[Instruction]:
        """Start the next step, unless something else comes first.

        Before it come, in this order: a replay, a deferred command, the end of the run, a handover,
        and waiting for room in the outbox.
        """
        if self._replay is not None:
            return self._compute_again()
        if self._deferred is not None:
            deferred, self._deferred = self._deferred, None
            if isinstance(deferred, Commanded):
                answer = msgspec.structs.replace(deferred.answer, step=self._head.step + 1)
                deferred = msgspec.structs.replace(deferred, answer=answer)
            return self._asked(deferred)
        if self._changing:
            return self._end(CHANGED)
        if self._stopping:
            return self._end("stopped")
        if self._heir is not None:
            return self._hand_over(self._heir)
        if self._outbox.waits_for(self._head.unreleased):
            self._awaiting = "room"
            return [AwaitSinks()]
        # While paused, no intent is looked for. The step that an earlier driver started is run
        # after the pause.
        return [self._poll() if self._recalled or self._head.paused else self._recall()]

    def _remember(self, event: Released | PinsFound) -> list[Instruction]:
        if isinstance(event, Released):
            self._outbox.note(event.sink, event.step)
        else:
            self._clean_up.pinned = event.lowest
        return []

    def _woken(self) -> list[Instruction]:
        self._awaiting = "nothing"
        return self._go_on()

    @property
    def _head(self) -> Head:
        assert self.head is not None
        return self.head

    # -- what comes next ----------------------------------------------------------------------

    def _found(
        self, event: IntentLoaded | Offered | BackfillOffered | ReplayPrepared
    ) -> list[Instruction]:
        """Start a step, if the event brings one."""
        match event:
            case IntentLoaded():
                return self._recalled_by(event)
            case Offered():
                return self._offered(event)
            case BackfillOffered():
                return self._offered_again(event)
            case ReplayPrepared():
                return self._regained(event)

    def _recall(self) -> LoadIntent:
        """Ask for the intent of the next step.

        This is safe only after the claim. See the protocol in :mod:`headrace.ledger.ledger`.
        """
        return LoadIntent(self._head.done + 1, self.shape.starts(self._head))

    def _recalled_by(self, event: IntentLoaded) -> list[Instruction]:
        """Run the step that an earlier driver intended, if it left an intent.

        Its results may have been shown.
        """
        if self._stopping:
            return self._end("stopped")
        if event.intent is not None and not event.ready:
            return [Wait(event.now_us + self.settings.poll_us), self._recall()]
        self._recalled = True
        if event.intent is None:
            return [self._poll()]
        intent = event.intent
        # An intended backfill step is not run if its computations have been removed since.
        read_by_nobody = intent.replays and self._head.catch_up is None
        if not event.same_code and not read_by_nobody:
            if not self.settings.recompute_shown:
                return [Stop("failed", _code_changed(intent, self.shape))]
            # Under the number of this very step, no row has been shown.
            intent = msgspec.structs.replace(intent, step=self._head.step + 1)
        superseded = self._pending
        return self._begin(
            intent, try_=0 if superseded is None else superseded.planned.plan.try_ + 1
        )

    def _poll(self) -> Poll | PollBackfill:
        head, shape = self._head, self.shape
        if head.paused:
            return Poll({}, {})
        if head.catch_up is not None and self._caught_up_steps < _STEPS_OF_CATCHING_UP:
            self._caught_up_steps += 1
            return what_to_read_again(head, shape, head.catch_up, self.settings.limit)
        self._caught_up_steps = 0
        if has_backlog(head, shape, catching_up=False):
            return Poll({}, {})
        self._paused = paused_partitions(head, shape)
        if self._available is not None:
            self._paused = self._available.paused(self._paused)
        most = limits(head, shape, self.settings, self._pace.rows, self._paused)
        if self._available is not None:
            most = self._available.limits(most)
        self._most = most
        starts = shape.starts(head)
        asked = {name: starts[name] for name in most if "" not in most[name].paused}
        self._polled = Poll(asked, most)
        return self._polled

    def _offered(self, event: Offered) -> list[Instruction]:
        self._tell_time(event.now_us)
        if self._stopping:
            return self._end("stopped")
        if self._head.paused:
            # A source that offers nothing may not have been asked.
            self._listening_us = event.now_us
            return [Wait(event.now_us + self.settings.poll_us), self._poll()]
        head = self._head
        if has_backlog(head, self.shape, catching_up=False):
            self._listening_us = event.now_us  # no source was asked
            return self._begin_without_input(event)
        offers = {name: offer for name, offer in event.offers.items() if offer is not None}
        if self._available is not None:
            offers = self._available.heard(self._polled, event)
        self._named.update((name, named_in(offer)) for name, offer in offers.items())
        heard = Heard(event.now_us, self._listening_us, self._paused, self._back_us, self._named)
        facts = known(head, self.shape, offers, heard)
        told = any(offer.final or not offer.empty for offer in offers.values())
        changed = any(news(head.frontiers_of(name), of) for name, of in facts.items())
        self._steering.offered(offers, self._most)
        due = self._is_due(event.now_us) or self._stretch.is_overdue(head, event.now_us)
        if told or changed or due or wants_steps(head):
            return self._begin(self._intent(event, offers, facts))
        return self._idle(event.now_us)

    def _tell_time(self, now_us: int) -> None:
        """Note what time it is.

        If the time is earlier than before, the clock is wrong now or has been corrected.
        """
        if now_us < self._now_us:
            self._back_us = now_us
            self._listening_us = min(self._listening_us, now_us)
        self._now_us = now_us

    def _is_due(self, now_us: int) -> bool:
        """Return whether a wall timer is due.

        A run that ends once its input has been read counts only timers that were due by then.
        Otherwise a timer that is set again and again would keep the run going. While a hold is
        pending, all timers count.
        """
        if self._all_is_read:
            self._read_us = now_us if self._read_us is None else self._read_us
            if not self._held():
                now_us = min(now_us, self._read_us)
        else:
            self._read_us = None
        return self._head.next_wall_timer <= now_us

    @property
    def _all_is_read(self) -> bool:
        """Whether the run ends once its input has been read, and all of it has been."""
        left = set(self.shape.injectors) - set(self._head.ended)
        if self._available is not None:
            return self._available.is_done(left)
        return self._drain and not left

    def _idle(self, now_us: int) -> list[Instruction]:
        """Wait for input or for a timer. End the run if neither will come."""
        head = self._head
        if head.catch_up is not None:
            return [self._poll()]
        if self._available is not None and self._all_is_read:
            return self._end(CAUGHT_UP)
        if self._available is not None and self._available.lift_skew():
            return [self._poll()]
        if self._all_is_read and not self._held():
            return self._end("drained")
        until = min(now_us + self.settings.poll_us, head.next_wall_timer)
        return [Wait(until), self._poll()]

    def _held(self) -> bool:
        """Return whether a hold keeps an output watermark from the end.

        Its timer is still to fire.
        """
        marks = (self._head.watermark_of(name) for name in self.shape.nodes)
        return any(after_out < after_in for after_in, after_out in marks)

    def _offered_again(self, event: BackfillOffered) -> list[Instruction]:
        """Start the next step of a backfill, or note that the backfill is complete."""
        if self._stopping:
            return self._end("stopped")
        head = self._head
        offers = offers_as_they_were(head, event.offers)
        if has_backlog(head, self.shape, catching_up=True):
            offers = {}
        elif not offers and retained_after(head, self.shape) is None:
            return [self._note(catch_up=CatchUp([]))]
        facts = known_then(head, self.shape, event.offers)
        return self._begin(self._intent(event, offers, facts))

    # -- a step -------------------------------------------------------------------------------

    def _intent(
        self,
        event: Offered | BackfillOffered,
        offers: dict[str, Offer],
        facts: dict[str, Frontiers],
    ) -> Intent:
        return Intent(
            order=self._head.done + 1,
            step=self._head.step + 1,
            nonce=self._nonce(),
            clock_us=event.now_us,
            offers=offers,
            known=facts,
            replays=isinstance(event, BackfillOffered),
            code=self.shape.code,
        )

    def _begin(
        self, intent: Intent, *, try_: int = 0, checkpoint: bool = False
    ) -> list[Instruction]:
        """Run the step of an intent, which may be this driver's own or that of an earlier one."""
        light = not (checkpoint or self._stretch.is_due(self._head, intent.clock_us))
        planned = plan_step(
            self._head, self.shape, self.settings, intent, light=light, soft=self._stretch.links
        )
        planned = msgspec.structs.replace(planned, plan=self._steering.measured(planned.plan))
        self._pending = _Pending(planned.as_try(try_))
        # Pins are looked for no sooner, since readers may pin a step while the pipeline is idle.
        look = [LookForPins()] if self._clean_up.wants_pins(self._head, intent.clock_us) else []
        return [*look, self._run_of(self._pending.planned)]

    def _run_of(self, planned: PlannedStep) -> Run:
        weak = bool(self.shape.weak)
        return Run(planned.plan, planned.divisions, planned.intent if weak else None)

    def _try_ended(self, event: AttemptEnded) -> list[Instruction]:
        if event.superseded:
            return [self._recall()]
        pending = self._pending
        assert pending is not None
        plan = pending.planned.plan
        result = adopt(plan, self.shape.layers, event.reports)
        if isinstance(result, Conflict):
            return self._again(result.why)
        if isinstance(result, Failure):
            return self._failed(result)
        if pending.recorded is not None:
            return self._computed_again(pending.recorded, result)
        if not plan.replays:
            self._set_pace(pending.planned.intent, event.took_us)
        pending.adopted = result
        pending.manifest = step_manifest(
            pending.planned, result, self._head, self.shape, self.settings,
            nonce=self._nonce(), cleaned=self._clean_up.cleaned, pinned=self._clean_up.pinned,
        )  # fmt: skip
        self._steering.adopted(plan, result)
        moved = self._steering.after_step(
            self._head,
            plan.clock_us,
            StepStats(
                event.took_us,
                usual=not plan.replays,
                prepared=bool(plan.ahead) and not result.unread,
                workers=event.workers,
            ),
        )
        pending.manifest = msgspec.structs.replace(pending.manifest, **moved)
        return self._hand_out(pending.manifest, result) or self._stage(pending)

    def _failed(self, failure: Failure) -> list[Instruction]:
        """Stop with the error, unless lost state can be computed again."""
        self._lost += 1
        if failure.kind != StateLost.__name__ or self._lost >= self.settings.max_tries:
            return [Stop("failed", error_of(failure))]
        self._pending = None
        self._replay = self._stretch.replay()
        return self._compute_again()

    def _try_broke(self, event: AttemptFailed) -> list[Instruction]:
        return [self._recall()] if event.superseded else self._again(event.why)

    def _again(self, why: str) -> list[Instruction]:
        """Discard the attempt, and run the same step with the same division again."""
        pending = self._pending
        assert pending is not None
        plan = pending.planned.plan
        tried = plan.try_ + 1
        if tried >= self.settings.max_tries:
            error = TryAbandoned(
                f"step {plan.step} failed {tried} times; the last time: {why}",
                place=f"step {plan.step}, epoch {plan.epoch}",
                remedy="see Spark's log for the cause; nothing was committed, start again to go on",
            )
            return [Stop("failed", error)]
        pending.planned = pending.planned.as_try(tried)
        return [self._run_of(pending.planned)]

    def _set_pace(self, intent: Intent, took_us: int) -> None:
        """Adjust how much live injectors may offer, so that steps take about the target time."""
        offered = [
            offer.rows
            for name, offer in intent.offers.items()
            if name in self.shape.live and not offer.empty
        ]
        self._pace.note(max(offered, default=0), took_us)

    # -- replay -------------------------------------------------------------------------------

    def _compute_again(self) -> list[Instruction]:
        """Compute the steps since the last checkpoint again, one at a time."""
        assert self._replay is not None
        recorded = self._replay.next
        if recorded is None:
            self._replay = None
            given = self._outbox.give_all(self._head.unreleased)
            return [*(Release(step, sinks) for step, sinks in given), *self._go_on()]
        assert recorded.intent is not None
        return [PrepareReplay(recorded.intent, self.shape.starts(self._replay.head(self._head)))]

    def _regained(self, event: ReplayPrepared) -> list[Instruction]:
        """Compute a step again, once its input is available."""
        assert self._replay is not None
        recorded = self._replay.next
        assert recorded is not None and recorded.intent is not None
        self._tell_time(event.now_us)
        if not event.ready and self._stopping:
            return [Stop("stopped")]  # the next run starts with the rest of the replay
        if not event.ready:
            return [Wait(event.now_us + self.settings.poll_us), *self._compute_again()]
        planned = plan_step(
            self._replay.head(self._head), self.shape, self.settings, recorded.intent, light=True,
            soft=self._stretch.links, ledger=self._head.step,
        )  # fmt: skip
        self._pending = _Pending(planned, recorded=recorded)
        return [Run(planned.plan, planned.divisions)]

    def _computed_again(self, recorded: Manifest, result: Adopted) -> list[Instruction]:
        """Compare a step with its manifest, give sinks what they still lack of it, and go on."""
        assert self._replay is not None
        try:
            check_same(recorded, result)
        except ReplayDiffers as error:
            return [Stop("failed", error)]
        self._pending = None
        self._stretch.note_files(self._head, result.runs)
        self._replay.pass_()
        step, unreleased = recorded.step, self._head.unreleased
        if step > self._furthest:
            self._furthest, self._lost = step, 0
        if step in unreleased and recorded.unstaged:
            self._results.keep_again(step, result)
        own = {step: unreleased[step]} if step in unreleased else {}
        given = [Release(at, sinks, result, again=True) for at, sinks in self._outbox.give_all(own)]
        return [*given, *self._go_on()]

    def _hand_out(self, manifest: Manifest, adopted: Adopted) -> list[Instruction]:
        """Give weak sinks the results of an adopted step.

        Return no instruction if they have none.
        """
        streams = {sink: self.shape.sinks[sink] for sink in self.shape.weak}
        sinks = [sink for sink, name in streams.items() if adopted.stream_digests.get(name)]
        if not sinks:
            return []
        awaited = [sink for sink in sinks if streams[sink] in adopted.unstaged]
        # If a sink lags already, the step does not wait for it. Its outputs are staged at once.
        patience = 0 if self._outbox.lagging(awaited) else self.settings.straggler_us
        self._outbox.give(sinks, manifest.step)
        return [
            DeliverBeforeCommit(manifest.step, manifest.origin, adopted, sinks, awaited, patience)
        ]

    def _handed_out(self, late: list[str]) -> list[Instruction]:
        pending = self._pending
        assert pending is not None and pending.adopted is not None
        if not late:
            return self._stage(pending)
        streams = sorted({self.shape.sinks[sink] for sink in late})
        return [WriteOutputs(pending.planned.plan, pending.adopted, streams)]

    def _written(self, event: OutputsWritten | OutputsStaged) -> list[Instruction]:
        if isinstance(event, OutputsStaged):
            return self._staged(event)
        return self._checkpointed(event.file)

    def _checkpointed(self, file: FileRef) -> list[Instruction]:
        """Name the file with what a weak sink has not acknowledged, and go on."""
        pending = self._pending
        assert pending is not None and pending.manifest is not None
        outputs = [*pending.manifest.outputs, file]
        pending.manifest = msgspec.structs.replace(pending.manifest, outputs=outputs)
        return self._stage(pending)

    def _stage(self, pending: _Pending) -> list[Instruction]:
        """Commit a step.

        Before a checkpoint, stage results that no later replay would make again.
        """
        assert pending.manifest is not None
        if not pending.manifest.light:
            left = self._results.left(self._outbox.undelivered(self._head.unreleased))
            if left:
                return [StageOutputs(pending.planned.plan, left)]
        return [self._commit(pending)]

    def _staged(self, event: OutputsStaged) -> list[Instruction]:
        pending = self._pending
        assert pending is not None and pending.manifest is not None
        self._results.staged()
        pending.manifest = msgspec.structs.replace(pending.manifest, staged=event.files)
        return [self._commit(pending)]

    def _commit(self, pending: _Pending) -> Commit:
        assert pending.manifest is not None
        head = self._head
        return Commit(head, self._outbox.noted(head, pending.manifest), pending.adopted)

    # -- commands -----------------------------------------------------------------------------

    def _asked(
        self, event: StopAsked | Commanded | LayoutCommand | ChangeAsked
    ) -> list[Instruction]:
        if isinstance(event, StopAsked):
            self._stopping |= event.at_once
            self._drain = not event.catch_up
            if event.catch_up:
                self._available = self._available or AvailableNow()
            elif event.drain:
                self._available = None
            return []
        if isinstance(event, Commanded):
            return self._commanded(event)
        if isinstance(event, LayoutCommand):
            return self._defer(event) or self._steered(event)
        self._changing = True
        return self._end(CHANGED)

    def _defer(self, event: LayoutCommand | Commanded) -> list[Instruction]:
        """Defer a command until the next checkpoint, if some state is not in storage yet.

        This holds while paused, too: a pause that was agreed on for a step may start with a note.
        """
        if not self._head.is_behind:
            return []
        self._deferred = event
        if isinstance(event, LayoutCommand):
            self._tell_time(event.now_us)
        return self._begin_checkpoint()

    def _begin_checkpoint(self) -> list[Instruction]:
        """Start a step without input that writes all state to storage."""
        return self._begin_without_input(Offered({}, self._now_us), checkpoint=True)

    def _begin_without_input(
        self, event: Offered, *, checkpoint: bool = False
    ) -> list[Instruction]:
        """Start a step that takes no input."""
        # No source was asked, so no partition is considered idle.
        heard = Heard(event.now_us, event.now_us, self._paused, named=self._named)
        facts = known(self._head, self.shape, {}, heard)
        return self._begin(self._intent(event, {}, facts), checkpoint=checkpoint)

    def _commanded(self, event: Commanded) -> list[Instruction]:
        """Commit the answer to a command before anything follows from it."""
        answer = event.answer
        if answer.applied and event.kind == "hand_over":
            return self._hand_over(event)
        if answer.applied and event.kind in ("drain", "catch_up"):
            self._asked(StopAsked(drain=event.kind == "drain", catch_up=event.kind == "catch_up"))
        if (
            event.kind == "pause"
            and answer.applied
            and self._head.is_behind
            and not self._head.paused
        ):
            return self._defer(event)
        # The agreed step may have been the very checkpoint for which this command was deferred.
        halt = event.halt
        at_once = answer.applied and (
            halt is None or halt.kind == "none" or halt.step <= self._head.step
        )
        if at_once and event.kind == "stop":
            self._stopping = True
        paused = {"pause": True, "resume": False}.get(event.kind or "") if at_once else None
        return [self._note([answer], paused=paused, told=event)]

    def _hand_over(self, event: Commanded) -> list[Instruction]:
        """Write all state to storage and deliver everything.

        Then answer with the manifest that the claim follows.
        """
        self._heir = event
        if self._head.is_behind:
            return self._begin_checkpoint()
        if self._outbox.undelivered(self._head.unreleased):
            self._awaiting = "all"
            return [AwaitSinks()]
        answer = msgspec.structs.replace(event.answer, step=self._head.step + 1)
        return [msgspec.structs.replace(self._note([answer]), hands_over=True)]

    def _awaited(self, event: Awaited) -> list[Instruction]:
        """End if the pipeline was claimed.

        Otherwise go on in the same epoch, since nothing was committed between.
        """
        heir, self._heir = self._heir, None
        if heir is None or not event.claimed:
            return self._go_on()
        return [Stop(f"{HANDED_OVER} to {heir.to}, step {self._head.step}")]

    def _steered(self, event: LayoutCommand) -> list[Instruction]:
        """Commit a change of the layout state, with the answer if a command asked for it."""
        head = self._head
        if event.asked is None:
            course = self._steering.next_turn(head, event.now_us)
            return [self._note(course=course)]
        decided = self._steering.decide(head, event.asked, event.now_us)
        return [self._note([decided.answer], course=decided.course)]

    def _end(self, why: str) -> list[Instruction]:
        """Stop, once everything committed is delivered and that is noted durably."""
        head = self._head
        if head.is_behind and (why == CHANGED or not (head.paused or head.stops_here)):
            return self._begin_checkpoint()
        if self._outbox.undelivered(head.unreleased):
            self._awaiting = "all"
            return [AwaitSinks()]
        if not head.unreleased and why != CAUGHT_UP:
            return [Stop(why)]
        self._ending = why
        return [self._note(caught_up=why == CAUGHT_UP)]

    def _note(
        self, answers: Sequence[Answer] = (), *, paused: bool | None = None,
        catch_up: CatchUp | None = None, course: LayoutState | None = None,
        told: Commanded | None = None, caught_up: bool = False,
    ) -> Commit:  # fmt: skip
        """Commit a manifest without a computed step, for what it says."""
        head = self._head
        note = note_manifest(
            head, self.shape, answers=answers, paused=paused, catch_up=catch_up, course=course,
            drained_hosts=None if told is None else told.drained_hosts,
            halt=None if told is None else told.halt, caught_up=caught_up,
            nonce=self._nonce(), cleaned=self._clean_up.cleaned,
        )  # fmt: skip
        return Commit(head, self._outbox.noted(head, note))


def _code_changed(intent: Intent, shape: PipelineFacts) -> CodeChanged:
    """Return the error for a step that other code has started to show."""
    weak = ", ".join(repr(name) for name in shape.weak) or "weak sinks that are not drawn any more"
    return CodeChanged(
        f"the step that comes next was begun by other code, which may have shown its results to {weak} "
        f"under id {intent.step}, and ended before it was committed; this code may come to other rows",
        place=f"pipeline {shape.name!r}, step {intent.order} of those with records, id {intent.step}",
        remedy="start once with the code as it was, until a step is committed, and then with this one; or "
        "let this code compute the step under a new id (Settings.recompute_shown, headrace run "
        "--recompute-shown): what was shown under the old id then stays shown, and no step has it",
    )
