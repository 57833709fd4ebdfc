"""Folding: how a manifest changes the head before it."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeVar

import msgspec

from headrace.computation.per_worker import Held
from headrace.eventtime.watermark import Frontiers, changed
from headrace.ledger.commands import Answer
from headrace.ledger.head import RECENT_ANSWERS, Head
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.manifest import Manifest, is_manifest, steps_of
from headrace.ledger.migrations import Moment, migrations_after
from headrace.ledger.records import Chain, Counts, Division, Origin, ScheduledStop, Slice, sums
from headrace.ledger.retained import (
    Mark,
    lowered,
    with_clock,
    with_mark,
    without_old,
    without_old_marks,
)
from headrace.ledger.stored_schema import StoredSchema
from headrace.runfiles.format import FileRef

T = TypeVar("T")
#: A sink is behind if it lacks the results of more than this many steps. It lacks those of the
#: newest one always, and often those of the one before, since the next manifest notes deliveries.
USUALLY_BEHIND = 2


def fold(head: Head | None, manifest: Manifest, digest: str) -> Head:
    """Return the head after a manifest. Pure. It defines what manifests mean."""
    head = _head_before(head, manifest)
    after = msgspec.structs.replace(
        head,
        step=manifest.step,
        epoch=manifest.epoch,
        digest=digest,
        boundary=max(head.boundary, manifest.boundary),
        released=max(head.released, manifest.released),
        checkpoint=head.checkpoint if manifest.uncheckpointed else manifest.step,
        bases=[*(at for at in head.bases if at >= manifest.boundary), *_own_base(manifest)],
        **_inputs_after(head, manifest),
        **_watermarks_after(head, manifest),
        **_clocks_after(head, manifest),
        **_control_after(head, manifest),
        **_computations_after(head, manifest),
        **_deliveries_after(head, manifest),
        **_chains_before(head, manifest),
    )
    return _files_after(head, after, manifest)


def _head_before(head: Head | None, manifest: Manifest) -> Head:
    """Return the head that a manifest changes.

    This is the manifest's own base if it has one. The first manifest changes an empty head.
    """
    if manifest.base is not None:
        return manifest.base
    if head is not None:
        return head
    assert manifest.layout is not None
    return Head(-1, 0, "", manifest.layout, manifest.stored_schema or {})


def _own_base(manifest: Manifest) -> list[int]:
    return [] if manifest.base is None else [manifest.step]


def _inputs_after(head: Head, manifest: Manifest) -> dict[str, Any]:
    """Return how far the injectors have been read."""
    divisions = {} if manifest.is_backfill else manifest.divisions
    final = {name for name, division in divisions.items() if division.final}
    skipped = {name: division.skipped for name, division in divisions.items() if division.skipped}
    backfill = head.backfill if manifest.backfill is None else manifest.backfill
    seeding = _or(manifest.seeding, head.seeding)
    return {
        "positions": {**head.positions, **{name: d.end for name, d in divisions.items()}},
        "starts": {**manifest.starts, **head.starts},
        "ended": sorted({*head.ended, *final} - {*manifest.reopened}),
        "caught_up": manifest.caught_up,
        "highest": {**head.highest, **manifest.highest},
        "frontiers": {**head.frontiers, **_frontiers_after(head, manifest)},
        "skipped": sums(head.skipped, skipped),
        "read": _read_after(head, divisions),
        "waiting": {
            **head.waiting,
            **{
                name: division.waiting
                for name, division in divisions.items()
                if division.waiting >= 0
            },
        },
        "backfill": backfill if backfill is not None and backfill.names else None,
        "seeding": seeding if seeding is not None and seeding.names else None,
    }


def _read_after(head: Head, divisions: dict[str, Division]) -> dict[str, int]:
    """Return how many records were read of each injector.

    Of an injector that was read before and is not counted, an older version has read an unknown
    number.
    """
    counted = {
        name: head.read.get(name, 0) + division.rows
        for name, division in divisions.items()
        if name in head.read or name not in head.positions
    }
    return {**head.read, **counted}


def _watermarks_after(head: Head, manifest: Manifest) -> dict[str, Any]:
    gone = manifest.forgotten
    return {
        "watermarks": _without({**head.watermarks, **manifest.watermarks}, gone),
        "percentiles": _without({**head.percentiles, **manifest.percentiles}, gone),
        "reached": _without({**head.reached, **manifest.reached}, gone),
        "oldest": _without({**head.oldest, **manifest.oldest}, gone),
        "moved": _without({**head.moved, **_moved(head, manifest)}, gone),
    }


def _clocks_after(head: Head, manifest: Manifest) -> dict[str, Any]:
    clock_before = _before_bases(head.clock_before, manifest, head.clock_us)
    next_wall_timer = manifest.next_wall_timer
    if manifest.claim:
        # A claim may know of timers that have not been looked at: those of a computation added
        # again.
        next_wall_timer = min(head.next_wall_timer, next_wall_timer)
    return {
        "next_wall_timer": next_wall_timer,
        "clock_us": max(head.clock_us, manifest.clock_us),
        "clock_now": manifest.clock_us or head.clock_now,
        "clock_before": clock_before,
        "clock_ahead": _ahead(head, clock_before, manifest),
    }


def _control_after(head: Head, manifest: Manifest) -> dict[str, Any]:
    """Return what commands have changed, and which of them have been answered."""
    return {
        "requested_sizes": head.requested_sizes
        if manifest.requested_sizes is None
        else manifest.requested_sizes,
        "migrations": list(migrations_after(head.migrations, manifest.migrations)),
        "places": _or(manifest.places, head.places),
        "drained_hosts": _or(manifest.drained_hosts, head.drained_hosts),
        "commands": head.commands + len(manifest.answers),
        "answers": [*head.answers, *_dated(manifest, head)][-RECENT_ANSWERS:],
        "paused": _paused_after(head, manifest),
        "scheduled_stop": _scheduled_stop_after(head, manifest),
        "layout_rules": _or(manifest.layout_rules, head.layout_rules),
    }


def _dated(manifest: Manifest, head: Head) -> list[Answer]:
    """Return the answers of a manifest, with its clock reading."""
    at_us = manifest.clock_us or head.clock_us
    return [msgspec.structs.replace(answer, clock_us=at_us) for answer in manifest.answers]


def _computations_after(head: Head, manifest: Manifest) -> dict[str, Any]:
    gone = manifest.forgotten
    return {
        "stored_schema": _retained_since(
            manifest.stored_schema or head.stored_schema, manifest.kept_from
        ),
        "counts": _without(_sum_counts(head.counts, manifest.counts), gone),
        "per_worker": _without(_per_worker_after(head, manifest), gone),
        "backlog": _without(_or(manifest.backlog, head.backlog), gone),
    }


def _deliveries_after(head: Head, manifest: Manifest) -> dict[str, Any]:
    """Return what has been delivered, and the clocks and marks of what is retained."""
    return {
        "delivered": {**head.delivered, **manifest.delivered},
        "newest_deliveries": {**head.newest_deliveries, **manifest.newest_deliveries},
        "waits_for": manifest.waits_for,
        "waits_since": _since_when(head.waits_since, manifest.waits_for, manifest, head),
        "done": head.done + (manifest.delivery >= 0),
        "done_before": head.done_before
        if manifest.base is None
        else {**head.done_before, manifest.step: head.done},
        "retained_clocks": _retained_clocks(head, manifest),
        "retained_marks": _marks_after(head, manifest),
    }


def _files_after(head: Head, after: Head, manifest: Manifest) -> Head:
    """Return the head with the files of state and outputs that are needed, and those that died."""
    step = manifest.step
    retained, old = without_old(head.retained, manifest.kept_from)
    # (they are in the order in which they died, and there may be thousands above the boundary)
    above = bisect.bisect_right(head.dead, after.boundary, key=lambda one: one[1])
    dead = [
        (name, died)
        for name, died in head.dead[:above]
        if died > manifest.cleaned and not is_manifest(name)
    ]
    dead += head.dead[above:]
    dead += [(file.place, step) for file in old]
    unreleased, origins, delivered = _unreleased_after(head, manifest, after.released)
    dead += [(file.place, step) for file in delivered]
    slices, replaced = _slices_after(head, manifest)
    runs = [*head.runs, *manifest.runs]
    after = msgspec.structs.replace(
        after,
        retained=[*retained, *manifest.retained],
        slices=slices,
        unreleased=unreleased,
        origins=origins,
        behind_since=_since_when(
            head.behind_since, _behind(unreleased, after.delivered), manifest, head
        ),
        chains=_chains_after(after, manifest.runs),
        runs=runs,
    )
    floor = after.slices_floor
    after = _with_layout(after, _layout_after(head, manifest).since(floor))
    dead += [(file.place, step) for file in _without_use(slices, runs, replaced, floor)]
    after = msgspec.structs.replace(
        after, dead=dead, runs=[run for run in runs if run.step > floor]
    )
    return _with_oldest_manifest(head, after)


def _with_oldest_manifest(head: Head, after: Head) -> Head:
    """Return the head with the oldest manifest that must be there, and the counts that it needs.

    This is looked for when the boundary has moved: between two moves, nothing is needed less.
    """
    if after.boundary == head.boundary and head.oldest_manifest >= 0:
        return after
    packs = [file.pack for file in after.files if file.pack is not None]
    packs += [name for name, died in after.dead if died > after.boundary and is_manifest(name)]
    oldest = min([after.boundary, *steps_of(set(packs))])
    bases = [at for at in after.done_before if at <= oldest]
    first = max(bases, default=0)
    return msgspec.structs.replace(
        after,
        oldest_manifest=oldest,
        done_before={at: done for at, done in after.done_before.items() if at >= first},
    )


def _unreleased_after(
    head: Head, manifest: Manifest, released: int
) -> tuple[dict[int, list[FileRef]], dict[int, Origin], list[FileRef]]:
    """Return the staged files that some sink still needs, their origins, and those that died."""
    unreleased, origins = dict(head.unreleased), dict(head.origins)
    gone: list[FileRef] = []
    if manifest.has_outputs:
        unreleased[manifest.step], origins[manifest.step] = manifest.outputs, manifest.origin
    for earlier, files in manifest.staged.items():
        names = {file.name for file in files}
        gone += [file for file in unreleased.get(earlier, []) if file.name not in names]
        unreleased[earlier] = files
    for step in [at for at in unreleased if at <= released]:
        gone += unreleased.pop(step)
        origins.pop(step, None)
    return unreleased, origins, gone


def _behind(unreleased: dict[int, list[FileRef]], delivered: dict[str, int]) -> list[str]:
    """Return the sinks that have not received the results of more steps than is usual."""
    newest = list(islice(reversed(unreleased), USUALLY_BEHIND + 1))
    if len(newest) <= USUALLY_BEHIND:
        return []
    return [sink for sink, step in delivered.items() if step < newest[-1]]


def _since_when(
    before: dict[str, Moment], names: Iterable[str], manifest: Manifest, head: Head
) -> dict[str, Moment]:
    """Return since when something has been so of each name, without interruption."""
    now = Moment(manifest.step, manifest.clock_us or head.clock_us)
    return {name: before.get(name, now) for name in names}


def _slices_after(head: Head, manifest: Manifest) -> tuple[dict[int, Slice], list[FileRef]]:
    """Return the newest slices, and the files of the slice that the manifest replaces."""
    if manifest.slice is None:
        return dict(head.slices), []
    before = head.slices.get(manifest.slice.number)
    slices = {**head.slices, manifest.slice.number: manifest.slice}
    return slices, [] if before is None else before.files


def _chains_before(head: Head, manifest: Manifest) -> dict[str, Any]:
    """Return the chains of the tasks without this step. All of them start again at a claim."""
    if not manifest.claim:
        return {}
    return {"chains": {}, "chains_since": _since(manifest)}


def _chains_after(head: Head, runs: list[FileRef]) -> dict[str, Chain]:
    """Return the chains of the tasks with the files of a step."""
    chains = dict(head.chains)
    for run in runs:
        at = f"{run.layer}/{run.worker}"
        chains[at] = chains.get(at, head.chain_of(run.layer, run.worker)).then(run)
    return chains


def _scheduled_stop_after(head: Head, manifest: Manifest) -> ScheduledStop | None:
    """Return the scheduled stop; None once a later step than the one it names is committed."""
    scheduled_stop = (
        head.scheduled_stop if manifest.scheduled_stop is None else manifest.scheduled_stop
    )
    over = (
        scheduled_stop is None
        or scheduled_stop.kind == "none"
        or scheduled_stop.step < manifest.step
    )
    return None if over else scheduled_stop


def _paused_after(head: Head, manifest: Manifest) -> bool:
    scheduled_stop = _scheduled_stop_after(head, manifest)
    if (
        scheduled_stop is not None
        and scheduled_stop.kind == "pause"
        and scheduled_stop.step == manifest.step
    ):
        return True
    return head.paused if manifest.paused is None else manifest.paused


def _before_bases(known: dict[int, int], manifest: Manifest, now: int) -> dict[int, int]:
    """Return the values that something had before each retained base, after one more manifest."""
    kept = {at: was for at, was in known.items() if at >= manifest.boundary}
    return kept if manifest.base is None else {**kept, manifest.step: now}


def _ahead(head: Head, readings: dict[int, int], manifest: Manifest) -> dict[int, int]:
    """Return the bases whose reading lies in the future, with the reading that showed it first.

    Args:
        head: the head before.
        readings: the highest reading before each retained base.
        manifest: the newest manifest.
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
    """Return the layout after a manifest. A published update takes effect at its step."""
    before = head.layout_now
    if manifest.layout is not None:
        return before.begun_with(manifest.layout, manifest.step)
    in_force = before.at(manifest.step)
    return in_force.with_published(manifest.updates, manifest.withdrawn)


