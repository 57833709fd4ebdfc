"""The coordinator's decisions: one method an event, instructions out.

::

    Opened ──► Commit(claim) ──► Committed ──► Release… ──► Poll ──► Offered ─┬─► Run ──► TryEnded
                                     ▲                        ▲               │             │
                                     │                        └── Wait ◄──────┘        Commit(step)
                                     └────────────────────────────────────────────────────┘

After a claim, ``Recall`` comes before ``Poll``: an earlier driver may have shown results of the step that
comes next, so that this very step must be run. Where there are weak sinks, ``HandOut`` (and for
those that are late, ``Checkpoint``) comes before ``Commit``. When the outbox is full, ``AwaitSinks`` comes
before ``Poll``, and so it does at the end: a stop, too, delivers what was committed.

It reads no clock, draws no number and touches no store: times come with events, the nonces from a
source that is passed in. So a run is a function of its events, and can be replayed.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec

from headrace.coordinator.adoption import Adopted, Conflict, adopt
from headrace.coordinator.identity import (
    check_identity,
    flows_otherwise,
    merged_identity,
    removed_of,
)
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
    Released,
    Run,
    Stop,
    StopAsked,
    Sweep,
    TryBroke,
    TryEnded,
    Wait,
    Woken,
)
from headrace.coordinator.outbox import Outbox
from headrace.coordinator.pace import next_rows
from headrace.errors import PipelineError, TryAbandoned, ensure
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import Frontier, Frontiers, Rules, changes, lowest, news
from headrace.keyspace.layout import LayoutWire
from headrace.ledger.intent import Intent
from headrace.ledger.manifest import CatchUp, Division, Head, Manifest, fold
from headrace.ledger.retained import Retained, next_retained, producer_of
from headrace.sources.base import Limit, Offer, Position
from headrace.state.runs import FileRef
from headrace.step.layer import error_of
from headrace.step.plan import (
    ChainPlan,
    Exchange,
    Failure,
    InjectorPlan,
    Plan,
    SlicePlan,
)
from headrace.step.soft import carried

_MOST_SLICES = 4_096

#: While computations are catching up, so many steps are theirs for each that may be of new input.
_STEPS_OF_CATCHING_UP = 2

#: Why a run ends that is to begin anew with another drawing.
CHANGED = "changed"


class Settings(msgspec.Struct, frozen=True):
    """How a run behaves; none of it changes what is computed.

    Attributes:
        limit: how much a step takes from each injector, at most.
        target_us: how long a step should take: live injectors are given fewer rows when it takes longer.
        exchange: who carries records between layers; ``auto`` picks by the size of the step.
        driver_exchange_bytes: up to this much input, ``auto`` lets the driver carry.
        cached_bytes: about how much of a computation's state a worker keeps in memory; the bins that
            were not needed for longest are let go, and read again from storage when they are.
        max_tries: how often a step is tried when the engine fails.
        poll_us: how long to wait when there is nothing to do.
        base_every: a base in the ledger every so many steps.
        slices: in how many slices (a power of two) the state of a new pipeline is written whole, one at
            a time, so that no step pays for all.
        slice_every: a slice is written whole every so many steps.
        retain_steps: how many newest steps stay readable, at least.
        sweep_every: leftovers are looked for every so many steps.
        clean_per_step: how many files are deleted after one step, unless the backlog is large.
        outbox_steps: how many committed steps may wait for a slow sink; then the input waits, too.
        outbox_bytes: how many bytes of outputs may, unless one step alone has more.
        straggler_us: how long a step waits for a weak sink to acknowledge what is staged nowhere; then it
            stages that itself, and goes on.
    """

    limit: Limit = Limit(rows=100_000, bytes=16 << 20)
    target_us: int = 500_000
    exchange: Exchange | Literal["auto"] = "auto"
    driver_exchange_bytes: int = 1 << 20
    cached_bytes: int = 512 << 20
    max_tries: int = 4
    poll_us: int = 20_000
    base_every: int = 64
    slices: int = 256
    slice_every: int = 1
    retain_steps: int = 16
    sweep_every: int = 1_024
    clean_per_step: int = 64
    outbox_steps: int = 64
    outbox_bytes: int = 256 << 20
    straggler_us: int = 1_000_000


class Shape(msgspec.Struct, frozen=True):
    """What the coordinator must know of a pipeline.

    Attributes:
        name: the pipeline's name.
        layers: how many layers of computations it has.
        injectors: each injector's position before its first record.
        live: the injectors whose input is not bounded, and which are paced by time.
        rules: how each injector's watermark follows from what is known of it.
        readers: for each injector the computations that its records come to, on any way.
        wide_exchange: who carries records in steps that are too large for the driver.
        nodes: the computations' names.
        identity: what durable data depends on.
        layout: bins and owners that this run wants.
        store: where the storage is.
        sinks: the stream of each sink.
        weak: the sinks that see a step's results before its commit.
        removed: computations that are not drawn, on purpose: their state is kept.
        forgotten: computations whose state is given up as this run begins.
        beginning: computations that begin with the beginning of their injectors or retained streams.
        produced: for each computation the streams that it reads of others.
    """

    name: str
    layers: int
    injectors: dict[str, Any]
    nodes: list[str]
    identity: dict[str, Any]
    layout: LayoutWire
    store: str
    live: list[str] = []
    rules: dict[str, Rules] = {}
    readers: dict[str, list[str]] = {}
    wide_exchange: Exchange = "shuffle"
    sinks: dict[str, str] = {}
    weak: list[str] = []
    removed: list[str] = []
    forgotten: list[str] = []
    beginning: list[str] = []
    produced: dict[str, list[str]] = {}


class _Pending(msgspec.Struct):
    """The step under way.

    Attributes:
        plan, divisions, finals: what it computes.
        intent: the same as another driver would have to know it.
        manifest, adopted: what came of it, once weak sinks are given that.
    """

    plan: Plan
    divisions: dict[str, tuple[Position, Position]]
    finals: set[str]
    intent: Intent
    manifest: Manifest | None = None
    adopted: Adopted | None = None


class Coordinator:
    """The state between events.

    Args:
        shape: the pipeline.
        settings: how to run it.
        nonce: returns a fresh, unguessable-enough name at each call.
        drain: whether to stop when all input has ended.
    """

    def __init__(
        self, shape: Shape, settings: Settings, nonce: Callable[[], str], *, drain: bool
    ) -> None:
        slices = settings.slices
        if not 1 <= slices <= _MOST_SLICES or slices & (slices - 1):
            raise PipelineError(
                f"{slices} is not a number of slices",
                remedy=f"use a power of two from 1 to {_MOST_SLICES}",
            )
        self.shape = shape
        self.settings = settings
        self.head: Head | None = None
        self.story: list[str] = []
        self._nonce = nonce
        self._drain = drain
        self._stopping = False
        self._pending: _Pending | None = None
        self._ending: str | None = None
        self._live_rows = settings.limit.rows
        self._caught_up_steps = 0  # in a row
        self._changing = False
        self._listening_us = 0  # since when sources are asked for what they have
        self._outbox = Outbox(shape.sinks, steps=settings.outbox_steps, size=settings.outbox_bytes)
        self._awaiting: Literal["nothing", "room", "all"] = "nothing"
        self._recalled = False  # whether it is known what an earlier driver has begun
        self._doomed: deque[str] = deque()  # dead files that are still to be deleted
        self._doomed_upto = 0  # those that died up to this step are doomed, or gone
        self._cleaned = 0  # those that died up to this step are gone
        self._manifests_from = 1
        self._intents_from = 1

    @property
    def waits(self) -> bool:
        """Whether what ``AwaitSinks`` was for is still to come."""
        if self._awaiting == "room":
            return bool(self._outbox.waits_for(self._head.unreleased))
        return self._awaiting == "all" and bool(self._outbox.undelivered(self._head.unreleased))

    def lagging(self, sinks: Iterable[str]) -> list[str]:
        """Return those of some sinks that have not acknowledged all that they were given."""
        return self._outbox.lagging(sinks)

    def handle(self, event: Event) -> list[Instruction]:
        """Return what to do after an event. Instructions are carried out in order."""
        self.story = [*self.story[-99:], _line(event)]
        match event:
            case Opened():
                return self._opened(event)
            case Committed():
                return self._committed(event.head)
            case Recalled():
                return self._recalled_by(event)
            case Offered() | OfferedAgain():
                return self._has_next(event)
            case TryEnded() | TryBroke() if event.outrun:
                return [self._recall()]
            case TryEnded():
                return self._try_ended(event)
            case TryBroke():
                return self._again(event.why)
            case HandedOut():
                return self._handed_out(event.late)
            case Checkpointed():
                return self._checkpointed(event.file)
            case Released():
                self._outbox.note(event.sink, event.step)
                return []
            case Woken():
                return self._woken()
            case StopAsked() | Commanded() | ChangeAsked():
                return self._asked(event)

    # -- opening ------------------------------------------------------------------------------

    def _opened(self, event: Opened) -> list[Instruction]:
        head, shape = event.head, self.shape
        self._listening_us = event.now_us
        stored = {} if head is None else head.identity
        step = 0 if head is None else head.step + 1
        removed, forgotten = shape.removed, shape.forgotten
        check_identity(stored, shape.identity, removed=removed, forgotten=forgotten)
        if head is not None:
            self._manifests_from = max(1, head.boundary - 2 * self.settings.base_every)
            self._outbox.open(head)
            self._intents_from = max(1, head.settled - 2 * self.settings.base_every)
        changed = head is None or head.layout != shape.layout
        restored = set(removed_of(head)) & set(shape.nodes)
        stirred = head is not None and (restored or flows_otherwise(stored, shape.identity))
        claim = Manifest(
            pipeline=shape.name,
            step=step,
            epoch=1 if head is None else head.epoch + 1,
            try_=0,
            nonce=self._nonce(),
            predecessor="" if head is None else head.digest,
            claim=True,
            clock_us=event.now_us,
            seed=0,
            # (a step is due at once: watermarks and timers stand where the old drawing left them)
            next_wall_timer=MIN_TIME if stirred else MAX_TIME,
            layout=shape.layout if changed else None,
            identity=merged_identity(
                stored, shape.identity, step=step, removed=removed, forgotten=forgotten,
                floor=-1 if head is None else head.slices_floor,
            ),
            boundary=0 if head is None else head.boundary,
            answers=event.answers,
            paused=event.paused,
            forgotten=forgotten,
            catch_up=self._to_catch_up(head),
        )  # fmt: skip
        return [Commit(head, claim if head is None else self._outbox.noted(head, claim))]

    def _to_catch_up(self, head: Head | None) -> CatchUp | None:
        """Return who is to catch up from this claim on; None where that does not change."""
        if self.shape.beginning:
            again = self._streams_again(self.shape.beginning)
            return CatchUp(self.shape.beginning, retained=-1 if again else None)
        at = None if head is None else head.catch_up
        if at is None or set(at.names) <= set(self.shape.nodes):
            return None
        return msgspec.structs.replace(at, names=[n for n in at.names if n in self.shape.nodes])

    # -- after a commit -----------------------------------------------------------------------

    def _committed(self, head: Head) -> list[Instruction]:
        claimed = self.head is None
        self.head = head
        self._pending = None
        if self._ending is not None:
            return [Stop(self._ending)]
        todo: list[Instruction] = [
            Release(step, sinks) for step, sinks in self._outbox.give_all(head.unreleased)
        ]
        if claimed or head.step % self.settings.sweep_every == 0:
            todo.append(Sweep())
        clean = self._clean(head)
        if clean is not None:
            todo.append(clean)
        return [*todo, *self._go_on()]

    def _go_on(self) -> list[Instruction]:
        """Begin the next step, if the outbox has room for it."""
        if self._stopping:
            return self._end("stopped")
        if self._outbox.waits_for(self._head.unreleased):
            self._awaiting = "room"
            return [AwaitSinks()]
        # (what an earlier driver has begun is run by the one that is not paused any more)
        return [self._poll() if self._recalled or self._head.paused else self._recall()]

    def _woken(self) -> list[Instruction]:
        self._awaiting = "nothing"
        return self._end(CHANGED) if self._changing else self._go_on()

    def _clean(self, head: Head) -> Clean | None:
        """Delete a bounded number of what is dead since the (durable) boundary or before."""
        self._doomed.extend(
            name for name, died in head.dead if self._doomed_upto < died <= head.boundary
        )
        self._doomed_upto = max(self._doomed_upto, head.boundary)
        # A share of the backlog, so that it stays bounded however much a step leaves behind.
        most = max(self.settings.clean_per_step, len(self._doomed) // 16)
        names = [self._doomed.popleft() for _ in range(min(most, len(self._doomed)))]
        manifests_from = self._manifests_from
        manifests_to = max(manifests_from, min(head.boundary, manifests_from + most))
        self._manifests_from = manifests_to
        if not self._doomed:
            self._cleaned = self._doomed_upto
        intents_from = intents_to = self._intents_from
        if self.shape.weak and manifests_to >= head.boundary:
            intents_to = max(intents_from, min(head.settled + 1, intents_from + most))
            self._intents_from = intents_to
        if not names and manifests_to == manifests_from and intents_to == intents_from:
            return None
        return Clean(names, manifests_from, manifests_to, intents_from, intents_to)

    def _recall(self) -> Recall:
        """Ask for the intent of the next step. Only after the claim: see the ledger's protocol."""
        return Recall(self._head.done + 1, self._starts())

    def _recalled_by(self, event: Recalled) -> list[Instruction]:
        """Run what another driver intends, if it does: it may have shown the results."""
        if self._stopping:
            return self._end("stopped")
        if event.intent is not None and not event.ready:
            return [Wait(event.now_us + self.settings.poll_us), self._recall()]
        self._recalled = True
        if event.intent is None:
            return [self._poll()]
        outrun = self._pending
        return self._begin(event.intent, try_=0 if outrun is None else outrun.plan.try_ + 1)

    def _poll(self) -> Poll | PollAgain:
        head = self._head
        if head.paused:
            return Poll({}, {})
        if head.catch_up is not None and self._caught_up_steps < _STEPS_OF_CATCHING_UP:
            self._caught_up_steps += 1
            return self._poll_again(head.catch_up)
        self._caught_up_steps = 0
        positions = {
            name: head.positions.get(name, start)
            for name, start in self.shape.injectors.items()
            if name not in head.ended
        }
        limits = {name: self._limit(name) for name in positions}
        return Poll(
            {name: at for name, at in positions.items() if "" not in limits[name].paused}, limits
        )

    def _limit(self, injector: str) -> Limit:
        """Return how much may be taken from an injector now."""
        whole, rows = self.settings.limit, self._live_rows
        rows = rows if injector in self.shape.live else whole.rows
        return Limit(rows, whole.bytes, self._paused(injector))

    def _paused(self, injector: str) -> frozenset[str]:
        """Return the partitions that are too far ahead of what the injector's readers have reached."""
        rules, head = self.shape.rules[injector], self._head
        if rules.skew_us is None:
            return frozenset()
        readers = [name for name in self.shape.readers[injector] if name not in head.resting]
        reached = lowest(head.watermark_of(name)[0] for name in readers)
        return frozenset(
            name
            for name, part in head.frontiers_of(injector).parts.items()
            if not part.ended and rules.strategy.of(part) > reached + rules.skew_us
        )

    @property
    def _head(self) -> Head:
        assert self.head is not None
        return self.head

    # -- a step -------------------------------------------------------------------------------

    def _has_next(self, event: Offered | OfferedAgain) -> list[Instruction]:
        if isinstance(event, OfferedAgain):
            return self._offered_again(event)
        return self._offered(event)

    def _offered(self, event: Offered) -> list[Instruction]:
        if self._stopping:
            return self._end("stopped")
        if self._head.paused:
            self._listening_us = event.now_us  # who brings nothing was not asked
            return [Wait(event.now_us + self.settings.poll_us), self._poll()]
        offers = {name: offer for name, offer in event.offers.items() if offer is not None}
        head = self._head
        known = {name: self._known(name, offers.get(name), event) for name in self.shape.injectors}
        told = any(offer.final or not offer.empty for offer in offers.values())
        changed = any(news(head.frontiers_of(name), of) for name, of in known.items())
        if not told and not changed and head.next_wall_timer > event.now_us:
            ended = set(head.ended) >= set(self.shape.injectors)
            if head.catch_up is not None:
                return [self._poll()]
            if self._drain and ended and not self._held():
                return self._end("drained")
            until = min(event.now_us + self.settings.poll_us, head.next_wall_timer)
            return [Wait(until), self._poll()]
        intent = Intent(
            order=head.done + 1,
            step=head.step + 1,
            nonce=self._nonce(),
            clock_us=event.now_us,
            offers=offers,
            known=known,
        )
        return self._begin(intent)

    def _begin(self, intent: Intent, *, try_: int = 0) -> list[Instruction]:
        """Run what somebody intends: this driver, or one before it."""
        pending = self._plan(intent)
        pending.plan = msgspec.structs.replace(pending.plan, try_=try_)
        self._pending = pending
        return [self._run_of(pending)]

    def _run_of(self, pending: _Pending) -> Run:
        weak = bool(self.shape.weak)
        return Run(pending.plan, pending.divisions, pending.intent if weak else None)

    def _held(self) -> bool:
        """Say whether a hold keeps an output watermark from the end: its timer is still to fire."""
        marks = (self._head.watermark_of(name) for name in self.shape.nodes)
        return any(after_out < after_in for after_in, after_out in marks)

    # -- catching up --------------------------------------------------------------------------

    def _streams_again(self, names: Collection[str]) -> list[str]:
        """Return the retained streams that some computations read again: those of all others."""
        read = {stream for name in names for stream in self.shape.produced.get(name, [])}
        return sorted(stream for stream in read if producer_of(stream) not in names)

    def _retained_after(self, head: Head) -> Retained | None:
        """Return what of the retained streams comes next for those that catch up.

        A function of the committed state, so that any driver finds the same.
        """
        at = head.catch_up
        if at is None or at.retained is None:
            return None
        streams = self._streams_again(at.names)
        return next_retained(head.retained_marks, head.retained, streams, at.retained)

    def _poll_again(self, at: CatchUp) -> PollAgain:
        if at.retained is not None:  # no source is asked
            return PollAgain({}, {}, self.settings.limit)
        starts = {
            name: start
            for name, start in self.shape.injectors.items()
            if set(self.shape.readers[name]) & set(at.names) and name not in at.ended
        }
        return PollAgain(
            {name: at.positions.get(name, start) for name, start in starts.items()},
            {name: self._head.positions.get(name, start) for name, start in starts.items()},
            self.settings.limit,
        )

    def _offered_again(self, event: OfferedAgain) -> list[Instruction]:
        """Let those that are behind work on what the others had long ago; or say that they have arrived."""
        if self._stopping:
            return self._end("stopped")
        head = self._head
        offers = {
            name: offer
            for name, found in event.offers.items()
            for offer in [self._as_it_was(name, found)]
            if offer is not None
        }
        if not offers and self._retained_after(head) is None:
            note = msgspec.structs.replace(self._note(), catch_up=CatchUp([]))
            return [Commit(head, self._outbox.noted(head, note))]
        then = head.as_of_catch_up()
        known = {
            name: then.frontiers_of(name)
            if name in event.offers or name in then.ended
            else head.frontiers_of(name)
            for name in self.shape.injectors
        }
        return self._begin(
            Intent(
                order=head.done + 1,
                step=head.step + 1,
                nonce=self._nonce(),
                clock_us=event.now_us,
                offers=offers,
                known=known,
                replays=True,
            )
        )

    def _resting(self, intent: Intent) -> list[str]:
        """Return the computations that do not work in a step."""
        behind = self._head.resting
        return [n for n in self.shape.nodes if n not in behind] if intent.replays else behind

    def _as_it_was(self, injector: str, offer: Offer | None) -> Offer | None:
        """Return what an injector offers again; its input has ended only if the pipeline knows that."""
        ended = injector in self._head.ended
        if offer is not None and not offer.empty:
            return msgspec.structs.replace(offer, final=offer.final and ended)
        if not ended:
            return None
        return Offer(None, 0, 0, final=True, empty=True)

    def _replayed(self, pending: _Pending, adopted: Adopted) -> Manifest:
        """Return the manifest of a step of catching up: it moves only those that are behind."""
        head = self._head
        then = head.as_of_catch_up()
        manifest = self._manifest(pending, adopted, then)
        after = fold(then, msgspec.structs.replace(manifest, base=None), "")
        at = CatchUp(head.resting, after.positions, after.ended, after.frontiers)
        if pending.plan.retained is not None:
            at = CatchUp(head.resting, retained=pending.plan.retained.step)
        return msgspec.structs.replace(
            manifest, base=None if manifest.base is None else head, replays=True, catch_up=at,
            frontiers={}, highest={},
        )  # fmt: skip

    def _known(self, injector: str, offer: Offer | None, event: Offered) -> Frontiers:
        """Return what is known of an injector with what its source says now, and what the clock says."""
        rules, before = self.shape.rules[injector], self._head.frontiers_of(injector)
        told = offer.parts if offer is not None else {}
        parts = dict(before.parts)
        for name in (*rules.expect, *sorted(told)):
            parts.setdefault(name, Frontier(active_us=event.now_us))
        for name, fact in told.items():
            parts[name] = parts[name].told(fact.final, fact.promise_us, event.now_us)
        if rules.idle_after_us is not None:
            paused = self._paused(injector)
            for name, part in parts.items():
                parts[name] = self._maybe_idle(
                    part, name in paused, rules.idle_after_us, event.now_us
                )
        return msgspec.structs.replace(before, parts=parts)

    def _maybe_idle(self, part: Frontier, paused: bool, after_us: int, now_us: int) -> Frontier:
        """Return what is known of a partition by the clock. One that is paused has something, outside."""
        if part.ended:
            return part
        if paused:
            return msgspec.structs.replace(part, active_us=now_us)
        quiet = now_us - max(part.active_us, self._listening_us) >= after_us
        return msgspec.structs.replace(part, idle=part.idle or quiet)

    def _end(self, why: str) -> list[Instruction]:
        """Stop; but first deliver what was committed, and note that durably."""
        head = self._head
        if self._outbox.undelivered(head.unreleased):
            self._awaiting = "all"
            return [AwaitSinks()]
        if not head.unreleased:
            return [Stop(why)]
        self._ending = why
        return [Commit(head, self._outbox.noted(head, self._note()))]

    def _asked(self, event: StopAsked | Commanded | ChangeAsked) -> list[Instruction]:
        if isinstance(event, StopAsked):
            self._drain = True
            self._stopping |= not event.drain
            return []
        if isinstance(event, Commanded):
            return self._commanded(event)
        self._changing = True
        return self._end(CHANGED)

    def _commanded(self, event: Commanded) -> list[Instruction]:
        """Note an answer durably, before anything follows from it."""
        answer = event.answer
        if answer.applied and event.kind == "drain":
            self._drain = True
        if answer.applied and event.kind == "stop":
            self._stopping = True
        paused = {"pause": True, "resume": False}.get(event.kind or "") if answer.applied else None
        note = msgspec.structs.replace(self._note(), answers=[answer], paused=paused)
        return [Commit(self._head, self._outbox.noted(self._head, note))]

    def _note(self) -> Manifest:
        """Return the manifest of a step in which nothing is computed."""
        head = self._head
        return Manifest(
            pipeline=self.shape.name,
            step=head.step + 1,
            epoch=head.epoch,
            try_=0,
            nonce=self._nonce(),
            predecessor=head.digest,
            claim=False,
            clock_us=0,
            seed=0,
            next_wall_timer=head.next_wall_timer,
            boundary=head.boundary,
            cleaned=self._cleaned,
        )

    def _starts(self, head: Head | None = None) -> dict[str, Position]:
        """Return where the next step begins, by injector."""
        positions = (head or self._head).positions
        return {name: positions.get(name, at) for name, at in self.shape.injectors.items()}

    def _plan(self, intent: Intent) -> _Pending:
        """Return the step that an intent is of; which only that and the committed state decide."""
        shape, now_us = self.shape, intent.clock_us
        head = self._head.as_of_catch_up() if intent.replays else self._head
        offers = {name: of for name, of in intent.offers.items() if name in shape.injectors}
        if intent.replays and head.catch_up is None:  # who was to read that is not there any more
            offers = {}
        known = {
            name: intent.known.get(name) or head.frontiers_of(name) for name in shape.injectors
        }
        step = head.step + 1
        starts = self._starts(head)
        divisions = {
            name: (starts[name], offer.end) for name, offer in offers.items() if not offer.empty
        }
        finals = {name for name, offer in offers.items() if offer.final}
        workers = shape.layout.workers
        retained = self._retained_after(head) if intent.replays else None
        taken: dict[str, Any] = {**divisions}
        size = sum(offer.bytes for offer in offers.values())
        if retained is not None:
            taken["retained"] = retained.step
            size += sum(file.length for file in retained.files)
        plan = Plan(
            step=step,
            epoch=head.epoch,
            try_=0,
            clock_us=now_us,
            seed=_seed(shape.name, starts, taken, None if taken else now_us),
            layout=head.layout,
            store=shape.store,
            injectors={
                name: InjectorPlan(before=known[name], final=name in head.ended or name in finals)
                for name in shape.injectors
            },
            watermarks={name: head.watermark_of(name) for name in shape.nodes},
            chains={
                f"{layer}/{worker}": _chain_plan(head, layer, worker)
                for layer in range(1, shape.layers + 1)
                for worker in range(workers)
            },
            exchange=self._exchange(size),
            cached_bytes=self.settings.cached_bytes,
            slice=self._next_slice(head, step),
            percentiles=head.percentiles,
            resting=self._resting(intent),
            replays=intent.replays,
            retained=retained,
        )
        return _Pending(plan, divisions, finals, intent)

    def _exchange(self, size: int) -> Exchange:
        if self.settings.exchange != "auto":
            return self.settings.exchange
        return "driver" if size <= self.settings.driver_exchange_bytes else self.shape.wide_exchange

    def _next_slice(self, head: Head, step: int) -> SlicePlan | None:
        """Return the slice that was written longest ago, or never.

        The order of the first round goes to and fro over the hash space, so that no worker writes all of
        its slices in a row.
        """
        if step % self.settings.slice_every or not (head.runs or head.slices):
            return None
        slices = head.slices
        of = next(iter(slices.values())).of if slices else self.settings.slices
        order = (_reversed_bits(n, of.bit_length() - 1) for n in range(len(slices), of))
        number = next((n for n in order if n not in slices), None)
        if number is None:
            number = min(slices, key=lambda n: slices[n].as_of)
        return SlicePlan(number, of, self._undeclared(head), carried(head, number))

    def _undeclared(self, head: Head) -> list[str]:
        """Return the computations of which storage has state that this run's code does not declare."""
        declared = self.shape.identity["computations"]
        return [
            name for name, facts in head.identity["computations"].items()
            if name in declared and set(facts["cells"]) - set(declared[name]["cells"])
        ]  # fmt: skip

    def _try_ended(self, event: TryEnded) -> list[Instruction]:
        pending = self._pending
        assert pending is not None
        result = adopt(pending.plan, self.shape.layers, event.reports)
        if isinstance(result, Conflict):
            return self._again(result.why)
        if isinstance(result, Failure):
            return [Stop("failed", error_of(result))]
        if pending.plan.replays:
            return self._adopted(pending, self._replayed(pending, result), result)
        self._set_pace(result, event.took_us)
        manifest = self._manifest(pending, result, self._head)
        return self._adopted(pending, manifest, result)

    def _adopted(
        self, pending: _Pending, manifest: Manifest, adopted: Adopted
    ) -> list[Instruction]:
        pending.manifest, pending.adopted = manifest, adopted
        return self._hand_out(manifest, adopted) or [self._commit(pending)]

    def _hand_out(self, manifest: Manifest, adopted: Adopted) -> list[Instruction]:
        """Give weak sinks what they get of an adopted step, if there is anything."""
        streams = {sink: self.shape.sinks[sink] for sink in self.shape.weak}
        sinks = [sink for sink, name in streams.items() if adopted.stream_digests.get(name)]
        if not sinks:
            return []
        awaited = [sink for sink in sinks if streams[sink] in adopted.unstaged]
        # One that is behind already is not waited for again: its outputs are staged at once.
        patience = 0 if self._outbox.lagging(awaited) else self.settings.straggler_us
        self._outbox.give(sinks, manifest.step)
        return [HandOut(manifest.step, manifest.origin, adopted, sinks, awaited, patience)]

    def _handed_out(self, late: list[str]) -> list[Instruction]:
        pending = self._pending
        assert pending is not None and pending.adopted is not None
        if not late:
            return [self._commit(pending)]
        streams = sorted({self.shape.sinks[sink] for sink in late})
        return [Checkpoint(pending.plan, pending.adopted, streams)]

    def _checkpointed(self, file: FileRef) -> list[Instruction]:
        """Keep in the outbox what a weak sink has not acknowledged, and go on."""
        pending = self._pending
        assert pending is not None and pending.manifest is not None
        outputs = [*pending.manifest.outputs, file]
        pending.manifest = msgspec.structs.replace(pending.manifest, outputs=outputs)
        return [self._commit(pending)]

    def _commit(self, pending: _Pending) -> Commit:
        assert pending.manifest is not None
        head = self._head
        return Commit(head, self._outbox.noted(head, pending.manifest), pending.adopted)

    def _set_pace(self, adopted: Adopted, took_us: int) -> None:
        """Let live injectors take what a step of the right length can do."""
        taken = [adopted.read_rows[name] for name in self.shape.live if name in adopted.read_rows]
        self._live_rows = next_rows(
            max(taken, default=0), took_us, target_us=self.settings.target_us,
            current=self._live_rows, at_most=self.settings.limit.rows,
        )  # fmt: skip

    def _again(self, why: str) -> list[Instruction]:
        """Abandon the try and run the same step, with the same division, again."""
        pending = self._pending
        assert pending is not None
        tried = pending.plan.try_ + 1
        if tried >= self.settings.max_tries:
            error = TryAbandoned(
                f"step {pending.plan.step} failed {tried} times; the last time: {why}",
                place=f"step {pending.plan.step}, epoch {pending.plan.epoch}",
                remedy="see Spark's log for the cause; nothing was committed, start again to go on",
            )
            return [Stop("failed", error)]
        pending.plan = msgspec.structs.replace(pending.plan, try_=tried)
        return [self._run_of(pending)]

    def _manifest(self, pending: _Pending, adopted: Adopted, head: Head) -> Manifest:
        plan = pending.plan
        after = plan.injectors_after(adopted.seen, self.shape.rules)
        self._check_watermarks(adopted, after, head)
        ended = {
            name: (start, start)
            for name in pending.finals
            for start in [head.positions.get(name, self.shape.injectors[name])]
        }
        manifest = Manifest(
            pipeline=self.shape.name,
            step=plan.step,
            epoch=plan.epoch,
            try_=plan.try_,
            nonce=self._nonce(),
            predecessor=head.digest,
            claim=False,
            clock_us=plan.clock_us,
            seed=plan.seed,
            divisions={
                name: Division(
                    start,
                    end,
                    adopted.read_rows.get(name, 0),
                    adopted.read_digests.get(name, 0),
                    name in pending.finals,
                )
                for name, (start, end) in {**ended, **pending.divisions}.items()
            },
            highest={
                name: max(head.highest.get(name, MIN_TIME), *(of.highest for of in seen.values()))
                for name, seen in adopted.seen.items()
            },
            frontiers={
                name: changed
                for name, of in after.items()
                for changed in [changes(head.frontiers_of(name), of)]
                if changed is not None
            },
            watermarks=adopted.watermarks,
            percentiles=adopted.percentiles if self._has_percentiles else {},
            oldest={
                n: at for n, at in adopted.oldest.items() if at != head.oldest.get(n, MAX_TIME)
            },
            next_wall_timer=adopted.next_wall_timer,
            runs=adopted.runs,
            outputs=adopted.outputs,
            retained=adopted.retained,
            slice=adopted.slice,
            state_digests=adopted.state_digests,
            stream_digests=adopted.stream_digests,
            counts=adopted.counts,
            delivery=pending.intent.step,
            boundary=self._boundary(head),
            cleaned=self._cleaned,
        )
        if plan.step - head.last_base >= self.settings.base_every:
            manifest = msgspec.structs.replace(manifest, base=head)
        return manifest

    @property
    def _has_percentiles(self) -> bool:
        return any(rules.percentile is not None for rules in self.shape.rules.values())

    def _check_watermarks(
        self, adopted: Adopted, after: Mapping[str, Frontiers], head: Head
    ) -> None:
        """Invariant 7: watermarks never go back, and never pass what is still to be worked on."""
        for name, of in after.items():
            ensure(of.low >= head.frontiers_of(name).low, f"the watermark of {name!r} went back")
        for name, (after_in, after_out) in adopted.watermarks.items():
            before_in, before_out = head.watermark_of(name)
            ensure(
                after_out <= adopted.oldest[name], f"the watermark of {name!r} passed pending work"
            )
            ensure(after_in >= before_in, f"the input watermark of {name!r} went back")
            ensure(after_out >= before_out, f"the output watermark of {name!r} went back")
            ensure(after_out <= after_in, f"the output watermark of {name!r} passed its input")

    def _boundary(self, head: Head) -> int:
        """Return the newest base that leaves enough steps readable; older manifests may go."""
        enough = [at for at in head.bases if at <= head.step - self.settings.retain_steps]
        return max([head.boundary, *enough])


