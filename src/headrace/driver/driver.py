"""The driver: carries out the coordinator's instructions in one thread, and reports back as events.

All effects are here or in the objects that are passed in: the store, the runner, the sources and
sinks, the clock, the nonces.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection
from typing import Literal

import msgspec

from headrace.coordinator.changes.changes import ChangePlan, ControlState, check_behind, without
from headrace.coordinator.changes.replayable import check_replayable
from headrace.coordinator.inputs import check_injectors_are_there
from headrace.coordinator.load.meter import Meter
from headrace.coordinator.machine import CHANGED, Coordinator
from headrace.coordinator.manifests import with_timing
from headrace.coordinator.messages import (
    AvoidHosts,
    AwaitClaim,
    Awaited,
    AwaitSinks,
    BackfillOffered,
    Clean,
    Commanded,
    Commit,
    DeliverBeforeCommit,
    DeliveredBeforeCommit,
    Event,
    Instruction,
    IntentLoaded,
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
from headrace.coordinator.migrations.steering import Bounds, MigrationController
from headrace.coordinator.pipeline_compatibility import dropped
from headrace.coordinator.pipeline_facts import pipeline_facts_of
from headrace.coordinator.reopening import check_names, input_goes_on
from headrace.coordinator.seeding import begin_without_rows
from headrace.coordinator.settings import Settings
from headrace.driver.attempts import WARM_EVERY_S, StepAttempts
from headrace.driver.change import Change
from headrace.driver.change_trial import ChangeTrial
from headrace.driver.cleaning import Cleaning
from headrace.driver.heartbeat import LoopProgress
from headrace.driver.leadership_proof import Proof
from headrace.driver.outputs import stage, write_outputs
from headrace.driver.phase_timer import Lap, Stopwatch
from headrace.driver.policy_loop import Controller
from headrace.driver.requests import Current, Requests, plan_of
from headrace.driver.sink_delivery import Deliveries, UnderWay
from headrace.driver.source_polling import SourcePoller
from headrace.driver.upgrade_trial import check_upgrades
from headrace.errors import (
    Cancelled,
    Damaged,
    Fenced,
    HeadraceError,
    InvariantBroken,
    NotFound,
    PipelineError,
    SourceChanged,
    StorageError,
    ensure,
)
from headrace.errors.user_code import blamed
from headrace.ledger.commands import CommandLog
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import Heartbeats
from headrace.ledger.ledger import Ledger, OpenedLedger
from headrace.ledger.manifest import Manifest
from headrace.ledger.pins import Pins
from headrace.migration.sharding import Dynamic, Fixed, Sharding, first_layout
from headrace.pipeline import Pipeline
from headrace.pipeline.sink import Sink
from headrace.pipeline.source import Offer
from headrace.policies import How, Policy
from headrace.protocol.plan import StepPlan
from headrace.protocol.step_summary import Listener, StepSummary
from headrace.runners.base import Runner
from headrace.runners.ending import cancelled
from headrace.runners.fingerprint import fingerprint
from headrace.storage.base import Store
from headrace.storage.garbage import with_retries
from headrace.storage.probe import check_creates
from headrace.storage.timed import TimedReads

log = logging.getLogger("headrace")

#: The phase in which the time of an instruction is counted.
_PHASES: dict[type[Instruction], str] = {
    LoadIntent: "poll",
    PrepareReplay: "poll",
    Poll: "poll",
    DeliverBeforeCommit: "hand out",
    WriteOutputs: "hand out",
    StageOutputs: "hand out",
    PollBackfill: "poll",
    Release: "release",
    PrepareWorkers: "prepare",
    AvoidHosts: "prepare",
    AwaitSinks: "outbox",
    AwaitClaim: "hand over",
    Clean: "clean",
    Sweep: "sweep",
    LookForPins: "clean",
}


#: Microseconds between two looks for the next driver's claim, during a handover.
_CLAIM_LOOK_US = 2_000

#: Microseconds between two looks for a newer driver, while this one waits for input.
_LEADS_LOOK_US = 1_000_000

#: Default number of bins. More bins cost next to nothing.
DEFAULT_BINS = 256


#: What a driver starts from, if not from a given head: the newest head, or an empty storage.
Fresh = Literal["newest", "new"]


class Clock:
    """The time of day. Tests pass a clock that they move."""

    def now_us(self) -> int:
        """Return microseconds since 1970 UTC."""
        return time.time_ns() // 1_000

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        """Wait until a time, or until another thread sets ``woken``."""
        woken.wait(max(0.0, (until_us - self.now_us()) / 1e6))


def _cancelled_at(error: Cancelled) -> str:
    """Return the reason for the end of a run that was cancelled."""
    return f"cancelled at {error.place}" if error.place else "cancelled"


def _head_of(on: Head | Fresh) -> Head | None:
    return on if isinstance(on, Head) else None


def _without_end(offer: Offer | None) -> Offer | None:
    """Return an offer as if more could follow it."""
    return None if offer is None else msgspec.structs.replace(offer, final=False)


def _closed(sink: Sink) -> None:
    """Close a sink."""
    with blamed(f"sink {type(sink).__name__}, as it is closed", "see what it writes to"):
        sink.close()


def _nothing() -> None:
    """Do nothing in place of a warm-up."""


class Driver:
    """One run of a pipeline, from claiming its epoch to stopping.

    Args:
        pipeline: what to run.
        store: its storage.
        runner: where tasks run.
        workers: number of workers; None for as many as the storage says, or as the runner has
            places for a new pipeline. Changing it at a restart rescales offline, and moves as
            little state as possible.
        bins: number of bins; None for as many as the storage says, or :data:`DEFAULT_BINS`.
        layout: the way of sharding; None for the one that the storage says, or ``Fixed``.
        settings: pace and upkeep.
        clock, nonce: sources of time and randomness.
        drain: whether to stop when all input has ended.
        policy, how, policy_dry_run: the policy, if there is one; see :mod:`headrace.policies`.
        check_predecessor: see :mod:`headrace.ledger.ledger`.
        stopwatch: measures where time goes; by default by the monotonic clock.
        fingerprint_of: returns the fingerprint of a pipeline's code.
        reopen: injectors to read on if their input had ended.
        remove_injectors: injectors that are gone on purpose, although computations that read them
            remain.
        reload: loads the code again for ``headrace change``, if it has a given digest.

    Attributes:
        loop_progress: progress of the loop, for the heartbeat and the watchdog.
        committed: notified after each commit, for threads that wait for one.
        declares_ends: whether the end of an injector's input counts as its end. May be set from any
            thread.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: Store,
        runner: Runner,
        *,
        workers: int | None = None,
        bins: int | None = None,
        layout: Sharding | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        nonce: Callable[[], str] | None = None,
        drain: bool = False,
        check_predecessor: bool = True,
        stopwatch: Stopwatch | None = None,
        policy: Policy | None = None,
        how: How | None = None,
        policy_dry_run: bool = False,
        fingerprint_of: Callable[[Pipeline], str] = fingerprint,
        reopen: Collection[str] = (),
        remove_injectors: Collection[str] = (),
        reload: Callable[[str], Pipeline] | None = None,
    ) -> None:
        pipeline.check_complete()
        check_names(reopen, pipeline.injectors)
        check_replayable(pipeline, settings or Settings())
        self.full_pipeline = pipeline  # the whole graph, including what is removed by command
        self.pipeline = pipeline
        self.store = store
        self.runner = runner
        self.clock = clock or Clock()
        self._reads = TimedReads(store)
        self.ledger = Ledger(self._reads, check_predecessor=check_predecessor)
        self._pins = Pins(store)
        self.listeners: list[Listener] = []
        self.loop_progress = LoopProgress()
        self.woken = threading.Event()
        self.committed = threading.Condition()
        self.cancel_requested_s: float | None = None  # when cancel() was called first
        self._given_up = False
        self._look_us = 0
        self._trial: ChangeTrial | None = None  # of the newest change, until it has proved itself
        self._settings = settings or Settings()
        self._nonce = nonce or (lambda: uuid.uuid4().hex)
        self._drain = drain
        self.declares_ends = True
        if workers is not None and not 1 <= workers <= self._settings.most_workers:
            raise PipelineError(
                f"{workers:,} is not a number of workers",
                remedy=f"use 1 to {self._settings.most_workers:,}, or allow more by "
                "Settings(most_workers=…)",
            )
        self._reopen = frozenset(reopen)  # emptied by the claim
        self._removed_injectors = frozenset(remove_injectors)
        if bins and isinstance(layout, Dynamic):
            raise PipelineError(
                f"bins={bins} and a dynamic layout contradict each other: the layout says how many bins "
                "there are",
                remedy="leave out bins=",
            )
        self._sharding = layout
        self._shared = bins or DEFAULT_BINS, workers or runner.default_workers()
        self._requested_sizes = (workers or 0, bins or 0)
        self._fingerprint_of = fingerprint_of
        self._fingerprint: tuple[Pipeline, str] | None = None
        # the whole graph, and the computations that run
        self._started: tuple[Pipeline, frozenset[str]] | None = None
        # sinks that the new topology does not have; closed at its claim
        self._dropped_sinks: list[Sink] = []
        self._instructions: deque[Instruction] = deque()
        self._stop_requests: deque[StopRequested] = deque()
        self._handled_stops: list[StopRequested] = []  # the requests that a coordinator has handled
        self._stopwatch = stopwatch or Stopwatch()
        self._before_switch: Head | None = None  # what a new coordinator does not know yet
        self._proof = Proof(self.ledger, lambda: self.coordinator.head)
        self._deliveries = self._new_deliveries(pipeline)
        self._source_poller = SourcePoller(store)
        self._attempts = StepAttempts(runner, self.ledger, self._source_poller, self._stopwatch)
        self._cleaning = Cleaning(self.ledger, concurrent=runner.concurrent)
        self.requests = Requests(
            CommandLog(self._reads),
            self._source_poller,
            runner,
            self._settings,
            Heartbeats(store),
            self._check_upgrades,
            reload,
        )
        self._steering = MigrationController(
            Meter(self._settings.measure_us, self._settings.ahead_bytes),
            Bounds.of(self._settings),
        )
        self.controller = Controller(
            policy,
            how or How(),
            dry_run=policy_dry_run,
            store=store,
            places=runner.default_workers,
            nonce=self._nonce,
        )
        self._use_topology(pipeline, ControlState(frozenset()))

    # -- the loop -----------------------------------------------------------------------------

    def run(self, on: Head | Fresh = "newest") -> str:
        """Run until the coordinator stops. Return why it stopped.

        Args:
            on: see :meth:`open`.

        Raises:
            HeadraceError: what went wrong. Every committed step is intact.
        """
        self.open(on)
        while True:
            stop = self.turn()
            if stop is not None:
                return stop.why

    def open(self, on: Head | Fresh = "newest") -> None:
        """Read the storage, and get ready for the first :meth:`turn`, which claims the epoch.

        Args:
            on: the only head that the claim may follow; ``"new"`` for a storage that holds nothing.
                By default the newest head, whichever driver committed it.

        Raises:
            HeadraceError: if the pipeline cannot run on this storage.
        """
        head = self._begin(on)
        self._source_poller.open()
        if head is not None:
            self._check_ends(head)

    def _check_ends(self, head: Head) -> None:
        """Check that input that had ended has no more, unless it is to be read.

        Raises:
            InputGoesOn: if it has more.
        """
        pipeline_facts = self.coordinator.pipeline_facts
        starts = pipeline_facts.starts(head)
        ended = [name for name in starts if name in head.ended and name not in self._reopen]
        more = self._source_poller.more({name: starts[name] for name in ended})
        if more:
            raise input_goes_on(head, pipeline_facts.readers, more)

    def prepare(
        self, on: Head | Fresh = "newest", run_warm_up: Callable[[], None] = _nothing
    ) -> None:
        """Do what takes time before :meth:`open`, while another driver leads. Claims nothing.

        Args:
            on: the head to prepare for; see :meth:`open`.
            run_warm_up: a warm-up that the runner calls once in each of its processes.

        Raises:
            HeadraceError: if the pipeline cannot run on what is stored.
        """
        self._begin(on)
        self._instructions.clear()
        self.runner.warm_up(run_warm_up)

    def keep_ready(self) -> None:
        """Keep warm what :meth:`prepare` has got ready."""
        self._attempts.keep_warm()

    def _begin(self, on: Head | Fresh) -> Head | None:
        """Read the storage, build the topology that it leaves, and get the runner ready for it."""
        self.ledger.check_owner(self.full_pipeline.name)
        self._before_switch = None
        if self._started is None:
            check_creates(self.store, self._nonce())
        opened = self._open(on)
        if opened.head is not None:
            pipeline_facts = self.coordinator.pipeline_facts
            check_injectors_are_there(
                opened.head,
                pipeline_facts.declared_schema,
                forgotten=pipeline_facts.forgotten,
                given_up=self._removed_injectors,
            )
        self._instructions = deque(self._handle(opened))
        if opened.head is not None:
            forgotten = self.coordinator.pipeline_facts.forgotten
            self._check_upgrades(self.pipeline, opened.head, forgotten)
        self.runner.avoid(opened.drained_hosts or ())
        workers = self.coordinator.begins_with.workers
        if self._started is None:
            self.runner.start(self.pipeline, self.store, workers)
        elif self._started != self._topology:
            self.runner.prepare(self.pipeline)()
        self._started = self._topology
        return opened.head

    def _check_upgrades(self, pipeline: Pipeline, head: Head, forgotten: Collection[str]) -> None:
        """Try the upgrade functions of a topology on stored rows. Nothing is claimed yet."""
        most = self._settings.upgrade_rows
        check_upgrades(pipeline, head, self.store, forgotten=forgotten, most=most)

    def step_back(self) -> None:
        """Give up leadership: close the sources, and drop a change that was not committed.

        Called after another driver has taken over. The runner stays ready. Sinks stay open, because
        this driver delivers to them again if it leads again.
        """
        self.loop_progress.lost()
        before = self.requests.overtaken()
        if before is not None:
            self.full_pipeline, self.pipeline = before.full_pipeline, before.pipeline
            self._dropped_sinks = []
        self._deliveries.close()
        self._source_poller.rest()
        self.runner.rest()
        self._deliveries = self._new_deliveries(self.full_pipeline)
        self._instructions.clear()

    @property
    def upcoming(self) -> Instruction:
        """The instruction that the next :meth:`turn` carries out, unless a stop comes first."""
        ensure(bool(self._instructions), "the coordinator asked for nothing")
        return self._instructions[0]

    @property
    def waits(self) -> bool:
        """Whether there is nothing to make a step of. Safe from any thread."""
        return self.loop_progress.at[0] in (Poll, Wait)

    def turn(self) -> Stop | None:
        """Carry out one instruction. Return it if it says that the run is over.

        Raises:
            HeadraceError: what went wrong. Every committed step is intact. An error that should not
                be possible has the coordinator's story as a note.
        """
        try:
            return self._turn()
        except Exception as error:
            if isinstance(error, InvariantBroken) or not isinstance(error, HeadraceError):
                error.add_note(str(self.coordinator.story))
            raise

    def _turn(self) -> Stop | None:
        while self._stop_requests:
            self._handled_stops.append(self._stop_requests.popleft())
            self._instructions.extend(self._handle(self._handled_stops[-1]))
        if self._given_up:
            raise Fenced("this driver was given up, and does nothing more")
        if self.cancel_requested_s is not None:
            return Stop(_cancelled_at(cancelled(None)))
        instruction = self.upcoming
        self.loop_progress.begins(type(instruction))
        self._instructions.popleft()
        if isinstance(instruction, Stop):
            if instruction.error is not None:
                self._check_leads(instruction.error)
                if not self._take_back(instruction.error):
                    raise instruction.error
                self._instructions = deque(self._handle(self._change_topology()))
                return None
            if instruction.why != CHANGED:
                return instruction
            self._instructions = deque(self._handle(self._change_topology()))
            return None
        try:
            event = self._do(instruction)
        except Cancelled as error:
            return Stop(_cancelled_at(error))
        except SourceChanged as error:
            self._check_leads(error)
            raise
        self._report_released()
        if event is not None:
            self._instructions.extend(self._handle(event))
        if isinstance(event, ManifestCommitted):
            with self.committed:
                self.committed.notify_all()
        return None

    def _take_back(self, error: HeadraceError) -> bool:
        """Get the topology before the newest change ready, if a failure takes that change back."""
        trial, self._trial = self._trial, None
        if trial is None or not trial.takes_back(error, self._head):
            return False
        current = Current(self._head, self.pipeline, self.full_pipeline, self.clock.now_us())
        try:
            self.requests.take_back(trial, current)
        except HeadraceError as problem:
            error.add_note(f"the change could not be taken back: {problem.what}")
            return False
        trial.change.was_taken_back(error)
        log.error(
            "the change is taken back, and the pipeline goes on as before: what it brought has failed: %s",
            error,
        )
        return True

    def _check_leads(self, error: HeadraceError) -> None:
        """Check whether something is missing because another driver has gone on and cleaned up.

        Raises:
            Fenced: if so.
        """
        if isinstance(error, Damaged | NotFound | SourceChanged):
            self.ledger.check_newest(self._head)

    def _handle(self, event: Event) -> list[Instruction]:
        with self._stopwatch.phase("plan"):
            return self.coordinator.handle(event)

    def _report_released(self) -> None:
        """Report acknowledged deliveries to the coordinator. Raise what a sink raised."""
        self._deliveries.delivered.clear()
        for released in self._deliveries.released():
            self.coordinator.handle(released)

    def _do(self, instruction: Instruction) -> Event | None:
        match instruction:
            case Commit():
                return self._commit(instruction)
            case Wait():
                self._wait(instruction.until_us)
                return None
            case Run():
                meter = self._steering.meter
                meter.store.note(self._reads.take())
                meter.starting = self.runner.starting()
                return self._attempts.run(instruction, self._head)
        with self._stopwatch.phase(_PHASES[type(instruction)]):
            return self._carry_out(instruction)

    def _carry_out(  # noqa: PLR0912 (a case for each instruction)
        self, instruction: Instruction
    ) -> Event | None:
        match instruction:
            case Poll():
                return self._between_steps() or self._poll(instruction)
            case PollBackfill():
                return self._between_steps() or self._poll_again(instruction)
            case LoadIntent():
                return self._load_intent(instruction)
            case PrepareReplay():
                return self._prepare_replay(instruction)
            case DeliverBeforeCommit():
                return self._deliver_before_commit(instruction)
            case WriteOutputs():
                return self._write(instruction)
            case StageOutputs():
                return self._stage(instruction)
            case Release():
                # If tasks run elsewhere, the next attempt runs meanwhile.
                self._deliveries.give(instruction.sinks, instruction.delivery)
            case PrepareWorkers():
                self._attempts.make_ready(instruction.workers)
            case AvoidHosts():
                self.runner.avoid(instruction.hosts)
            case AwaitSinks():
                return self._await_sinks(instruction)
            case AwaitClaim():
                return self._await_claim(instruction.within_us)
            case Clean():
                self._cleaning.clean(instruction)
                self.loop_progress.not_deleted = self._cleaning.not_deleted
            case Sweep():
                self._cleaning.sweep(self._head)
                self.loop_progress.not_deleted = self._cleaning.not_deleted
            case LookForPins():
                return self._look_for_pins()
        return None

    @property
    def head(self) -> Head | None:
        """The pipeline as of its newest commit, also while the topology changes. Safe from any thread."""
        return self.coordinator.head or self._before_switch

    @property
    def _head(self) -> Head:
        head = self.coordinator.head
        assert head is not None
        return head

    # -- requests from other threads ----------------------------------------------------------

    def request_stop(self, *, drain: bool = False, catch_up: bool = False) -> None:
        """Ask for a stop, by default after the running step. Safe from any thread.

        Args:
            drain: stop when all input has ended.
            catch_up: stop when all that the sources have now was read.
        """
        self._stop_requests.append(StopRequested(drain, catch_up))
        self.woken.set()
        self._deliveries.delivered.set()

    def cancel(self) -> None:
        """Ask for an end now. Safe from any thread.

        The running step is discarded, and no further delivery starts. The watchdog ends an attempt
        that is running; see :mod:`headrace.driver.watchdog`.
        """
        if self.cancel_requested_s is None:
            self.cancel_requested_s = self.loop_progress.clock()
        self._deliveries.abandon()
        self.woken.set()
        self._deliveries.delivered.set()

    def give_up(self) -> None:
        """Give up the driver's thread, which is stuck: nothing that it still does has an effect.

        Safe from any thread.
        """
        self._given_up = self.loop_progress.given_up = True
        self._deliveries.abandon()
        self.runner.abandon()

    def look_for_stop_now(self) -> None:
        """Cancel if another process has sent a command to stop at once. Safe from any thread."""
        head = self.coordinator.head
        if head is None or self.loop_progress.epoch is None:
            return
        with contextlib.suppress(StorageError):  # the next look will do
            if self.requests.is_to_stop_now(head):
                self.cancel()

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return self._settings

    @property
    def running_plan(self) -> StepPlan | None:
        """The plan of the newest attempt; None before the first."""
        return self._attempts.plan

    @property
    def polled_source(self) -> str:
        """The injector whose source was asked last."""
        return self._source_poller.current_source

    @property
    def deliveries_under_way(self) -> list[UnderWay]:
        """The deliveries that sinks are working on."""
        return self._deliveries.under_way

    @property
    def stop_requested(self) -> bool:
        """Whether an immediate stop was asked for that no coordinator has handled yet."""
        return self.cancel_requested_s is not None or any(
            request.at_once for request in self._stop_requests
        )

    def request_change(self, change: Change) -> None:
        """Ask for a topology change between two steps.

        Safe from any thread; see :meth:`Change.wait`.
        """
        self.requests.ask(change)
        self.woken.set()

    def look_for_commands(self) -> None:
        """Look for commands before the next step, however recent the last look was.

        Safe from any thread.
        """
        self.requests.look_at_once()
        self.woken.set()

    def plan_change(self, change: Change) -> ChangePlan:
        """Return the plan of a change, as of the newest step. Safe from any thread.

        Raises:
            HeadraceError: if the change would be refused.
        """
        return plan_of(change, self.head, self.pipeline)

    def close(self) -> None:
        """Close runner, sources and sinks. Refuse the changes that are still waiting."""
        self.requests.close()
        self._deliveries.close()
        self._attempts.close()
        with contextlib.ExitStack() as stack:  # all are closed even if closing one fails
            for sink in [
                *self._dropped_sinks,
                *(node.sink for node in self.full_pipeline.sinks.values()),
            ]:
                stack.callback(_closed, sink)
            stack.callback(self._cleaning.close)
            stack.callback(self._source_poller.close)
            stack.callback(self.runner.close)

    # -- instructions -------------------------------------------------------------------------

    def _commit(self, instruction: Commit) -> ManifestCommitted:
        lap, adopted = self._stopwatch.lap(), instruction.adopted
        if instruction.hands_over:
            self._source_poller.rest()
        started = time.perf_counter()
        with self._stopwatch.phase("commit"):
            packed = None if adopted is None else adopted.packed
            head = self.ledger.commit(instruction.head, self._timed(instruction, lap), packed)
        now = time.perf_counter()
        if adopted is None:
            if instruction.manifest.claim:
                self._say_what_is_dropped(instruction.head)
                self._say_what_begins(instruction.head, head)
                self._reopen = frozenset()
                self._begin_trial(head)
                self.requests.started(head)
                self.loop_progress.claimed(head.epoch)
                self._close_sinks()
            return ManifestCommitted(head, instruction.manifest)
        newest = self._attempts.newest
        phases = {**adopted.phases, **lap.of_step(), "commit": now - started}
        summary = StepSummary(
            head.step,
            sum(adopted.read_rows.values()),
            now - newest.started,
            phases,
            newest.plan.exchange,
            adopted.soft_state,
            head,
            sum(adopted.skipped.values()),
            instruction.manifest.counts,
        )
        if self._trial is not None:
            had = [name for name, of in instruction.manifest.counts.items() if of.records]
            self._trial.committed(had)
            self._trial = None if self._trial.is_over else self._trial
        with self._stopwatch.phase("notify"):
            self._source_poller.committed(instruction.manifest)
            for listener in self.listeners:
                listener(summary)
        after_us = round((now - self._attempts.ended) * 1e6)
        return ManifestCommitted(head, instruction.manifest, after_us)

    def _begin_trial(self, head: Head) -> None:
        """Put a change that takes effect with this claim on trial."""
        ready = self.requests.ready
        if ready is None:
            return
        self._trial = None
        if ready.change is not None and not ready.takes_back:
            before = ready.before.pipeline, ready.before.full_pipeline
            self._trial = ChangeTrial(ready.change, before, head, self._settings.trial_steps)

    def _say_what_is_dropped(self, before: Head | None) -> None:
        if before is not None:
            for line in dropped(before.stored_schema, self.full_pipeline.declared_schema()):
                log.warning("%s", line)

    def _say_what_begins(self, before: Head | None, head: Head) -> None:
        """Say which operators begin with the rows of their inputs, and which without."""
        if before is None:
            return
        new = head.seeding
        if new is not None and new.names != before.seeded:
            names, tables = ", ".join(new.names), ", ".join(new.tables)
            log.info("begins with the rows of %s: %s", tables, names)
        for one in begin_without_rows(before, self.coordinator.pipeline_facts):
            stream = one.without[0]
            log.warning(
                "%s begins now, without the rows of %s: nothing keeps them", one.name, stream
            )

    def _timed(self, instruction: Commit, lap: Lap) -> Manifest:
        """Return the manifest with the time and the places of its step.

        They are added here so that the coordinator cannot depend on them.
        """
        adopted = instruction.adopted
        if adopted is None:
            return instruction.manifest
        exchange = self._attempts.newest.plan.exchange
        timing = lap.timing(
            adopted, exchange, side_by_side=self.runner.concurrent, lost=self._attempts.lost
        )
        places = self.runner.places
        moved = None if places == self._head.places else places
        return with_timing(instruction.manifest, timing, moved)

    def _look_for_pins(self) -> PinsFound:
        try:
            return PinsFound(with_retries(lambda: self._pins.lowest(self.clock.now_us())))
        except StorageError as error:
            # Any step may be pinned, so nothing is deleted until the next look.
            log.warning("could not look for readers, so nothing is cleaned up: %s", error.what)
            return PinsFound(self._head.boundary)

    def _poll(self, instruction: Poll) -> Offered:
        offers = self._source_poller.offers(instruction)
        if not self.declares_ends:
            offers = {name: _without_end(offer) for name, offer in offers.items()}
        return Offered(offers, self.clock.now_us())

    def _poll_again(self, instruction: PollBackfill) -> BackfillOffered:
        return BackfillOffered(self._source_poller.offers_again(instruction), self.clock.now_us())

    def _load_intent(self, instruction: LoadIntent) -> IntentLoaded:
        intent = self.ledger.intent(instruction.order)
        if intent is None:
            return IntentLoaded(None)
        ready = self._source_poller.recovers(intent, instruction.positions)
        same = not intent.code or not intent.is_of_other_code(self._code)
        return IntentLoaded(intent, ready, self.clock.now_us(), same)

    def _prepare_replay(self, instruction: PrepareReplay) -> ReplayPrepared:
        ready = self._source_poller.recovers(instruction.intent, instruction.positions)
        return ReplayPrepared(ready, self.clock.now_us())

    def _wait(self, until_us: int) -> None:
        self._stopwatch.forget("poll", "plan")  # they found nothing to do, so they count as waiting
        self._attempts.keep_warm()
        self._look_for_leader()
        # A clock that goes back must not make the wait longer than the longest one, ``poll_us``.
        until_us = min(until_us, self.clock.now_us() + self._settings.poll_us)
        self.clock.wait_until(until_us, self.woken)
        self.woken.clear()

    def _look_for_leader(self) -> None:
        """Look now and then whether another driver has gone on, while this one waits for input.

        No commit would fail here. If the other driver reads the input that this one waits for, and
        cleans it away, nothing else would ever show it.

        Raises:
            Fenced: if another driver has gone on.
        """
        now_us = self.clock.now_us()
        # A time far in the future was set while the clock was wrong.
        if not 0 < self._look_us - now_us <= _LEADS_LOOK_US:
            self._look_us = now_us + _LEADS_LOOK_US
            with contextlib.suppress(StorageError):  # the next look will do
                self.ledger.check_newest(self._head)

    def _await_claim(self, within_us: int) -> Awaited:
        """Wait for the next driver's claim.

        If none comes, or a stop is asked for, open the sources.
        """
        until = self.clock.now_us() + within_us
        while not self._is_followed():
            now_us = self.clock.now_us()
            until = min(until, now_us + within_us)  # in case the clock has gone back
            if now_us >= until or self._stop_requests or self.cancel_requested_s is not None:
                self._source_poller.open()
                return Awaited(False)
            self.clock.wait_until(min(until, now_us + _CLAIM_LOOK_US), self.woken)
        return Awaited(True)

    def _is_followed(self) -> bool:
        try:
            return self.ledger.is_followed(self._head)
        except StorageError:  # the next look will do
            return False

    @property
    def _code(self) -> str:
        """The fingerprint of the code that runs."""
        if self._fingerprint is None or self._fingerprint[0] is not self.pipeline:
            self._fingerprint = self.pipeline, self._fingerprint_of(self.pipeline)
        return self._fingerprint[1]

    # -- topology -----------------------------------------------------------------------------

    def _use_topology(
        self, pipeline: Pipeline, control_state: ControlState, plan: ChangePlan | None = None
    ) -> None:
        """Switch to a topology: to its sources, and to a new coordinator for it."""
        self.pipeline = pipeline
        self._streams = pipeline.streams()
        self._source_poller.use(pipeline)
        pipeline_facts = pipeline_facts_of(
            pipeline,
            self.full_pipeline,
            control_state,
            beginning=[] if plan is None else plan.beginning,
            seeded=None if plan is None else plan.seeded,
            starts=self._source_poller.starts(),
            layout=first_layout(
                self._sharding or Fixed(), *self._shared, pipeline.groups
            ).to_wire(),
            requested_sizes=self._requested_sizes,
            sharding=self._sharding,
            store=self.store.location,
            wide_exchange=self.runner.wide_exchange(),
            code=self._code if any(node.weak for node in pipeline.sinks.values()) else "",
            reopened=self._reopen,
        )
        self.coordinator = Coordinator(
            pipeline_facts, self._settings, self._nonce, drain=self._drain, steering=self._steering
        )
        for requested_sizes in self._handled_stops:
            self.coordinator.handle(requested_sizes)

    def _open(self, on: Head | Fresh) -> LedgerOpened:
        """Read the ledger and the commands from before this run. Apply what they remove."""
        there = OpenedLedger(None) if on == "new" else self.ledger.open_uncheckpointed(_head_of(on))
        head = there.head
        opening = self.requests.opening(head, self.full_pipeline, self.clock.now_us())
        control_state = opening.control_state
        if control_state.removed or control_state.forgotten or self._started is not None:
            self._use_topology(without(self.full_pipeline, control_state.removed), control_state)
        check_behind(self.pipeline, None if head is None else head.backfill)
        return LedgerOpened(
            head,
            self.clock.now_us(),
            opening.answers,
            control_state.paused,
            opening.layout_state,
            sorted(control_state.drained_hosts),
            there.checkpoint,
            there.uncheckpointed,
            control_state.scheduled_stop,
        )

    def _between_steps(self) -> Event | None:
        """Look for a change from a thread of this process, or for a command in the storage."""
        now_us = self.clock.now_us()
        if self.controller.turn(self._head, self._steering, now_us):
            self.requests.look_at_once()
        event = self.requests.next(Current(self._head, self.pipeline, self.full_pipeline, now_us))
        if isinstance(event, Commanded) and event.kind in ("drain", "catch_up"):
            # Noted for later coordinators, too.
            request = StopRequested(drain=event.kind == "drain", catch_up=event.kind == "catch_up")
            if event.answer.applied:
                self._handled_stops.append(request)
                self.declares_ends |= request.drain
        return event

    def _change_topology(self) -> LedgerOpened:
        """Switch to the topology that is ready.

        Return the event with which its coordinator starts.
        """
        ready, head = self.requests.ready, self._head
        assert ready is not None
        before, self._before_switch = self.full_pipeline, head
        ready.switch()
        if ready.full_pipeline is not None:
            self.full_pipeline = ready.full_pipeline
            self._deliveries.close()  # nothing is under way
            self._deliveries = self._new_deliveries(self.full_pipeline)
        change = None if ready.takes_back else ready.change
        plan = None if change is None else change.plan
        self._use_topology(ready.pipeline, ready.control_state, plan)
        self._started = self._topology
        self._source_poller.close_unused()
        kept = {id(node.sink) for node in self.full_pipeline.sinks.values()}
        sinks = [node.sink for node in before.sinks.values()]
        self._dropped_sinks = [sink for sink in sinks if id(sink) not in kept]
        return LedgerOpened(head, self.clock.now_us(), ready.answers(head.step + 1))

    @property
    def _topology(self) -> tuple[Pipeline, frozenset[str]]:
        """The topology for which the runner must be ready."""
        return self.full_pipeline, frozenset(self.pipeline.nodes)

    # -- sinks --------------------------------------------------------------------------------

    def _new_deliveries(self, pipeline: Pipeline) -> Deliveries:
        timeout_us = self._settings.sink_timeout_us
        return Deliveries(
            pipeline,
            self.store,
            self._stopwatch,
            self._proof,
            concurrent=self.runner.concurrent,
            timeout_s=timeout_us / 1e6 if timeout_us else None,
        )

    def _deliver_before_commit(self, instruction: DeliverBeforeCommit) -> DeliveredBeforeCommit:
        """Give a step to its weak sinks. Wait for those that must acknowledge before the commit."""
        until = self.clock.now_us() + instruction.patience_us
        self._deliveries.give(instruction.sinks, instruction.delivery)
        awaited = dict.fromkeys(instruction.await_, instruction.delivery.step)
        while True:
            self._report_released()
            late = self._deliveries.lagging(awaited)
            until = min(until, self.clock.now_us() + instruction.patience_us)
            over = self.cancel_requested_s is not None or self.clock.now_us() >= until
            if not late or over:
                return DeliveredBeforeCommit(late)
            self.clock.wait_until(until, self._deliveries.delivered)

    def _write(self, instruction: WriteOutputs) -> OutputsWritten:
        plan, output = instruction.plan, instruction.output
        return OutputsWritten(write_outputs(plan, output, self._streams, self.store))

    def _stage(self, instruction: StageOutputs) -> OutputsStaged:
        return OutputsStaged(
            {
                step: [
                    *output.named,
                    *stage(instruction.plan, step, output.rest, self._streams, self.store),
                ]
                for step, output in instruction.outputs.items()
            }
        )

    def _close_sinks(self) -> None:
        """Close the sinks that only the previous topology had.

        Sinks that a command removed stay open, because they may be restored.
        """
        sinks, self._dropped_sinks = self._dropped_sinks, []
        for sink in sinks:
            _closed(sink)

    def _await_sinks(self, instruction: AwaitSinks) -> Woken:
        while True:
            self._report_released()
            stops = self._stop_requests or self.cancel_requested_s is not None
            if stops or not self._deliveries.lagging(instruction.until):
                return Woken()
            left_s = self._deliveries.next_timeout_s()
            self._deliveries.delivered.wait(max(0.0, min(WARM_EVERY_S, left_s)))
            self._attempts.keep_warm()
