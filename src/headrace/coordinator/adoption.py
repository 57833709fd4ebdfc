"""Adoption: which attempts of a try make up the step, or that none can.

Spark retries, speculates and re-runs tasks; several attempts of one (layer, worker) may have run, and
consumers may have read different ones. A try is adopted only if, over all reports, each (layer,
worker) maps to exactly one attempt, and that attempt's report is at hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.computation.per_worker import NOTHING
from headrace.eventtime.timestamps import MAX_TIME
from headrace.eventtime.watermark import PartitionSeen, lowest, merged_seen
from headrace.keyspace.digests import add_digests
from headrace.ledger.records import Counts, HeldBy, Slice
from headrace.protocol.plan import Failure, NodeReport, StepPlan, TaskReport
from headrace.runfiles.format import FileRef


class Conflict(msgspec.Struct, frozen=True):
    """Why a try cannot be adopted; it is abandoned, and the step runs again."""

    why: str


class Adopted(msgspec.Struct, frozen=True):
    """What the adopted attempts add up to; of phases the sums, and those of the slowest tasks.

    ``inline_outputs`` has copies of small outputs, ``unstaged`` those that are nowhere else; ``unread``
    says whether somebody still has to read ahead; ``reached`` says
    up to when computations had work due; ``tasks`` are the reports of those that applied a layer.
    """

    seen: dict[str, dict[str, PartitionSeen]]
    read_rows: dict[str, int]
    read_digests: dict[str, int]
    skipped: dict[str, int]
    watermarks: dict[str, tuple[int, int]]
    percentiles: dict[str, int]
    oldest: dict[str, int]
    next_wall_timer: int
    runs: list[FileRef]
    outputs: list[FileRef]
    retained: list[FileRef]
    backlog: list[str]
    slice: Slice | None
    state_digests: dict[str, int]
    stream_digests: dict[str, tuple[int, int]]
    counts: dict[str, Counts]
    inline_outputs: dict[str, list[bytes]]
    phases: dict[str, float]
    longest_phases: dict[str, float]
    soft_state: dict[str, int]
    unstaged: dict[str, list[bytes]] = {}
    unread: bool = False
    per_worker: list[HeldBy] = []
    tasks: list[TaskReport] = []
    reached: dict[str, int] = {}


def adopt(plan: StepPlan, layers: int, reports: list[TaskReport]) -> Adopted | Conflict | Failure:
    """Return what a try's reports add up to, or why it cannot be adopted.

    Args:
        plan: the step.
        layers: how many layers of computations the pipeline has.
        reports: all that came back, in any order, repeated or not.
    """
    attempts: dict[tuple[int, int], set[str]] = {}
    by_task: dict[tuple[int, int, str], TaskReport] = {}
    for report in reports:
        by_task[(report.layer, report.worker, report.attempt)] = report
        attempts.setdefault((report.layer, report.worker), set()).add(report.attempt)
        for layer, worker, attempt in report.consumed:
            attempts.setdefault((layer, worker), set()).add(attempt)
    expected = {(0, reader) for reader in range(plan.readers)} | {
        (layer, worker) for layer in range(1, layers + 1) for worker in range(plan.layout.workers)
    }
    for task, found in sorted(attempts.items()):
        if len(found) > 1:
            return Conflict(f"tasks consumed different attempts of {task}: {sorted(found)}")
    if set(attempts) != expected:
        return Conflict(f"reports are of {sorted(attempts)}, not of {sorted(expected)}")
    missing = [task for task in expected if (*task, next(iter(attempts[task]))) not in by_task]
    if missing:
        return Conflict(f"the attempts of {sorted(missing)} that were consumed have no report")
    ordered = [by_task[key] for key in sorted(by_task)]
    failures = [report.failure for report in ordered if report.failure is not None]
    if failures:
        return failures[0]
    return _sum(plan, ordered)


def _sum(plan: StepPlan, reports: list[TaskReport]) -> Adopted:
    applied = [report for report in reports if report.layer > 0]
    return Adopted(
        seen=merged_seen(report.seen for report in reports),
        read_rows=_sums(reports, "read_rows"),
        read_digests=_sums(reports, "read_digests"),
        skipped=_sums(reports, "skipped"),
        runs=[report.run for report in applied if report.run],
        outputs=[report.outputs for report in applied if report.outputs],
        retained=[report.retained for report in applied if report.retained],
        slice=_slice(plan, applied),
        stream_digests=_stream_digests(reports),
        inline_outputs=_joined(report.inline_outputs for report in reports),
        unstaged=_joined(report.unstaged for report in reports),
        phases=_added(report.phases for report in reports),
        longest_phases=_longest(reports),
        soft_state=_soft_state(reports),
        unread=any(report.unread for report in applied),
        per_worker=_per_worker(applied),
        tasks=applied,
        **_of_computations(applied),
    )


def _of_computations(applied: list[TaskReport]) -> dict[str, Any]:
    """Return what the tasks say of each computation, taken together."""
    names = {name for report in applied for name in report.nodes}
    of = {name: [r.nodes[name] for r in applied if name in r.nodes] for name in names}
    wall_timers = (report.next_wall_timer for found in of.values() for report in found)
    return {
        "watermarks": {
            name: (
                lowest(report.input_watermark for report in found),
                lowest(report.output_watermark for report in found),
            )
            for name, found in of.items()
        },
        "percentiles": {name: lowest(r.percentile for r in found) for name, found in of.items()},
        "oldest": {name: lowest(r.oldest for r in found) for name, found in of.items()},
        "reached": {name: max(r.reached for r in found) for name, found in of.items()},
        "next_wall_timer": min(wall_timers, default=MAX_TIME),
        "backlog": sorted(name for name, found in of.items() if any(r.backlog for r in found)),
        "state_digests": {
            name: sum(r.state_digest for r in found) & (2**64 - 1) for name, found in of.items()
        },
        "counts": {name: _counts(found) for name, found in of.items()},
    }


def _counts(found: list[NodeReport]) -> Counts:
    return Counts(
        sum(report.records for report in found),
        sum(report.late for report in found),
        sum(report.skipped for report in found),
        sum(report.timers for report in found),
        sum(report.produced for report in found),
        sum(report.duplicates for report in found),
        sum(report.expired for report in found),
    )


def _stream_digests(reports: list[TaskReport]) -> dict[str, tuple[int, int]]:
    """Return the rows and the digest of each stream's productions."""
    found: dict[str, tuple[int, int]] = {}
    for report in reports:
        for name, produced in report.streams.items():
            rows, digest = found.get(name, (0, 0))
            found[name] = (rows + produced.rows, add_digests(digest, produced.digest))
    return found