def _reversed_bits(number: int, bits: int) -> int:
    """Return a number with its bits in reverse."""
    return int(f"{number:0{bits}b}"[::-1], 2) if bits else 0


def _chain_plan(head: Head, layer: int, worker: int) -> ChainPlan:
    chain = head.chain_of(layer, worker)
    return ChainPlan(chain.digest, chain.recent)


def _seed(
    pipeline: str, starts: dict[str, Any], divisions: dict[str, Any], now_us: int | None
) -> int:
    """Return the step's seed: a function of what it reads, so the same after any number of crashes.

    A step that reads nothing is there for the clock's sake, and takes its seed from that.
    """
    text = msgspec.json.encode([pipeline, starts, divisions, now_us], order="sorted")
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def _line(event: Event) -> str:
    """Return an event for the story that is told when something goes wrong."""
    match event:
        case Committed():
            return f"committed {event.head.step}"
        case TryEnded():
            return f"try ended with {len(event.reports)} reports"
        case TryBroke():
            return f"try broke: {event.why.splitlines()[0] if event.why else ''}"
        case Commanded():
            return f"commanded {event.answer.text}"
        case Offered():
            return f"offered {[n for n, o in event.offers.items() if o]} at {event.now_us}"
        case _:
            return type(event).__name__.lower()
