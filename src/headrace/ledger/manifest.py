"""Manifests: the record that commits a step.

A manifest is a delta. At intervals a manifest carries the sum of all manifests before it, a *base*.
So opening a ledger reads a bounded number of manifests. In storage a manifest is a line of envelope
(format, digest) and a line of JSON. Nothing that is read back is executed, and a person can read
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.errors import ensure
from headrace.eventtime.timestamps import MAX_TIME
from headrace.eventtime.watermark import Frontiers
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Answer
from headrace.ledger.envelope import Sealed
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.ledger.migrations import RecordedMigration
from headrace.ledger.places import Places
from headrace.ledger.records import (
    Backfill,
    Counts,
    Division,
    HeldBy,
    Origin,
    ScheduledStop,
    Seeding,
    Slice,
)
from headrace.ledger.stored_schema import StoredSchema
from headrace.ledger.timing import Timing
from headrace.migration.sharding import LayoutRules
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
        pipeline: name of the pipeline.
        step, epoch, attempt: the step, the epoch of its driver, and the number of the attempt.
        nonce: distinguishes this manifest from any other of the step when a reply was lost. When
            the manifest is sent again, a dot and a number are appended.
        predecessor: digest of the manifest before.
        claim: whether the step is empty and only claims the epoch.
        clock_us, seed: the clock reading of the step, and the seed of its random numbers.
        divisions: the division of the step, by injector.
        starts: in a claim: where injectors start, for those whose start was not recorded before.
        reopened: in a claim: injectors whose input had ended, and goes on.
        caught_up: whether the run ends here because it has read all available input.
        highest, watermarks, percentiles, reached, oldest, next_wall_timer: times after the step;
            see ``Head``.
        frontiers: what is known of injectors after the step; only partitions that changed.
        runs, outputs, retained, slice: exactly the files that the step wrote.
        state_digests, stream_digests: digests of its changes of state and of its productions.
        counts: what each computation did.
        layout, stored_schema: new values, where the step changes them.
        delivery: the number by which sinks know the step's outputs; -1 if it computed nothing.
        released: outputs up to this step had been delivered before this manifest was made.
        delivered: the same for each sink.
        layout_rules: what later layouts keep to from here on; None for no change.
        newest_deliveries: by sink, the id of the newest delivery that it has received.
        waits_for: sinks that the input waits for after this step, because the outbox is full.
        boundary: manifests below this step may be deleted from now on.
        cleaned: files that died up to this step have been deleted.
        base: the sum of all manifests before this one; None in most manifests.
        timing: where the time of the step went; None for a step without an attempt, and from older
            versions.
        answers: the commands that it answers, with their outcome.
        paused: whether the pipeline is paused from here on; None for no change.
        forgotten: computations whose state, counts and watermarks are given up here.
        is_backfill: whether the step read its divisions again, for a backfill and for nothing else.
        backfill: the backfill from here on; None for no change.
        seeding: the computations that are given the rows of their tables from here on; None for no change.
        updates: configuration updates for later steps, published here.
        withdrawn: whether earlier published updates that have not taken effect are withdrawn.
        requested_sizes: (workers, bins) as requested by a claim; None where none were requested.
        migrations: migrations that start here or have changed.
        per_worker: per-worker values from this step on, where they have changed.
        places: the hosts of the workers from here on; None for no change.
        drained_hosts: hosts on which no worker is to run from here on; None for no change.
        uncheckpointed: whether the step is uncheckpointed: state in storage is that of an earlier
            step.
        intent: the input of an uncheckpointed step, so that it can be computed again.
        unstaged: whether sinks receive results of an uncheckpointed step that are in no file.
        scheduled_stop: a stop or pause scheduled after this step or a later one; None for no
            change.
        staged: files with outputs of earlier, uncheckpointed steps. They replace the files that
            these steps had.
        copied: in manifest 0 of a copy: the step that was copied. Until that step is there, the
            copy is unfinished.
        backlog: computations that have left due timers to the next steps; see ``Head``. None for no
            change.
        kept_from: the first step that is kept, for retained streams whose older steps are dropped.
    """

    pipeline: str
    step: StepNumber
    epoch: StepNumber
    attempt: Whole = msgspec.field(name="try_")
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
    stored_schema: StoredSchema | None = msgspec.field(default=None, name="identity")
    released: StepNumber = -1
    boundary: StepNumber = 0
    cleaned: StepNumber = 0
    base: Head | None = None
    timing: Timing | None = None
    answers: list[Answer] = []
    paused: bool | None = None
    forgotten: list[str] = []
    is_backfill: bool = msgspec.field(default=False, name="replays")
    backfill: Backfill | None = msgspec.field(default=None, name="catch_up")
    delivery: StepNumber = -1
    delivered: dict[str, StepNumber] = {}
    waits_for: list[str] = []
    updates: list[Update] = []
    withdrawn: bool = False
    requested_sizes: tuple[Workers, Bins] | None = msgspec.field(default=None, name="asked")
    migrations: list[RecordedMigration] = []
    per_worker: list[HeldBy] = []
    places: Places | None = None
    drained_hosts: list[str] | None = None
    uncheckpointed: bool = msgspec.field(default=False, name="light")
    intent: Intent | None = None
    unstaged: bool = False
    scheduled_stop: ScheduledStop | None = msgspec.field(default=None, name="halt")
    copied: StepNumber = -1
    staged: dict[StepNumber, list[FileRef]] = {}
    starts: dict[str, Any] = {}
    backlog: dict[str, int] | None = None
    kept_from: dict[str, StepNumber] = {}
    reopened: list[str] = []
    caught_up: bool = False
    layout_rules: LayoutRules | None = None
    newest_deliveries: dict[str, StepNumber] = {}
    seeding: Seeding | None = None

    @property
    def has_outputs(self) -> bool:
        """Whether sinks receive results of the step after the commit."""
        return bool(self.outputs) or self.unstaged

    @property
    def origin(self) -> Origin:
        """The origin of its outputs, as sinks see it."""
        positions = {name: (part.start, part.end) for name, part in self.divisions.items()}
        return Origin(self.delivery if self.delivery >= 0 else self.step, positions)


