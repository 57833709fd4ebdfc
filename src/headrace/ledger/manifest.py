"""Manifests: the record that commits a step, and the state of the pipeline that they add up to.

A manifest is a delta; every so often one carries the sum so far (a *base*), so that opening a ledger
reads a bounded number of them. In storage a manifest is one line of envelope (format, digest) and
one line of JSON: nothing read back is executed, and a person can read it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from headrace.errors import ensure
from headrace.eventtime.timestamps import LAST_DATE_US, MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import Frontier, Frontiers, changed
from headrace.keyspace.groups import MAX_GROUPS
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.keyspace.updates import Relocated, Update
from headrace.ledger.commands import Answer
from headrace.ledger.envelope import Sealed
from headrace.ledger.intent import Intent
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.migrations import Migration, migrations_after, under_way
from headrace.ledger.places import Places
from headrace.ledger.retained import (
    Mark,
    lowered,
    with_clock,
    with_mark,
    without_old,
    without_old_marks,
)
from headrace.ledger.timing import Timing
from headrace.runfiles.format import FileRef
from headrace.state.per_worker import Held
from headrace.storage.bounds import (
    Bins,
    FileName,
    Micros,
    SliceCount,
    StepNumber,
    Whole,
    WholeOrNot,
    WorkerNumber,
    Workers,
)

T = TypeVar("T")

#: How many links of a chain the plan carries, for soft state that missed some steps.
RECENT_LINKS = 8

#: How many of the newest answers to commands the head remembers.
RECENT_ANSWERS = 64


class Division(msgspec.Struct, frozen=True):
    """What of an injector's input belongs to a step.

    Attributes:
        rows: the records that were read.
        skipped: those that could not be.
    """

    start: Any
    end: Any
    rows: Whole
    digest: int
    final: bool
    skipped: Whole = 0


class Slice(msgspec.Struct, frozen=True):
    """A slice of the hash space, whole as of a step.

    Attributes:
        number, of: which slice, of how many of one size.
        as_of: the step.
        files: the files of that step that hold the slice's rows (and the step's changes).
        nbytes: how many bytes of rows the slice has; -1 in manifests of older versions.
    """

    number: Whole
    of: SliceCount
    as_of: StepNumber
    files: list[FileRef]
    nbytes: WholeOrNot = -1

    @property
    def range(self) -> tuple[int, int]:
        """The hashes (first, last) of the slice."""
        return slice_range(self.number, self.of)


class Counts(msgspec.Struct, frozen=True):
    """What a computation has done: in one step (manifest), or in all (base).

    Attributes:
        duplicates, expired: records that a check of ids dropped: their id was seen; or they were so
            late that it might have been forgotten.
    """

    records: Whole = 0
    late: Whole = 0
    skipped: Whole = 0
    timers: Whole = 0
    produced: Whole = 0
    duplicates: Whole = 0
    expired: Whole = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(
            self.records + other.records,
            self.late + other.late,
            self.skipped + other.skipped,
            self.timers + other.timers,
            self.produced + other.produced,
            self.duplicates + other.duplicates,
            self.expired + other.expired,
        )


#: A link of a chain: (digest before, file, digest after).
Link = tuple[str, FileRef, str]


class Chain(msgspec.Struct, frozen=True):
    """The chain of adopted files of one (layer, worker)."""

    digest: str
    recent: list[Link] = []

    @classmethod
    def of_claim(cls, name: str) -> Chain:
        """Return the chain without files that every chain of a claim begins with."""
        return cls(f"claim-{name}")

    def then(self, run: FileRef) -> Chain:
        """Return the chain with one more link."""
        after = link(self.digest, run)
        return Chain(after, [*self.recent, (self.digest, run, after)][-RECENT_LINKS:])


def link(digest: str, run: FileRef | None) -> str:
    """Return the name of a chain after one more file (or the same name, without a file)."""
    if run is None:
        return digest
    text = f"{digest}/{run.name}/{run.length}/{run.checksum}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class Origin(msgspec.Struct, frozen=True):
    """Where a step's outputs come from, as sinks are told.

    Attributes:
        id: the number that sinks know them by: the step's, as it was when it was first planned.
        positions: (start, end) of what the step read, by injector.
    """

    id: StepNumber
    positions: dict[str, tuple[Any, Any]] = {}


class CatchUp(msgspec.Struct, frozen=True):
    """Computations that read their input again from the start, up to where the pipeline is.

    Attributes:
        names: the computations; without any, they have arrived.
        positions, ended, frontiers: of their injectors, as in the head, but as far as *they* have come.
        retained: up to which step they have read the retained streams that they read; None when it is
            injectors that they read.
    """

    names: list[str]
    positions: dict[str, Any] = {}
    ended: list[str] = []
    frontiers: dict[str, Frontiers] = {}
    retained: StepNumber | None = None


class Halt(msgspec.Struct, frozen=True):
    """What is to be done once a step is committed.

    Attributes:
        kind: ``stop`` or ``pause``; ``none`` takes back what was to be done.
        step: the step, empty ones counted; in force until it is committed.
    """

    kind: Literal["stop", "pause", "none"]
    step: StepNumber


class HeldBy(msgspec.Struct, frozen=True, array_like=True):
    """What a computation holds in a worker from a step on; nothing where the worker is gone."""

    computation: str
    worker: WorkerNumber
    held: Held


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
    migrations: list[Migration] = []
    per_worker: dict[str, dict[WorkerNumber, Held]] = {}
    places: Places = Places()
    drained_hosts: list[str] = []
    checkpoint: StepNumber = -1
    halt: Halt | None = None
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
    def migration(self) -> Migration | None:
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


class Manifest(msgspec.Struct, frozen=True):
    """The record that commits a step.

    Attributes:
        pipeline: whose step it is.
        step, epoch, try_: which one, in whose reign, by which try.
        nonce: tells this manifest from any other of the step, when a reply was lost; with a dot and a
            number when it was sent again.
        predecessor: digest of the manifest before.
        claim: whether the step is empty and only claims the epoch.
        clock_us, seed: what the step took for the time and for chance.
        divisions: what it read.
        starts: of a claim: where injectors begin of which nobody knew that before.
        reopened: of a claim: injectors whose input had ended, and goes on.
        caught_up: whether the run ends here, since all that was there has been read.
        highest, watermarks, percentiles, reached, oldest, next_wall_timer: event time after it.
        frontiers: what has become of the injectors; of their partitions those that changed.
        runs, outputs, retained, slice: the exact files that it made.
        state_digests, stream_digests: what its changes and productions add up to.
        counts: what each computation did.
        layout, identity: new values, when the step changes them.
        delivery: the number that sinks know the step's outputs by; -1 if it computed nothing.
        released: outputs up to this step were delivered before this manifest was made.
        delivered: the same, sink by sink.
        waits_for: sinks for which the input waits after it, because the outbox is full.
        boundary: manifests below it may be deleted from now on.
        cleaned: files that died up to this step were deleted.
        base: the sum of all manifests before this one, now and then.
        timing: how the step went; None for a step without a try, and from older versions.
        answers: what became of the commands that it answers.
        paused: whether the pipeline is paused from here on; None where that does not change.
        forgotten: computations whose state, counts and watermarks are given up here.
        replays: whether its divisions were read again, for those that are catching up, and by them alone.
        catch_up: who is catching up from here on, and how far they are; None where that does not change.
        updates: configuration updates of later steps that are published here.
        withdrawn: whether those that were published before, and have not taken effect, are taken back.
        asked: how many (workers, bins) a claim asked for; None where nobody asked.
        migrations: those that begin here, or of which something has become.
        per_worker: what computations hold in workers from this step on, where that has changed.
        places: where workers live from here on; None where that does not change.
        drained_hosts: those on which nobody is to live from here on; None where that does not change.
        light: whether state is not in storage as of this step, but as of an earlier one.
        intent: what a light step has read, so that it can be computed again.
        unstaged: whether sinks get something of a light step that is in no file.
        halt: what is to be done after a later step, or this one; None where that does not change.
        staged: files of earlier, light steps' outputs, in the place of those that they had.
        copied: in manifest 0 of a copy the step that it was made of; without that it is unfinished.
        backlog: computations that have left due timers for the next steps; see ``Head``. None where that
            does not change.
        kept_from: the first step that is kept, of retained streams of which older ones go.
    """

    pipeline: str
    step: StepNumber
    epoch: StepNumber
    try_: Whole
    nonce: str
    predecessor: str
    claim: bool
    clock_us: Micros
    seed: int
    divisions: dict[str, Division] = {}
    highest: dict[str, Micros] = {}
    frontiers: dict[str, Frontiers] = {}
    watermarks: dict[str, tuple[Micros, Micros]] = {}
    percentiles: dict[str, Micros] = {}
    reached: dict[str, Micros] = {}
    oldest: dict[str, Micros] = {}
    next_wall_timer: Micros = MAX_TIME
    runs: list[FileRef] = []
    outputs: list[FileRef] = []
    retained: list[FileRef] = []
    slice: Slice | None = None
    state_digests: dict[str, int] = {}
    stream_digests: dict[str, tuple[int, int]] = {}
    counts: dict[str, Counts] = {}
    layout: LayoutWire | None = None
    identity: dict[str, Any] | None = None
    released: StepNumber = -1
    boundary: StepNumber = 0
    cleaned: StepNumber = 0
    base: Head | None = None
    timing: Timing | None = None
    answers: list[Answer] = []
    paused: bool | None = None
    forgotten: list[str] = []
    replays: bool = False
    catch_up: CatchUp | None = None
    delivery: StepNumber = -1
    delivered: dict[str, StepNumber] = {}
    waits_for: list[str] = []
    updates: list[Update] = []
    withdrawn: bool = False
    asked: tuple[Workers, Bins] | None = None
    migrations: list[Migration] = []
    per_worker: list[HeldBy] = []
    places: Places | None = None
    drained_hosts: list[str] | None = None
    light: bool = False
    intent: Intent | None = None
    unstaged: bool = False
    halt: Halt | None = None
    copied: StepNumber = -1
    staged: dict[StepNumber, list[FileRef]] = {}
    starts: dict[str, Any] = {}
    backlog: dict[str, int] | None = None
    kept_from: dict[str, StepNumber] = {}
    reopened: list[str] = []
    caught_up: bool = False

    @property
    def has_outputs(self) -> bool:
        """Whether sinks get something of it after the commit."""
        return bool(self.outputs) or self.unstaged

    @property
    def origin(self) -> Origin:
        """Where its outputs come from, as sinks are told."""
        positions = {name: (part.start, part.end) for name, part in self.divisions.items()}
        return Origin(self.delivery if self.delivery >= 0 else self.step, positions)


class _Facts(msgspec.Struct):
    """What the identity of a pipeline says of a computation, as far as readers rely on it."""

    key: list[str]
    cells: dict[str, str]
    group: str | None = None
    shapes: dict[str, Any] = {}


class _Identity(msgspec.Struct):
    """What the identity of a pipeline says, as far as readers rely on it."""

    computations: dict[str, _Facts] = {}
    injectors: dict[str, Any] = {}
    groups: Annotated[list[str], msgspec.Meta(max_length=MAX_GROUPS)] = []
    removed: dict[str, StepNumber] = {}
    void: dict[str, StepNumber] = {}
    retained: dict[str, StepNumber] = {}


def _check(manifest: Manifest) -> None:
    """Check that a manifest makes sense by itself, whoever wrote it.

    Raises:
        PipelineError, InvariantBroken: when it cannot be one.
    """
    step = manifest.step
    ensure(step >= 0, "it is of no step")
    ensure(manifest.boundary <= step, "its boundary is above its step")
    ensure(manifest.cleaned <= step, "files were deleted of steps that are still to come")
    ensure(manifest.released <= step, "outputs were delivered of steps that are still to come")
    layouts = [manifest.layout, *(migration.origin for migration in manifest.migrations)]
    if manifest.base is not None:
        _check_head(manifest.base, step)
        layouts += [manifest.base.layout, *(of.origin for of in manifest.base.migrations)]
    for layout in layouts:
        if layout is not None:
            Layout.from_wire(layout)
    if manifest.slice is not None:
        _check_slice(manifest.slice, step)
    if manifest.identity is not None:
        msgspec.convert(manifest.identity, _Identity)


def _check_head(head: Head, step: int) -> None:
    ensure(head.step == step - 1, "its sum is not of the step before")
    ensure(head.boundary <= step, "its boundary is above its step")
    ensure(all(at <= head.step for at in head.bases), "a base is above its step")
    ensure(all(at <= head.step for _, at in head.dead), "a file dies at a later step")
    for number, part in head.slices.items():
        ensure(number == part.number, "a slice has another number")
        _check_slice(part, head.step)
    msgspec.convert(head.identity, _Identity)


def _check_slice(part: Slice, step: int) -> None:
    ensure(part.of & (part.of - 1) == 0, "the number of slices is no power of two")
    ensure(part.number < part.of, "a slice is none of them")
    ensure(part.as_of <= step, "a slice is of a later step")


MANIFESTS = Sealed("headrace-manifest", Manifest, _check)


MANIFEST_FOLDER = "manifests/"
_MANIFEST = re.compile(rf"{MANIFEST_FOLDER}(\d{{12,18}})")


def manifest_name(step: int) -> str:
    """Return the one name of a step's manifest."""
    return f"{MANIFEST_FOLDER}{step:012d}"