def _joined(parts: Iterable[Mapping[str, bytes]]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for by_name in parts:
        for name, data in by_name.items():
            found.setdefault(name, []).append(data)
    return found


def _added(many: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum of numbers, by name."""
    found: dict[str, float] = {}
    for by_name in many:
        for name, number in by_name.items():
            found[name] = found.get(name, 0.0) + number
    return found


def _soft_state(reports: list[TaskReport]) -> dict[str, int]:
    """Return how many tasks found their soft state in each condition."""
    conditions = (report.notes.get("soft_state") for report in reports)
    return dict(Counter(condition for condition in conditions if condition))


def _per_worker(applied: list[TaskReport]) -> list[HeldBy]:
    """Return what computations hold in workers from now on, where that has changed."""
    gone = [
        HeldBy(name, worker, NOTHING)
        for report in applied
        for name, workers in report.taken_in.items()
        for worker in workers
    ]
    return gone + [
        HeldBy(name, report.worker, held)
        for report in applied
        for name, held in report.per_worker.items()
    ]


def _longest(reports: list[TaskReport]) -> dict[str, float]:
    """Return the phases of the slowest task of each layer: what a step waits for, if all run at once.

    (Not the largest of each phase: those may be of different tasks, and add up to more than the try.)
    """
    slowest: dict[int, tuple[float, dict[str, float]]] = {}
    for report in reports:
        took = sum(report.phases.values())
        if took > slowest.get(report.layer, (-1.0, {}))[0]:
            slowest[report.layer] = took, report.phases
    return _added(phases for _, phases in slowest.values())


def _slice(plan: StepPlan, applied: list[TaskReport]) -> Slice | None:
    if plan.slice is None:
        return None
    files = [report.run for report in applied if report.run is not None and report.in_slice]
    nbytes = sum(report.slice_bytes for report in applied)
    return Slice(plan.slice.number, plan.slice.of, plan.step, files, nbytes)


def _sums(reports: list[TaskReport], field: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for report in reports:
        for name, value in getattr(report, field).items():
            found[name] = add_digests(found.get(name, 0), value)
    return found
