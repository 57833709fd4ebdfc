"""Manifests: the record that commits a step, and the state of the pipeline that they add up to.

A manifest is a delta; every so often one carries the sum so far (a *base*), so that opening a ledger
reads a bounded number of them. In storage a manifest is one line of envelope (format, digest) and
one line of JSON: nothing read back is executed, and a person can read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from headrace.errors import ensure
from headrace.eventtime.timestamps import MAX_TIME
from headrace.eventtime.watermark import Frontiers
from headrace.keyspace.groups import MAX_GROUPS
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Answer
from headrace.ledger.envelope import Sealed
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.ledger.migrations import RecordedMigration
from headrace.ledger.places import Places
from headrace.ledger.records import CatchUp, Counts, Division, HeldBy, Origin, ScheduledStop, Slice
from headrace.ledger.timing import Timing
from headrace.runfiles.format import FileRef
from headrace.storage.bounds import (
    Bins,
    Micros,
    StepNumber,
    Whole,
    Workers,
)


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
    migrations: list[RecordedMigration] = []
    per_worker: list[HeldBy] = []
    places: Places | None = None
    drained_hosts: list[str] | None = None
    light: bool = False
    intent: Intent | None = None
    unstaged: bool = False
    halt: ScheduledStop | None = None
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