def steps_of(names: Iterable[str]) -> list[int]:
    """Return the steps of those names that are a manifest's, in the order of the names."""
    return [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]


def fold(head: Head | None, manifest: Manifest, digest: str) -> Head:
    """Return the pipeline after a manifest. Pure; the ledger's whole meaning is here."""
    if manifest.base is not None:
        head = manifest.base
    if head is None:
        assert manifest.layout is not None
        head = Head(-1, 0, "", manifest.layout, manifest.identity or {})
    step = manifest.step
    based = manifest.base is not None
    gone = manifest.forgotten
    divisions = {} if manifest.replays else manifest.divisions
    catch_up = head.catch_up if manifest.catch_up is None else manifest.catch_up
    dead = [entry for entry in head.dead if entry[1] > manifest.cleaned]
    retained, old = without_old(head.retained, manifest.kept_from)
    dead += [(file.name, step) for file in old]
    chains = {} if manifest.claim else dict(head.chains)
    clock_before = _before_bases(head.clock_before, manifest, head.clock_us)
    after = msgspec.structs.replace(
        head,
        step=step,
        epoch=manifest.epoch,
        digest=digest,
        asked=head.asked if manifest.asked is None else manifest.asked,
        migrations=list(migrations_after(head.migrations, manifest.migrations)),
        places=_or(manifest.places, head.places),
        drained_hosts=_or(manifest.drained_hosts, head.drained_hosts),
        identity=_retained_since(manifest.identity or head.identity, manifest.kept_from),
        positions={**head.positions, **{n: d.end for n, d in divisions.items()}},
        starts={**manifest.starts, **head.starts},
        ended=sorted(
            {*head.ended, *(n for n, d in divisions.items() if d.final)} - {*manifest.reopened}
        ),
        caught_up=manifest.caught_up,
        highest={**head.highest, **manifest.highest},
        frontiers={**head.frontiers, **_frontiers_after(head, manifest)},
        watermarks=_without({**head.watermarks, **manifest.watermarks}, gone),
        percentiles=_without({**head.percentiles, **manifest.percentiles}, gone),
        reached=_without({**head.reached, **manifest.reached}, gone),
        oldest=_without({**head.oldest, **manifest.oldest}, gone),
        moved=_without({**head.moved, **_moved(head, manifest)}, gone),
        # (a claim may know of timers that nobody looked at: of a computation that is drawn again)
        next_wall_timer=min(head.next_wall_timer, manifest.next_wall_timer)
        if manifest.claim
        else manifest.next_wall_timer,
        released=max(head.released, manifest.released),
        boundary=max(head.boundary, manifest.boundary),
        retained=[*retained, *manifest.retained],
        retained_clocks=_retained_clocks(head, manifest),
        retained_marks=_marks_after(head, manifest),
        counts=_without(_sum_counts(head.counts, manifest.counts), gone),
        skipped={
            **head.skipped,
            **{n: head.skipped.get(n, 0) + d.skipped for n, d in divisions.items() if d.skipped},
        },
        bases=[*(at for at in head.bases if at >= manifest.boundary), *([step] if based else [])],
        delivered={**head.delivered, **manifest.delivered},
        waits_for=manifest.waits_for,
        done=head.done + (manifest.delivery >= 0),
        done_before=_before_bases(head.done_before, manifest, head.done),
        clock_us=max(head.clock_us, manifest.clock_us),
        clock_now=manifest.clock_us or head.clock_now,
        clock_before=clock_before,
        clock_ahead=_ahead(head, clock_before, manifest),
        chains=chains,
        chains_since=_since(manifest) if manifest.claim else head.chains_since,
        commands=head.commands + len(manifest.answers),
        answers=[*head.answers, *manifest.answers][-RECENT_ANSWERS:],
        paused=_paused_after(head, manifest),
        halt=_halt_after(head, manifest),
        catch_up=catch_up if catch_up is not None and catch_up.names else None,
        per_worker=_without(_per_worker_after(head, manifest), gone),
        checkpoint=head.checkpoint if manifest.light else step,
        backlog=_without(_or(manifest.backlog, head.backlog), gone),
    )
    runs = [*head.runs, *manifest.runs]
    for run in manifest.runs:
        at = f"{run.layer}/{run.worker}"
        chains[at] = chains.get(at, after.chain_of(run.layer, run.worker)).then(run)
    unreleased, origins = dict(head.unreleased), dict(head.origins)
    if manifest.has_outputs:
        unreleased[step], origins[step] = manifest.outputs, manifest.origin
    for earlier, files in manifest.staged.items():
        names = {file.name for file in files}
        had = unreleased.get(earlier, [])
        dead += [(file.name, step) for file in had if file.name not in names]
        unreleased[earlier] = files
    for released in [at for at in unreleased if at <= after.released]:
        dead += [(file.name, step) for file in unreleased.pop(released)]
        origins.pop(released, None)
    slices = dict(head.slices)
    replaced: list[FileRef] = []
    if manifest.slice is not None:
        before = slices.get(manifest.slice.number)
        replaced = before.files if before is not None else []
        slices[manifest.slice.number] = manifest.slice
    after = msgspec.structs.replace(
        after, slices=slices, unreleased=unreleased, origins=origins, chains=chains, runs=runs
    )
    floor = after.slices_floor
    after = _with_layout(after, _layout_after(head, manifest).since(floor))
    dead += [(name, step) for name in _without_use(slices, runs, replaced, floor)]
    return msgspec.structs.replace(after, dead=dead, runs=[run for run in runs if run.step > floor])