def _check(manifest: Manifest) -> None:
    """Check that a manifest makes sense by itself, whatever wrote it.

    Raises:
        PipelineError, InvariantBroken: when it does not.
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


def _check_head(head: Head, step: int) -> None:
    ensure(head.step == step - 1, "its sum is not of the step before")
    ensure(head.boundary <= step, "its boundary is above its step")
    ensure(head.oldest_manifest <= head.boundary, "manifests above its boundary were deleted")
    ensure(all(at <= head.step for at in head.bases), "a base is above its step")
    ensure(all(at <= head.step for _, at in head.dead), "a file dies at a later step")
    for number, part in head.slices.items():
        ensure(number == part.number, "a slice has another number")
        _check_slice(part, head.step)


def _check_slice(part: Slice, step: int) -> None:
    ensure(part.of & (part.of - 1) == 0, "the number of slices is not a power of two")
    ensure(part.number < part.of, "a slice is not among them")
    ensure(part.as_of <= step, "a slice is of a later step")


MANIFESTS = Sealed("headrace-manifest", Manifest, _check, may_be_followed=True)


MANIFEST_FOLDER = "manifests/"
_MANIFEST = re.compile(rf"{MANIFEST_FOLDER}(\d{{12,18}})")


def manifest_name(step: int) -> str:
    """Return the name of a step's manifest."""
    return f"{MANIFEST_FOLDER}{step:012d}"


def is_manifest(name: str) -> bool:
    """Return whether a name is that of a manifest."""
    return _MANIFEST.fullmatch(name) is not None


def steps_of(names: Iterable[str]) -> list[int]:
    """Return the steps of those names that are names of manifests, in the order of the names."""
    return [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]