def _with_layout(head: Head, now: LayoutNow) -> Head:
    return msgspec.structs.replace(
        head,
        layout=now.wire,
        lineage=now.lineage,
        layout_version=now.version,
        relocated=now.relocated,
        updates=now.updates,
    )


def _frontiers_after(head: Head, manifest: Manifest) -> dict[str, Frontiers]:
    return {
        name: changed(head.frontiers_of(name), after) for name, after in manifest.frontiers.items()
    }


def _retained_since(schema: StoredSchema, kept_from: dict[str, int]) -> StoredSchema:
    """Return the schema after the oldest steps of some retained streams were dropped."""
    if not kept_from:
        return schema
    since = {n: max(at, kept_from.get(n, 0)) for n, at in schema.get("retained", {}).items()}
    return {**schema, "retained": since}


def _retained_clocks(head: Head, manifest: Manifest) -> list[tuple[int, int]]:
    """Return the recorded clock readings. Each base adds one, as long as streams are retained."""
    if manifest.base is None or not head.stored_schema.get("retained"):
        return head.retained_clocks
    clocks = with_clock(head.retained_clocks, manifest.step, manifest.clock_us)
    oldest = min(head.stored_schema["retained"].values())
    return [at for n, at in enumerate(clocks) if at[0] >= oldest or n == len(clocks) - 1]