def _halt_after(head: Head, manifest: Manifest) -> Halt | None:
    """Return what is to be done later: it is over once a step follows the one that it names."""
    halt = head.halt if manifest.halt is None else manifest.halt
    over = halt is None or halt.kind == "none" or halt.step < manifest.step
    return None if over else halt


def _paused_after(head: Head, manifest: Manifest) -> bool:
    halt = _halt_after(head, manifest)
    if halt is not None and halt.kind == "pause" and halt.step == manifest.step:
        return True
    return head.paused if manifest.paused is None else manifest.paused


def _before_bases(known: dict[int, int], manifest: Manifest, now: int) -> dict[int, int]:
    """Return what something was before each base that is retained, after one more manifest."""
    kept = {at: was for at, was in known.items() if at >= manifest.boundary}
    return kept if manifest.base is None else {**kept, manifest.step: now}


def _ahead(head: Head, readings: dict[int, int], manifest: Manifest) -> dict[int, int]:
    """Return of which bases the reading is in the future, and since which reading that is known.

    Args:
        head: what was known before.
        readings: the highest reading before each base that is retained.
        manifest: the newest one.
    """
    known, now = head.clock_ahead, manifest.clock_us
    if not now:
        return {base: since for base, since in known.items() if base in readings}
    if manifest.base is not None and head.clock_now:
        known = {**known, manifest.step: head.clock_now}
    return {
        base: min(known.get(base, now), now) for base, reading in readings.items() if reading > now
    }


