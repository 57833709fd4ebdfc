"""The head: what all manifests up to one step add up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.computation.per_worker import Held
from headrace.eventtime.timestamps import LAST_DATE_US, MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import Frontier, Frontiers
from headrace.keyspace.layout import LayoutWire
from headrace.keyspace.updates import Relocated, Update
from headrace.ledger.commands import Answer
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.migrations import Moment, RecordedMigration, under_way
from headrace.ledger.places import Places
from headrace.ledger.records import Backfill, Chain, Counts, Origin, ScheduledStop, Seeding, Slice
from headrace.ledger.retained import (
    Mark,
)
from headrace.ledger.stored_schema import StoredSchema
from headrace.migration.sharding import LayoutRules
from headrace.runfiles.format import FileRef
from headrace.storage.bounds import (
    Bins,
    Micros,
    PlaceName,
    StepNumber,
    Whole,
    WorkerNumber,
    Workers,
)

#: How many of the newest answers to commands the head keeps.
RECENT_ANSWERS = 64


class Head(msgspec.Struct, frozen=True):
    """The pipeline as of a committed step: the sum of all manifests up to it.

    Attributes:
        step, epoch: of the newest manifest.
        digest: of the newest manifest. The next manifest names it as its predecessor.
        layout: the bins and their owners.
        stored_schema: what the pipeline's durable data depends on.
        positions: how far each injector has been read.
        starts: where each injector started, as recorded by the first claim that knew it. Starts
            recorded by no claim, because an older version began them, are missing.
        ended: injectors whose input has ended.
        highest: the highest event time seen, by injector.
        frontiers: what is known of each injector's partitions, and the watermarks it has reached.
        watermarks: (input, output) watermarks, by computation.
        percentiles: the percentile watermark of a computation's output, where it has one.
        reached: for computations whose input has ended: the event time up to which they have
            processed it. It is the watermark they would have without the end, or the latest event
            timer that the end has fired, if that is later. It decides which later records are late.
        oldest: the lowest event time of a computation's pending work, or a lower bound of it.
        moved: when the watermark of each injector and computation last moved: (step, clock
            reading).
        next_wall_timer: the earliest pending wall timer, or a lower bound of it.
        runs: files whose changes some slice still needs, in ascending order of steps.
        slices: the newest whole content of each slice.
        chains: the chains of adopted files, by ``"layer/worker"``.
        unreleased: staged outputs that some sink is not known to have received, by step.
        origins: the origins of these outputs, by step.
        retained: files of retained productions.
        retained_marks: the watermarks of the retained streams' producers, for each step that moved
            one of them.
        dead: (file, the step since which no manifest needs it). For a packed file, the file is its
            manifest, which may hold others that are needed.
        released: every output up to this step has been delivered.
        delivered: the step up to which each sink has received its outputs.
        newest_deliveries: by sink, the id of the newest delivery that it has received. A sink is
            missing if it has received none, or none since this is recorded.
        waits_for: sinks that the input waits for since this step, because the outbox is full.
        boundary: of steps below this one, something may have been deleted.
        oldest_manifest: manifests below this step may have been deleted. It is the boundary, or
            lower if packed files are still needed; -1 in bases of older versions.
        counts: what each computation has done so far.
        skipped: how many records the source of each injector could not read so far, if any.
        waiting: how many records waited behind those that were read last, by injector, where the
            source knows that.
        read: how many records of each injector have been read so far, without those that a backfill
            read again. Injectors that an older version began to read are left out.
        behind_since: since when each sink lacks the results of more steps than is usual, without
            interruption; sinks that do not are left out.
        waits_since: the same for ``waits_for``.
        bases: the steps of the retained bases, ascending.
        done: how many steps have computed something.
        done_before: how many had done so before each base whose manifest is there.
        chains_since: names the claim with which all chains start. No two claims have the same name.
        commands: how many commands have been answered; also the number of the next one.
        answers: the newest answers.
        paused: whether no steps run until a command resumes the pipeline.
        backfill: the backfill in progress: which computations, and how far they are.
        seeding: the computations that are being given the rows of their tables; None if none are.
        lineage, layout_version, relocated, updates: the history of the layout, and the updates
            published for later steps; see ``LayoutNow``.
        requested_sizes: (workers, bins) as requested by the newest claim that requested any.
        migrations: those queued or under way, and the newest that have ended.
        layout_rules: what later layouts keep to: drained workers, and the way of sharding.
        per_worker: the per-worker values of computations: by computation, by worker.
        places: the hosts of the workers when last recorded. Results do not depend on them.
        drained_hosts: hosts on which no worker is to run.
        checkpoint: the newest step as of which all state is in storage. The changes of later,
            uncheckpointed steps are computed again by the driver that takes over.
        scheduled_stop: a stop or pause scheduled after a later step, or after this one.
        clock_us: the highest clock reading of any step so far.
        clock_now: the newest clock reading.
        clock_before: the highest clock reading before each retained base.
        clock_ahead: for those bases whose reading is later than the newest one: the reading at
            which that was noticed. A clock is wrong, or was. Meanwhile the base's age counts from
            that reading.
        backlog: computations that have left due timers to the next steps, and how many portions of
            them each has fired since its input ended.
        retained_clocks: (step, clock reading) of some steps, from which the age of retained
            productions follows.
        caught_up: whether the newest run has ended because it had read all available input.
    """

    step: StepNumber
    epoch: StepNumber
    digest: str
    layout: LayoutWire
    stored_schema: StoredSchema = msgspec.field(name="identity")
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
    dead: list[tuple[PlaceName, StepNumber]] = []
    released: StepNumber = -1
    boundary: StepNumber = 0
    oldest_manifest: StepNumber = -1
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
    backfill: Backfill | None = msgspec.field(default=None, name="catch_up")
    retained_marks: list[Mark] = []
    lineage: str = ""
    layout_version: Whole = 0
    relocated: list[Relocated] = []
    updates: list[Update] = []
    requested_sizes: tuple[Workers, Bins] = msgspec.field(default=(0, 0), name="asked")
    migrations: list[RecordedMigration] = []
    per_worker: dict[str, dict[WorkerNumber, Held]] = {}
    places: Places = Places()
    drained_hosts: list[str] = []
    checkpoint: StepNumber = -1
    scheduled_stop: ScheduledStop | None = msgspec.field(default=None, name="halt")
    clock_us: Micros = 0
    clock_before: dict[StepNumber, Micros] = {}
    clock_ahead: dict[StepNumber, Micros] = {}
    clock_now: Micros = 0
    starts: dict[str, Any] = {}
    backlog: dict[str, int] = {}
    retained_clocks: list[tuple[StepNumber, int]] = []
    caught_up: bool = False
    layout_rules: LayoutRules = LayoutRules()
    newest_deliveries: dict[str, StepNumber] = {}
    skipped: dict[str, Whole] = {}
    waiting: dict[str, Whole] = {}
    read: dict[str, Whole] = {}
    behind_since: dict[str, Moment] = {}
    waits_since: dict[str, Moment] = {}
    seeding: Seeding | None = None

    @property
    def stops_here(self) -> bool:
        """Whether a stop is scheduled after this step or an earlier one."""
        scheduled_stop = self.scheduled_stop
        return (
            scheduled_stop is not None
            and scheduled_stop.kind == "stop"
            and scheduled_stop.step <= self.step
        )

    @property
    def made_durable(self) -> Head:
        """This head as it will be once all of its state is in storage."""
        return msgspec.structs.replace(self, checkpoint=self.step)

    @property
    def is_behind(self) -> bool:
        """Whether the state of some committed steps is not in storage yet."""
        return self.checkpoint < self.step

    @property
    def layout_now(self) -> LayoutNow:
        """The layout in force, with its history and the updates published for later steps."""
        return LayoutNow(
            self.layout, self.lineage, self.layout_version, self.relocated, self.updates
        )

    @property
    def migration(self) -> RecordedMigration | None:
        """The migration that is under way. Others may be queued behind it."""
        return under_way(self.migrations)

    @property
    def backfilling(self) -> list[str]:
        """The computations that ordinary steps leave out until their backfill is done."""
        return [] if self.backfill is None else self.backfill.names

    @property
    def seeded(self) -> list[str]:
        """The computations that do not have all rows of their tables yet."""
        return [] if self.seeding is None else self.seeding.names

    @property
    def incomplete(self) -> list[str]:
        """The computations that lack something of what came before them."""
        return [*self.backfilling, *self.seeded]

    def as_of_backfill(self) -> Head:
        """Return the head as a backfill sees it: with injectors as far as it has read them.

        There may be no backfill any more: a step of it may have been planned before its
        computations were removed.
        """
        at = self.backfill or Backfill([])
        return msgspec.structs.replace(
            self, positions=at.positions, ended=at.ended, frontiers=at.frontiers, highest={}
        )

    @property
    def last_base(self) -> int:
        """The step of the newest base; 0 before the first one."""
        return self.bases[-1] if self.bases else 0

    @property
    def settled(self) -> int:
        """How many steps below the oldest manifest computed something. Their intents may go."""
        below = [at for at in self.done_before if at <= self.oldest_manifest]
        return self.done_before[max(below)] if below else 0

    @property
    def files(self) -> Iterator[FileRef]:
        """All files that the head needs: of state, staged outputs and retained productions."""
        yield from self.runs
        for part in self.slices.values():
            yield from part.files
        for files in self.unreleased.values():
            yield from files
        yield from self.retained

    def origin_of(self, step: int) -> Origin:
        """Return the origin of the outputs of an unreleased step."""
        return self.origins.get(step) or Origin(step)

    def watermark_of(self, node: str) -> tuple[int, int]:
        """Return the input and the output watermark of a computation."""
        return self.watermarks.get(node, (MIN_TIME, MIN_TIME))

    @property
    def latest(self) -> int:
        """The latest event time that the pipeline has worked with; at first ``MIN_TIME``.

        It is that of a record, of a timer that the end has fired, or of an injector's watermark.
        """
        times = [*self.highest.values(), *self.reached.values()]
        times += [part.highest for of in self.frontiers.values() for part in of.parts.values()]
        times += [at for of in self.frontiers.values() for at in (of.low, of.reached)]
        return max([at for at in times if at <= LAST_DATE_US], default=MIN_TIME)

    def reached_by(self, node: str) -> int:
        """Return the event time up to which a computation has processed its input, ended or not."""
        after_in, _ = self.watermark_of(node)
        if after_in < MAX_TIME:
            return after_in
        reached = self.reached.get(node)
        return self.latest if reached is None else reached  # (older versions recorded none)

    def frontiers_of(self, injector: str) -> Frontiers:
        """Return what is known of an injector's partitions."""
        known = self.frontiers.get(injector)
        if known is not None:
            return known
        highest = self.highest.get(injector)  # all that manifests of older versions record
        return Frontiers() if highest is None else Frontiers({"": Frontier(highest)})

    def chain_of(self, layer: int, worker: int) -> Chain:
        """Return the chain of a (layer, worker), which starts with the newest claim.

        It does not start with a layout or with the layers of a pipeline. Those may come back, and
        then soft state that a process kept from the first time would be taken for that of the
        second.
        """
        return self.chains.get(f"{layer}/{worker}") or Chain.of_claim(self.chains_since)

    @property
    def slices_floor(self) -> int:
        """The newest step whose changes, like all earlier ones, are in slices; -1 for none."""
        if not self.slices or len(self.slices) < next(iter(self.slices.values())).of:
            return -1
        return min(part.as_of for part in self.slices.values())