def _marks_after(head: Head, manifest: Manifest) -> list[Mark]:
    streams = head.stored_schema.get("retained", {})
    if not streams:
        return head.retained_marks
    marks = head.retained_marks
    if manifest.claim:  # (a claim has watermarks only if an end is taken back)
        marks = lowered(marks, {name: out for name, (_, out) in manifest.watermarks.items()})
    if manifest.kept_from:
        since = _retained_since(head.stored_schema, manifest.kept_from)["retained"].values()
        marks = without_old_marks(marks, min(since))
    return with_mark(
        marks,
        manifest.step,
        streams,
        watermarks=manifest.watermarks,
        percentiles=manifest.percentiles,
    )


def _moved(head: Head, manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Return the watermarks that this step has moved, each with this step and its clock reading."""
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
) -> list[FileRef]:
    """Return the files that are needed neither for their changes nor for their slice.

    Args:
        slices: the newest slices.
        runs: files whose changes were needed before.
        replaced: files of the slice that was just replaced.
        floor: changes up to this step are no longer needed.
    """
    merged = [run for run in runs if run.step <= floor]
    steps = {run.step for run in merged}
    holding = {file.name for part in slices.values() if part.as_of in steps for file in part.files}
    done = {run.name: run for run in merged if run.name not in holding}
    done |= {file.name: file for file in replaced if file.step <= floor}
    return list(done.values())


def _or(changed: T | None, before: T) -> T:
    return before if changed is None else changed


def _without(by_name: dict[str, T], names: list[str]) -> dict[str, T]:
    return {name: value for name, value in by_name.items() if name not in names}


def _since(manifest: Manifest) -> str:
    return f"{manifest.step}-{manifest.epoch}-{manifest.nonce}"


def _sum_counts(before: dict[str, Counts], more: dict[str, Counts]) -> dict[str, Counts]:
    return {**before, **{name: before.get(name, Counts()).plus(c) for name, c in more.items()}}