def _per_worker_after(head: Head, manifest: Manifest) -> dict[str, dict[int, Held]]:
    if not manifest.per_worker:
        return head.per_worker
    after = {name: dict(of) for name, of in head.per_worker.items()}
    for change in manifest.per_worker:
        of = after.setdefault(change.computation, {})
        of.pop(change.worker, None)
        if change.held.values:
            of[change.worker] = change.held
    return after


def _layout_after(head: Head, manifest: Manifest) -> LayoutNow:
    """Return the layout that is in force after a manifest: published updates count from their step on."""
    before = head.layout_now
    if manifest.layout is not None:
        return before.begun_with(manifest.layout, manifest.step)
    in_force = before.at(manifest.step)
    return in_force.with_published(manifest.updates, manifest.withdrawn)


def _with_layout(head: Head, now: LayoutNow) -> Head:
    return msgspec.structs.replace(
        head, layout=now.wire, lineage=now.lineage, layout_version=now.version,
        relocated=now.relocated, updates=now.updates,
    )  # fmt: skip


def _frontiers_after(head: Head, manifest: Manifest) -> dict[str, Frontiers]:
    return {
        name: changed(head.frontiers_of(name), after) for name, after in manifest.frontiers.items()
    }


def _retained_since(identity: dict[str, Any], kept_from: dict[str, int]) -> dict[str, Any]:
    """Return the identity after the oldest of some retained streams has gone."""
    if not kept_from:
        return identity
    since = {n: max(at, kept_from.get(n, 0)) for n, at in identity.get("retained", {}).items()}
    return {**identity, "retained": since}


