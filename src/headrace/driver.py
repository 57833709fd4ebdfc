"""The driver's shell: carries out what the coordinator asks for, in one thread, and tells it back.

Everything that touches the world is here or in what is passed in: the store, the runner, the
sources and sinks, the clock, the nonces.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from headrace.change import Change
from headrace.coordinator.changes import (
    ChangePlan,
    Standing,
    answer_to,
    at_opening,
    check_behind,
    decide,
    plan_change,
    without,
)
from headrace.coordinator.identity import check_identity, merged_identity, removed_of
from headrace.coordinator.machine import CHANGED, Coordinator
from headrace.coordinator.messages import (
    AwaitSinks,
    ChangeAsked,
    Checkpoint,
    Checkpointed,
    Clean,
    Commanded,
    Commit,
    Committed,
    Event,
    HandedOut,
    HandOut,
    Instruction,
    Offered,
    OfferedAgain,
    Opened,
    Poll,
    PollAgain,
    Recall,
    Recalled,
    Release,
    Run,
    Stop,
    StopAsked,
    Sweep,
    TryBroke,
    TryEnded,
    Wait,
    Woken,
)
from headrace.coordinator.settings import Settings
from headrace.coordinator.shape import shape_of
from headrace.delivery import Deliveries
from headrace.errors import HeadraceError, StorageError, ensure
from headrace.keyspace.planner import contiguous
from headrace.ledger.commands import Answer, Asked, CommandLog
from headrace.ledger.intent import Intent
from headrace.ledger.log import Ledger
from headrace.ledger.manifest import Head, Manifest
from headrace.productions import Productions, checkpoint
from headrace.runners.base import Runner, TryFailed
from headrace.step.plan import Plan, TaskReport
from headrace.stopwatch import Lap, Stopwatch
from headrace.storage.base import Store
from headrace.topology import Pipeline

log = logging.getLogger("headrace")

_WARM_EVERY_S = 25.0
#: Looking for a command takes at most about such a part of the driver's time.
_LOOKING_SHARE = 100
#: What instructions are called where time is told.
_PHASES: dict[type[Instruction], str] = {
    Recall: "poll",
    Poll: "poll",
    HandOut: "hand out",
    Checkpoint: "hand out",
    PollAgain: "poll",
    Release: "release",
    AwaitSinks: "outbox",
    Clean: "clean",
    Sweep: "sweep",
}


class Clock:
    """The time of day. Tests pass one that they move."""

    def now_us(self) -> int:
        """Return microseconds since 1970 UTC."""
        return time.time_ns() // 1_000

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        """Wait until a time, or until somebody sets ``woken``."""
        woken.wait(max(0.0, (until_us - self.now_us()) / 1e6))


class StepSummary(msgspec.Struct, frozen=True):
    """What a step did, for progress, metrics and benchmarks.

    Attributes:
        step: its number.
        records: records read, over all injectors.
        seconds: from the start of its try to the end of its commit.
        phases: seconds by phase, tasks' phases summed over tasks.
        exchange: who carried records.
        soft_state: how tasks had their soft state: ``hit``, ``caught up``, ``cold``.
        head: the pipeline after it.
    """

    step: int
    records: int
    seconds: float
    phases: dict[str, float]
    exchange: str
    soft_state: dict[str, int]
    head: Head


Listener = Callable[[StepSummary], None]


class Driver:
    """One run of a pipeline, from claiming its epoch to stopping.

    Args:
        pipeline: what to run.
        store: its storage.
        runner: where tasks run.
        workers: how many workers; at a restart with another number state is found by range.
        bins: how many bins a new layout gets.
        settings: pace and upkeep.
        clock, nonce: time and chance, passed in.
        drain: stop when all input has ended.
        check_predecessor: see :mod:`headrace.ledger.log`.
    """

    def __init__(
        self, pipeline: Pipeline, store: Store, runner: Runner, *, workers: int = 2,
        bins: int = 256, settings: Settings | None = None, clock: Clock | None = None,
        nonce: Callable[[], str] | None = None, drain: bool = False,
        check_predecessor: bool = True,
    ) -> None:  # fmt: skip
        pipeline.check_complete()
        self.drawing = pipeline  # with what storage may say is removed
        self.pipeline = pipeline
        self.store = store
        self.runner = runner
        self.clock = clock or Clock()
        self.ledger = Ledger(store, check_predecessor=check_predecessor)
        self.commands = CommandLog(store)
        self.listeners: list[Listener] = []
        self.woken = threading.Event()
        self._settings = settings or Settings()
        self._nonce = nonce or (lambda: uuid.uuid4().hex)
        self._drain = drain
        self._layout = contiguous(bins, workers)
        self._todo: deque[Instruction] = deque()
        self._asked: deque[StopAsked] = deque()
        self._told: list[StopAsked] = []  # of what was asked, what a coordinator has been told
        self._changes: deque[Change] = deque()
        self._begin_anew: _BeginAnew | None = None
        self._closed = False
        self._look_again_s = 0.0
        self._inline: tuple[int, dict[str, list[bytes]]] = (-1, {})  # of the newest step
        self._running: tuple[Plan, float] | None = None
        self._stopwatch = Stopwatch()
        self._deliveries = Deliveries(
            pipeline, store, self._stopwatch, concurrent=runner.concurrent
        )
        self._intending = ThreadPoolExecutor(1, "headrace-intent") if runner.concurrent else None
        self._warmed = time.monotonic()
        self._opened: dict[int, Any] = {}  # sources that are open, by identity
        self._draw(pipeline, Standing(frozenset()))

    def _draw(
        self, pipeline: Pipeline, standing: Standing, beginning: list[str] | None = None
    ) -> None:
        """Take up a drawing: its sources, and a coordinator that has not begun."""
        self.pipeline = pipeline
        self._streams = pipeline.streams()
        self._sources = {name: item.source for name, item in pipeline.injectors.items()}
        self._again: dict[str, Any] = {}  # sources that are read again, for those that catch up
        shape = shape_of(
            pipeline, self.drawing, standing, beginning=beginning or [],
            starts={name: source.start() for name, source in self._sources.items()},
            layout=self._layout.to_wire(), store=self.store.location,
            wide_exchange=self.runner.wide_exchange(),
        )  # fmt: skip
        self.coordinator = Coordinator(shape, self._settings, self._nonce, drain=self._drain)
        for asked in self._told:
            self.coordinator.handle(asked)

    # -- running ------------------------------------------------------------------------------

    def run(self) -> str:
        """Run until the coordinator stops; return why it stopped.

        Raises:
            HeadraceError: what went wrong. Every committed step is intact.
        """
        self.open()
        while True:
            stop = self.turn()
            if stop is not None:
                return stop.why

    def open(self) -> None:
        """Look at the storage, and get ready for the first :meth:`turn`.

        Raises:
            HeadraceError: when the pipeline cannot be run here.
        """
        self.ledger.check_owner(self.pipeline.name)
        opened = self._open()
        self.runner.start(self.pipeline, self.store, self._layout.workers)
        self._open_sources(self._sources.values())
        self._todo.extend(self._tell(opened))

    @property
    def upcoming(self) -> Instruction:
        """What the next :meth:`turn` will do, unless a stop was asked for meanwhile."""
        ensure(bool(self._todo), "the coordinator asked for nothing")
        return self._todo[0]

    def turn(self) -> Stop | None:
        """Carry out one instruction; return it when it says that the run is over.

        Raises:
            HeadraceError: what went wrong. Every committed step is intact.
        """
        while self._asked:
            self._told.append(self._asked.popleft())
            self._todo.extend(self._tell(self._told[-1]))
        instruction = self.upcoming
        self._todo.popleft()
        if isinstance(instruction, Stop):
            if instruction.error is not None:
                raise instruction.error
            if instruction.why != CHANGED:
                return instruction
            self._todo = deque(self._tell(self._redraw()))
            return None
        event = self._do(instruction)
        self._tell_released()
        if event is not None:
            self._todo.extend(self._tell(event))
        return None

    def _open(self) -> Opened:
        """Read the ledger, and the commands that came before this run; draw what these leave."""
        head = self.ledger.open()
        identity = {} if head is None else head.identity
        standing = Standing(frozenset(removed_of(head)), paused=head is not None and head.paused)
        asked = self.commands.pending(0 if head is None else head.commands)
        step = 0 if head is None else head.step + 1
        opening = at_opening(standing, identity, self.drawing, asked, step)
        standing = opening.standing
        users = set(self.drawing.nodes) - set(self.drawing.checks)
        for name in sorted(standing.removed & users):
            log.warning(
                "computation %r is drawn, but it was removed: it stays removed "
                "(headrace restore %s brings it back)", name, name,
            )  # fmt: skip
        if standing.paused:
            log.warning("the pipeline is paused (headrace resume lets it go on)")
        if standing.removed or standing.forgotten:
            self._draw(without(self.drawing, standing.removed), standing)
        check_behind(self.pipeline, None if head is None else head.catch_up)
        return Opened(head, self.clock.now_us(), opening.answers, standing.paused)

    def _open_sources(self, sources: Collection[Any]) -> None:
        for source in sources:
            if id(source) not in self._opened:
                source.open(self.store)
                self._opened[id(source)] = source

    def ask_to_stop(self, *, drain: bool) -> None:
        """Ask for a stop: after the running step, or when the input has ended. From any thread."""
        self._asked.append(StopAsked(drain))
        self.woken.set()
        self._deliveries.news.set()

    def ask_to_change(self, change: Change) -> None:
        """Ask for another drawing, between two steps. From any thread; the change says how it went."""
        self._changes.append(change)
        self.woken.set()
        if self._closed:
            change.refused(None)

    def plan_change(self, change: Change) -> ChangePlan:
        """Return what a change comes to, as things stand. From any thread.

        Raises:
            HeadraceError: when it would be refused.
        """
        head = self.coordinator.head
        stored = merged_identity({}, self.pipeline.identity()) if head is None else head.identity
        plan = plan_change(
            stored, self.pipeline, change.pipeline, forget=change.forget, begin=change.begin,
            behind=[] if head is None else head.resting,
        )  # fmt: skip
        check_behind(change.pipeline, None if head is None else head.catch_up)
        return plan

    def close(self) -> None:
        """Let go of runner, sources and sinks; tell those who wait for a change that there is none."""
        self._closed = True
        begun = [] if self._begin_anew is None else [self._begin_anew.change]
        for change in [*begun, *self._changes]:
            if change is not None:
                change.refused(None)
        self._deliveries.close()
        if self._intending is not None:
            self._intending.shutdown()
        with contextlib.ExitStack() as stack:  # one that fails does not keep the others open
            for node in self.drawing.sinks.values():
                stack.callback(node.sink.close)
            # (also those that are open for a change that was still to begin)
            ours = [*self._opened.values(), *self._sources.values(), *self._again.values()]
            for source in {id(source): source for source in ours}.values():
                stack.callback(source.close)
            stack.callback(self.runner.close)

    def _tell(self, event: Event) -> list[Instruction]:
        with self._stopwatch.phase("plan"):
            return self.coordinator.handle(event)

    def _tell_released(self) -> None:
        """Tell of all that sinks have acknowledged; raise what one of them raised."""
        self._deliveries.news.clear()
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
                return self._run(instruction)
        with self._stopwatch.phase(_PHASES[type(instruction)]):
            return self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> Event | None:
        match instruction:
            case Poll():
                return self._between_steps() or self._poll(instruction)
            case PollAgain():
                return self._between_steps() or self._poll_again(instruction)
            case Recall():
                return self._recall(instruction)
            case HandOut():
                return self._hand_out(instruction)
            case Checkpoint():
                streams = [self._streams[name] for name in instruction.streams]
                adopted = instruction.adopted
                return Checkpointed(
                    checkpoint(instruction.plan, adopted, streams, self._layout, self.store)
                )
            case Release():
                self._release(instruction)
            case AwaitSinks():
                return self._await_sinks()
            case Clean():
                self.ledger.clean(
                    instruction.names,
                    range(instruction.manifests_from, instruction.manifests_to),
                    range(instruction.intents_from, instruction.intents_to),
                )
            case Sweep():
                assert self.coordinator.head is not None
                self.ledger.sweep(self.coordinator.head)
        return None

    # -- instructions -------------------------------------------------------------------------

    def _commit(self, instruction: Commit) -> Committed:
        lap, adopted = self._stopwatch.lap(), instruction.adopted
        begun = time.perf_counter()
        with self._stopwatch.phase("commit"):
            head = self.ledger.commit(instruction.head, self._timed(instruction, lap))
        now = time.perf_counter()
        if adopted is None:
            if instruction.manifest.claim:
                self._begun_anew(head)
            return Committed(head)
        self._inline = head.step, adopted.inline_outputs
        assert self._running is not None
        plan, started = self._running
        phases = {**adopted.phases, **lap.of_step(), "commit": now - begun}
        summary = StepSummary(
            head.step, sum(adopted.read_rows.values()), now - started, phases, plan.exchange,
            adopted.soft_state, head,
        )  # fmt: skip
        with self._stopwatch.phase("tell"):
            for name, division in instruction.manifest.divisions.items():
                self._source(name, instruction.manifest.replays).committed(division.end)
            for listener in self.listeners:
                listener(summary)
        return Committed(head)

    def _timed(self, instruction: Commit, lap: Lap) -> Manifest:
        """Return the manifest with how its step went; where the coordinator cannot be led by it."""
        adopted = instruction.adopted
        if adopted is None:
            return instruction.manifest
        assert self._running is not None
        exchange = self._running[0].exchange
        timing = lap.timing(adopted, exchange, side_by_side=self.runner.concurrent)
        return msgspec.structs.replace(instruction.manifest, timing=timing)

    def _poll(self, instruction: Poll) -> Offered:
        offers = {
            name: self._sources[name].offer(position, instruction.limits[name])
            for name, position in instruction.positions.items()
        }
        return Offered(offers, self.clock.now_us())

    def _poll_again(self, instruction: PollAgain) -> OfferedAgain:
        offers = {
            name: self._source_again(name).offer_until(
                at, instruction.until[name], instruction.limit
            )
            for name, at in instruction.positions.items()
        }
        return OfferedAgain(offers, self.clock.now_us())

    def _source(self, name: str, replays: bool) -> Any:
        """Return what reads an injector; a step that is recalled may be the first to read one again."""
        return self._source_again(name) if replays else self._sources[name]

    def _source_again(self, name: str) -> Any:
        """Return what reads an injector again from its start, beside the source itself."""
        if name not in self._again:
            self._again[name] = self._sources[name].again()
            self._again[name].open(self.store)
        return self._again[name]

    def _run(self, instruction: Run) -> TryEnded | TryBroke:
        self._stopwatch.rename("try", "lost")  # if there was one already, it is thrown away
        started = time.perf_counter()
        injectors = dict(instruction.plan.injectors)
        with self._stopwatch.phase("split"):
            for name, (start, end) in instruction.divisions.items():
                splits = self._source(name, instruction.plan.replays).splits(start, end)
                injectors[name] = msgspec.structs.replace(injectors[name], splits=splits)
        plan = msgspec.structs.replace(instruction.plan, injectors=injectors)
        self._running = (plan, started)
        self._warmed = time.monotonic()
        first = self._intend(instruction.intent)
        broke: TryFailed | None = None
        reports: list[TaskReport] = []
        try:
            with self._stopwatch.phase("try"):
                reports = self.runner.run(plan)
        except TryFailed as error:
            broke = error
        outrun = self._was_outrun(instruction.intent, first)
        if broke is not None:
            return TryBroke(str(broke), outrun)
        return TryEnded(reports, round((time.perf_counter() - started) * 1e6), outrun)

    def _intend(self, intent: Intent | None) -> Future[Intent] | None:
        """Begin to make an intent durable: while the try runs, if that runs elsewhere."""
        head = self.coordinator.head
        if intent is None or head is None:
            return None
        if self._intending is not None:
            return self._intending.submit(self.ledger.intend, head, intent)
        done: Future[Intent] = Future()
        with self._stopwatch.phase("intent"):
            done.set_result(self.ledger.intend(head, intent))
        return done

    def _was_outrun(self, intent: Intent | None, first: Future[Intent] | None) -> bool:
        """Wait for the intent; say whether that of another driver was there first."""
        if intent is None or first is None:
            return False
        with self._stopwatch.phase("intent"):
            return first.result().nonce != intent.nonce

    def _recall(self, instruction: Recall) -> Recalled:
        intent = self.ledger.intent(instruction.order)
        if intent is None:
            return Recalled(None)
        if intent.replays:
            return Recalled(intent, True, self.clock.now_us())
        ready = [
            self._sources[name].recover(instruction.positions[name], offer.end)
            for name, offer in intent.offers.items()
            if name in self._sources and not offer.empty
        ]
        return Recalled(intent, all(ready), self.clock.now_us())

    def _wait(self, until_us: int) -> None:
        self._stopwatch.forget("poll", "plan")  # they found nothing to do: that is waiting, too
        self._keep_warm()
        self.clock.wait_until(until_us, self.woken)
        self.woken.clear()

    def _keep_warm(self) -> None:
        if time.monotonic() - self._warmed > _WARM_EVERY_S:
            self.runner.keep_warm()
            self._warmed = time.monotonic()

    # -- commands and changes -----------------------------------------------------------------

    def _between_steps(self) -> Event | None:
        """Look for what is asked between two steps: a change by a thread, or a command in storage."""
        while self._changes:
            event = self._begin_change(self._changes.popleft())
            if event is not None:
                return event
        now = time.monotonic()
        if now < self._look_again_s:
            return None
        head = self.coordinator.head
        assert head is not None
        asked: Asked | None = None
        try:
            asked = self.commands.read(head.commands)
        except StorageError as error:  # nothing depends on when a command is found
            log.warning("could not look for a command: %s", error.what)
        if asked is not None:
            return self._obey(asked)  # and look for the next one at once
        done = time.monotonic()
        self._look_again_s = done + _LOOKING_SHARE * (done - now)
        return None

    def _begin_change(self, change: Change) -> Event | None:
        """Get ready for another drawing; None when it is refused, and all stays as it is."""
        begun = time.perf_counter()
        head = self.coordinator.head
        assert head is not None
        try:
            plan = self.plan_change(change)
            gone = (set(removed_of(head)) | set(plan.removed)) - set(change.pipeline.nodes)
            standing = Standing(frozenset(gone), frozenset(plan.forgotten))
            self._get_ready(change.pipeline, standing, begun)
        except Exception as error:
            change.refused(error)
            return None
        change.plan = plan
        assert self._begin_anew is not None
        self._begin_anew.change, self._begin_anew.drawing = change, change.pipeline
        return ChangeAsked()

    def _obey(self, asked: Asked) -> Event:
        """Decide a command: what it comes to is noted by the coordinator, before it takes effect."""
        begun = time.perf_counter()
        head = self.coordinator.head
        assert head is not None
        before = Standing(frozenset(removed_of(head)), paused=head.paused)
        result = decide(before, head.identity, self.drawing, asked, running=True)
        kind = None if asked.command is None else asked.command.kind
        if isinstance(result, Standing) and kind in ("remove", "restore"):
            try:
                self._get_ready(without(self.drawing, result.removed), result, begun)
            except Exception as error:  # (whatever a source raises that is opened)
                result = error.what if isinstance(error, HeadraceError) else repr(error)
            else:
                assert self._begin_anew is not None
                self._begin_anew.asked = asked
                return ChangeAsked()
        if kind == "drain":
            self._drain = True  # also for the coordinators to come
        return Commanded(answer_to(asked, result, head.step + 1), kind)

    def _get_ready(self, pipeline: Pipeline, standing: Standing, begun: float) -> None:
        """Do all of a change that can fail, while what runs is not touched.

        Raises:
            HeadraceError: when the drawing cannot run.
        """
        head = self.coordinator.head
        assert head is not None
        check_identity(
            head.identity, pipeline.identity(), removed=standing.removed,
            forgotten=standing.forgotten,
        )  # fmt: skip
        new = [item.source for item in pipeline.injectors.values()]
        opened = dict(self._opened)
        try:
            self._open_sources(new)
            switch = self.runner.prepare(pipeline)
        except BaseException:
            self._close_sources([source for source in new if id(source) not in opened])
            raise
        self._begin_anew = _BeginAnew(pipeline, standing, switch, begun)

    def _redraw(self) -> Opened:
        """Switch to the drawing that is ready; return what the new coordinator is to begin with."""
        anew, head = self._begin_anew, self.coordinator.head
        assert anew is not None and head is not None
        before, drawn = self.pipeline, self.drawing
        anew.switch()
        again = list(self._again.values())
        begins = [] if anew.change is None else anew.change.plan.beginning
        if anew.drawing is not None:
            self.drawing = anew.drawing
            self._deliveries.close()  # nothing is under way
            self._deliveries = Deliveries(
                self.drawing, self.store, self._stopwatch, concurrent=self.runner.concurrent
            )
        self._draw(anew.pipeline, anew.standing, begins)
        for source in again:
            source.close()
        kept = {id(source) for source in self._sources.values()}
        old = [item.source for item in before.injectors.values()]
        self._close_sources([source for source in old if id(source) not in kept])
        sinks = {id(node.sink) for node in self.drawing.sinks.values()}
        for node in drawn.sinks.values():  # (one that a command removed may be restored)
            if id(node.sink) not in sinks:
                node.sink.close()
        answers: list[Answer] = []
        if anew.asked is not None:
            answers.append(answer_to(anew.asked, anew.standing, head.step + 1))
        return Opened(head, self.clock.now_us(), answers)

    def _close_sources(self, sources: Collection[Any]) -> None:
        for source in sources:
            if id(source) in self._opened:
                del self._opened[id(source)]
                source.close()

    def _begun_anew(self, head: Head) -> None:
        anew, self._begin_anew = self._begin_anew, None
        if anew is not None and anew.change is not None:
            anew.change.applied(head.step, time.perf_counter() - anew.begun)

    # -- sinks --------------------------------------------------------------------------------

    def _hand_out(self, instruction: HandOut) -> HandedOut:
        """Give a step to its weak sinks, and wait for those that must acknowledge it now."""
        adopted = instruction.adopted
        productions = Productions(
            instruction.step, instruction.origin, adopted.outputs, adopted.inline_outputs,
            adopted.unstaged, committed=False,
        )  # fmt: skip
        until = self.clock.now_us() + instruction.patience_us
        self._deliveries.give(instruction.sinks, productions)
        while True:
            self._tell_released()
            late = self.coordinator.lagging(instruction.await_)
            if not late or self.clock.now_us() >= until:
                return HandedOut(late)
            self.clock.wait_until(until, self._deliveries.news)

    def _release(self, instruction: Release) -> None:
        """Deliver a committed step's outputs; where tries run elsewhere, while the next ones run."""
        head, step = self.coordinator.head, instruction.step
        assert head is not None
        inline = self._inline[1] if self._inline[0] == step else {}
        productions = Productions(step, head.origin_of(step), head.unreleased[step], inline)
        self._deliveries.give(instruction.sinks, productions)

    def _await_sinks(self) -> Woken:
        while True:
            self._tell_released()
            if self._asked or not self.coordinator.waits:
                return Woken()
            self._deliveries.news.wait(_WARM_EVERY_S)
            self._keep_warm()


class _BeginAnew:
    """A drawing that is ready to run, and who asked for it.

    Attributes:
        pipeline, standing: what is drawn, and what is not.
        switch: lets the runner run it.
        begun: when getting ready began.
        change, drawing: the API's change, and its drawing; None for a command.
        asked: the command; None for the API.
    """

    def __init__(
        self, pipeline: Pipeline, standing: Standing, switch: Callable[[], None], begun: float
    ) -> None:
        self.pipeline = pipeline
        self.standing = standing
        self.switch = switch
        self.begun = begun
        self.change: Change | None = None
        self.drawing: Pipeline | None = None
        self.asked: Asked | None = None
