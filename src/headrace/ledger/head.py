"""The head: everything that the manifests up to one step add up to."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.computation.per_worker import Held
from headrace.eventtime.timestamps import LAST_DATE_US, MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import Frontier, Frontiers
from headrace.keyspace.layout import LayoutWire
from headrace.keyspace.updates import Relocated, Update
from headrace.ledger.commands import Answer
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.migrations import RecordedMigration, under_way
from headrace.ledger.places import Places
from headrace.ledger.records import CatchUp, Chain, Counts, Origin, ScheduledStop, Slice
from headrace.ledger.retained import (
    Mark,
)
from headrace.runfiles.format import FileRef
from headrace.storage.bounds import (
    Bins,
    FileName,
    Micros,
    StepNumber,
    Whole,
    WorkerNumber,
    Workers,
)

#: How many of the newest answers to commands the head remembers.
RECENT_ANSWERS = 64


class Head(msgspec.Struct, frozen=True):
    """The pipeline as of a committed step: the sum of all manifests up to it.

    Attributes:
        step, epoch: of the newest manifest.
        digest: of the newest manifest; the next one names it as its predecessor.
        layout: bins and owners.
        identity: what the pipeline's durable data depends on.
        positions: how far each injector was read.
        starts: where each injector began, by the claim that knew it first. (Those that an older version
            began are missing.)
        ended: injectors whose input has ended.
        highest: highest event time seen, by injector.
        frontiers: what is known of each injector, and the watermarks that it has reached.
        watermarks: (input, output), by computation.
        percentiles: the percentile watermark of what a computation produces, where it has one.
        reached: of computations whose input has ended, the event time up to which they have worked it off:
            what would be their watermark without the end, but not before any event timer that the end
            has fired. What comes later is late by this.
        oldest: the lowest event time of a computation's work that is still to be done, or a bound below.
        moved: when each injector's and computation's watermark last moved: (step, clock reading).
        next_wall_timer: the lowest pending wall timer, or a bound below it.
        runs: files of steps that some slice still needs, ascending.
        slices: the newest whole content of each slice.
        chains: adopted files by ``"layer/worker"``.
        unreleased: staged outputs that some sink has not been seen to receive, by step.
        origins: where they come from, by step.
        retained: files of retained productions.
        retained_marks: the watermarks of what was retained, as of each step that moved one.
        dead: (file, step since which no manifest needs it).
        released: every output up to this step has been delivered.
        delivered: up to which step each sink has received its outputs.
        waits_for: sinks for which the input waits since the step, because the outbox is full.
        boundary: manifests below it may be gone.
        counts: what each computation has done so far.
        skipped: how many records each injector's source could not read so far, where there were any.
        bases: the steps of the bases that are retained, ascending.
        done: how many steps have computed something.
        done_before: how many had, before each retained base.
        chains_since: names the manifest that all chains begin with, never the same for another.
        commands: how many commands were answered, so the number of the next one.
        answers: the newest answers.
        paused: whether no step is to be run until a command says so.
        catch_up: computations that are still behind the others, and how far they are.
        lineage, layout_version, relocated, updates: where the layout comes from, and what is published for
            later steps; see ``LayoutNow``.
        asked: how many (workers, bins) the newest claim asked for that asked for any.
        migrations: those under way, and the newest that have ended.
        per_worker: what computations hold in workers: by computation, by worker.
        places: where workers lived when that was noted last; results do not depend on it.
        drained_hosts: those on which nobody is to live.
        checkpoint: the newest step as of which state is in storage; what light steps have changed since
            is computed again by whoever takes over.
        halt: a stop or a pause after a step that is not committed yet, or is the newest.
        clock_us: the highest clock reading of a step so far.
        clock_now: the newest one.
        clock_before: what the highest was before each retained base.
        clock_ahead: of those bases whose reading is later than the newest one: since which reading that
            is known. A clock was wrong, or is; while that is so, the base's age counts from then.
        backlog: computations that have left due timers for the next steps, and how many portions of them
            each has fired since its input ended.
        retained_clocks: (step, clock reading) of some steps, by which retained productions grow old.
        caught_up: whether the newest run has ended since all that was there had been read.
    """

    step: StepNumber
    epoch: StepNumber
    digest: str
    layout: LayoutWire
    identity: dict[str, Any]
    positions: dict[str, Any] = {}
    ended: list[str] = []
    highest: dict[str, Micros] = {}
    frontiers: dict[str, Frontiers] = {}
    watermarks: dict[str, tuple[Micros, Micros]] = {}
    percentiles: dict[str, Micros] = {}
    reached: dict[str, Micros] = {}
    oldest: dict[str, Micros] = {}
    moved: dict[str, tuple[StepNumber, Micros]] = {}
    next_wall_timer: Micros = MAX_TIME
    runs: list[FileRef] = []
    slices: dict[Whole, Slice] = {}
    chains: dict[str, Chain] = {}
    unreleased: dict[StepNumber, list[FileRef]] = {}
    retained: list[FileRef] = []
    dead: list[tuple[FileName, StepNumber]] = []
    released: StepNumber = -1
    boundary: StepNumber = 0
    counts: dict[str, Counts] = {}
    bases: list[StepNumber] = []
    chains_since: str = ""
    origins: dict[StepNumber, Origin] = {}
    delivered: dict[str, StepNumber] = {}
    waits_for: list[str] = []
    done: Whole = 0
    done_before: dict[StepNumber, Whole] = {}
    commands: Whole = 0
    answers: list[Answer] = []
    paused: bool = False
    catch_up: CatchUp | None = None
    retained_marks: list[Mark] = []
    lineage: str = ""
    layout_version: Whole = 0
    relocated: list[Relocated] = []
    updates: list[Update] = []
    asked: tuple[Workers, Bins] = (0, 0)
    migrations: list[RecordedMigration] = []
    per_worker: dict[str, dict[WorkerNumber, Held]] = {}
    places: Places = Places()
    drained_hosts: list[str] = []
    checkpoint: StepNumber = -1
    halt: ScheduledStop | None = None
    clock_us: Micros = 0
    clock_before: dict[StepNumber, Micros] = {}
    clock_ahead: dict[StepNumber, Micros] = {}
    clock_now: Micros = 0
    starts: dict[str, Any] = {}
    backlog: dict[str, int] = {}
    retained_clocks: list[tuple[StepNumber, int]] = []
    caught_up: bool = False
    skipped: dict[str, Whole] = {}

    @property
    def stops_here(self) -> bool:
        """Whether a stop was asked for after this very step."""
        halt = self.halt
        return halt is not None and halt.kind == "stop" and halt.step <= self.step

    @property
    def brought_to_storage(self) -> Head:
        """The same, as it will be once all of its state is in storage."""
        return msgspec.structs.replace(self, checkpoint=self.step)

    @property
    def is_behind(self) -> bool:
        """Whether there is something that is not in storage yet, though committed."""
        return self.checkpoint < self.step

    @property
    def layout_now(self) -> LayoutNow:
        """The layout in force, and where it comes from."""
        return LayoutNow(
            self.layout, self.lineage, self.layout_version, self.relocated, self.updates
        )

    @property
    def migration(self) -> RecordedMigration | None:
        """The migration that is under way; others may be queued behind it."""
        return under_way(self.migrations)

    @property
    def resting(self) -> list[str]:
        """The computations that do not work in ordinary steps, since they are still behind."""
        return [] if self.catch_up is None else self.catch_up.names

    def as_of_catch_up(self) -> Head:
        """Return the pipeline as those see it that are catching up: their injectors as far as they are.

        (There may be none: who began a step of it may have been removed before that was committed.)
        """
        at = self.catch_up or CatchUp([])
        return msgspec.structs.replace(
            self, positions=at.positions, ended=at.ended, frontiers=at.frontiers, highest={}
        )

    @property
    def last_base(self) -> int:
        """The step of the newest base; 0 before there is one."""
        return self.bases[-1] if self.bases else 0

    @property
    def settled(self) -> int:
        """How many steps have computed something below the boundary: their intents may go."""
        return self.done_before.get(self.boundary, 0)

    def origin_of(self, step: int) -> Origin:
        """Return where the outputs of an unreleased step come from."""
        return self.origins.get(step) or Origin(step)

    def watermark_of(self, node: str) -> tuple[int, int]:
        """Return input and output watermark of a computation."""
        return self.watermarks.get(node, (MIN_TIME, MIN_TIME))

    @property
    def latest(self) -> int:
        """The latest event time that the pipeline has worked with; ``MIN_TIME`` before there is one.

        (It is that of a record, of a timer that the end has fired, or of an injector's watermark.)
        """
        times = [*self.highest.values(), *self.reached.values()]
        times += [part.highest for of in self.frontiers.values() for part in of.parts.values()]
        times += [at for of in self.frontiers.values() for at in (of.low, of.reached)]
        return max([at for at in times if at <= LAST_DATE_US], default=MIN_TIME)

    def reached_by(self, node: str) -> int:
        """Return up to which event time a computation has worked off its input, ended or not."""
        after_in, _ = self.watermark_of(node)
        if after_in < MAX_TIME:
            return after_in
        reached = self.reached.get(node)
        return self.latest if reached is None else reached  # (older versions noted none)

    def frontiers_of(self, injector: str) -> Frontiers:
        """Return what is known of an injector."""
        known = self.frontiers.get(injector)
        if known is not None:
            return known
        highest = self.highest.get(injector)  # all that manifests of older versions say
        return Frontiers() if highest is None else Frontiers({"": Frontier(highest)})

    def chain_of(self, layer: int, worker: int) -> Chain:
        """Return the chain of a (layer, worker); it begins with the newest claim.

        (Not with a layout, nor a pipeline's layers: those may come back, and then what a process
        remembers of their first time would pass for the state of their second.)
        """
        return self.chains.get(f"{layer}/{worker}") or Chain.of_claim(self.chains_since)

    @property
    def slices_floor(self) -> int:
        """The newest step whose changes, and all before, are in slices; -1 for none."""
        if not self.slices or len(self.slices) < next(iter(self.slices.values())).of:
            return -1
        return min(part.as_of for part in self.slices.values())