def _retained_clocks(head: Head, manifest: Manifest) -> list[tuple[int, int]]:
    """Return the noted clock readings; one more with each base, while something is retained."""
    if manifest.base is None or not head.identity.get("retained"):
        return head.retained_clocks
    clocks = with_clock(head.retained_clocks, manifest.step, manifest.clock_us)
    oldest = min(head.identity["retained"].values())
    return [at for n, at in enumerate(clocks) if at[0] >= oldest or n == len(clocks) - 1]


def _marks_after(head: Head, manifest: Manifest) -> list[Mark]:
    streams = head.identity.get("retained", {})
    if not streams:
        return head.retained_marks
    marks = head.retained_marks
    if manifest.claim:  # (it has none, unless an end is taken back)
        marks = lowered(marks, {name: out for name, (_, out) in manifest.watermarks.items()})
    if manifest.kept_from:
        since = _retained_since(head.identity, manifest.kept_from)["retained"].values()
        marks = without_old_marks(marks, min(since))
    return with_mark(
        marks, manifest.step, streams, watermarks=manifest.watermarks,
        percentiles=manifest.percentiles,
    )  # fmt: skip


def _moved(head: Head, manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Return when the watermarks that this step moved have moved: now."""
    moved = [
        name
        for name, after in manifest.frontiers.items()
        if after.low > head.frontiers_of(name).low
    ]
    moved += [
        name for name, (_, out) in manifest.watermarks.items() if out > head.watermark_of(name)[1]
    ]
    return dict.fromkeys(moved, (manifest.step, manifest.clock_us))


def _without_use(
    slices: dict[int, Slice], runs: list[FileRef], replaced: list[FileRef], floor: int
) -> list[str]:
    """Return the files that are needed no more: neither for their changes nor for their slice.

    Args:
        slices: as they are now.
        runs: those whose changes were needed before.
        replaced: files of the slice that has just been replaced.
        floor: up to this step, changes are needed no more.
    """
    merged = [run for run in runs if run.step <= floor]
    steps = {run.step for run in merged}
    holding = {file.name for part in slices.values() if part.as_of in steps for file in part.files}
    done = [run.name for run in merged if run.name not in holding]
    return done + [file.name for file in replaced if file.step <= floor and file.name not in done]


def _or(changed: T | None, before: T) -> T:
    return before if changed is None else changed


def _without(by_name: dict[str, T], names: list[str]) -> dict[str, T]:
    return {name: value for name, value in by_name.items() if name not in names}


def _since(manifest: Manifest) -> str:
    return f"{manifest.step}-{manifest.epoch}-{manifest.nonce}"


def _sum_counts(before: dict[str, Counts], more: dict[str, Counts]) -> dict[str, Counts]:
    return {**before, **{name: before.get(name, Counts()).plus(c) for name, c in more.items()}}


def slice_range(number: int, of: int) -> tuple[int, int]:
    """Return the hashes (first, last) of a slice of so many (a power of two)."""
    width = 2**64 // of
    return number * width, (number + 1) * width - 1
