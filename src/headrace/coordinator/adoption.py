"""Adoption: deciding which task attempts make up a step, or that none can.

Spark retries, speculates and re-runs tasks. So several attempts of one (layer, worker) may have
run, and their consumers may have read different ones. An attempt of the step is adopted only if,
over all reports, each (layer, worker) maps to exactly one task attempt whose report has arrived.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.computation.per_worker import NOTHING
from headrace.coordinator.step_output import StepOutput
from headrace.eventtime.timestamps import MAX_TIME
from headrace.eventtime.watermark import PartitionSeen, lowest, merged_seen
from headrace.keyspace.digests import add_digests
from headrace.ledger.records import Counts, HeavyBin, HeldBy, Slice, sums
from headrace.protocol.plan import Failure, NodeReport, StepPlan, TaskReport
from headrace.runfiles.format import FileRef


class Conflict(msgspec.Struct, frozen=True):
    """Why an attempt cannot be adopted. It is discarded, and the step runs again."""

    why: str


class Adopted(msgspec.Struct, frozen=True):
    """The sum of the reports of the adopted task attempts.

    Attributes:
        seen: what the records that were read amount to, by injector and partition.
        read_rows, read_digests: number and digest of the records read, by injector.
        skipped: the number of records that sources could not read, by injector.
        watermarks: (input, output) of each computation after the step.
        percentiles: the percentile watermark of what each computation produces.
        oldest: the lowest event time of work that is still to be done, or a bound below it, by
            computation.
        next_wall_timer: the lowest pending wall timer, or a bound below it.
        runs: the files of state changes.
        packed: the bytes of small files that are in no storage yet, by name.
        output: what sinks are to receive.
        retained: the files of retained productions.
        backlog: computations that left due timers or posts for the next steps.
        slice: the slice that was written whole, if any.
        state_digests: the digest of what each computation changed.
        stream_digests: (rows, digest) of the productions on each stream.
        counts: what each computation did.
        phases: seconds by phase, summed over all tasks.
        longest_phases: the same, of the slowest task of each layer only.
        node_times: microseconds that each computation took: (in the slowest task, in all).
        layers: of each layer: (the worker with the slowest task, its seconds, those of all tasks).
        soft_state: how many tasks found their soft state in each condition.
        unread: whether some worker still has something to read ahead.
        per_worker: what computations hold in workers, where that has changed.
        tasks: the reports of the tasks that applied a layer.
        reached: by computation, the watermark at which all event timers, posts and ordered records
            of the step were due.
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
    packed: dict[str, bytes]
    output: StepOutput
    retained: list[FileRef]
    backlog: list[str]
    slice: Slice | None
    state_digests: dict[str, int]
    stream_digests: dict[str, tuple[int, int]]
    counts: dict[str, Counts]
    phases: dict[str, float]
    longest_phases: dict[str, float]
    layers: list[tuple[int, float, float]]
    soft_state: dict[str, int]
    node_times: dict[str, tuple[int, int]]
    unread: bool = False
    per_worker: list[HeldBy] = []
    tasks: list[TaskReport] = []
    reached: dict[str, int] = {}


def adopt(plan: StepPlan, layers: int, reports: list[TaskReport]) -> Adopted | Conflict | Failure:
    """Return the sum of an attempt's reports, or why the attempt cannot be adopted.

    Args:
        plan: the plan of the step.
        layers: the number of layers of computations.
        reports: all reports that came back, in any order, with or without repetitions.
    """
    task_attempts: dict[tuple[int, int], set[str]] = {}
    by_task: dict[tuple[int, int, str], TaskReport] = {}
    for report in reports:
        by_task[(report.layer, report.worker, report.task_attempt)] = report
        task_attempts.setdefault((report.layer, report.worker), set()).add(report.task_attempt)
        for layer, worker, task_attempt in report.consumed:
            task_attempts.setdefault((layer, worker), set()).add(task_attempt)
    expected = {(0, reader) for reader in range(plan.readers)} | {
        (layer, worker) for layer in range(1, layers + 1) for worker in range(plan.layout.workers)
    }
    for task, found in sorted(task_attempts.items()):
        if len(found) > 1:
            return Conflict(f"tasks consumed different attempts of {task}: {sorted(found)}")
    if set(task_attempts) != expected:
        return Conflict(f"reports are of {sorted(task_attempts)}, not of {sorted(expected)}")
    missing = [task for task in expected if (*task, next(iter(task_attempts[task]))) not in by_task]
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
        packed={name: data for report in applied for name, data in report.packed.items()},
        output=StepOutput(
            files=[report.outputs for report in applied if report.outputs],
            copies=_copies(applied),
            unstaged=_joined(report.unstaged for report in reports),
        ),
        retained=[report.retained for report in applied if report.retained],
        slice=_slice(plan, applied),
        stream_digests=_stream_digests(reports),
        phases=_added(report.phases for report in reports),
        longest_phases=_longest(reports),
        layers=_layers(reports),
        soft_state=_soft_state(reports),
        unread=any(report.unread for report in applied),
        per_worker=_per_worker(applied),
        tasks=applied,
        **_of_computations(applied),
    )


def _of_computations(applied: list[TaskReport]) -> dict[str, Any]:
    """Return what the tasks report of each computation, combined."""
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
        "node_times": {
            name: (max(r.took_us for r in found), sum(r.took_us for r in found))
            for name, found in of.items()
        },
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
        functools.reduce(sums, (report.counters for report in found), {}),
    )


def _stream_digests(reports: list[TaskReport]) -> dict[str, tuple[int, int]]:
    """Return the number of rows and the digest of each stream's productions."""
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


def _copies(applied: list[TaskReport]) -> dict[str, dict[str, bytes]]:
    """Return copies of staged productions, by stream and file."""
    found: dict[str, dict[str, bytes]] = {}
    for report in applied:
        for stream, data in report.inline_outputs.items():
            if report.outputs is not None:
                found.setdefault(stream, {})[report.outputs.name] = data
    return found


def _added(many: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return sums by name."""
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
    """Return the phases of the slowest task of each layer, summed over the layers.

    A step waits for these if all tasks of a layer run at once. The maximum of each phase would not
    do: maxima may be of different tasks, and add up to more than the attempt took.
    """
    slowest: dict[int, tuple[float, dict[str, float]]] = {}
    for report in reports:
        took = sum(report.phases.values())
        if took > slowest.get(report.layer, (-1.0, {}))[0]:
            slowest[report.layer] = took, report.phases
    return _added(phases for _, phases in slowest.values())


def _layers(reports: list[TaskReport]) -> list[tuple[int, float, float]]:
    """Return of each layer the worker with the slowest task, its seconds, and those of all tasks."""
    found: dict[int, tuple[int, float, float]] = {}
    for report in reports:
        took = sum(report.phases.values())
        worker, slowest, whole = found.get(report.layer, (report.worker, 0.0, 0.0))
        if took > slowest:
            worker, slowest = report.worker, took
        found[report.layer] = worker, slowest, whole + took
    return [found[layer] for layer in sorted(found)]


def _slice(plan: StepPlan, applied: list[TaskReport]) -> Slice | None:
    if plan.slice is None:
        return None
    files = [report.run for report in applied if report.run is not None and report.in_slice]
    nbytes = sum(report.slice_bytes for report in applied)
    return Slice(plan.slice.number, plan.slice.of, plan.step, files, nbytes, _heavy(applied))


def _heavy(applied: list[TaskReport]) -> list[HeavyBin]:
    """Return the heavy bins of a slice. Several layers may have rows of one bin."""
    sizes: dict[tuple[int, int], int] = {}
    for report in applied:
        for of in report.slice_heavy:
            sizes[of.start, of.bits] = sizes.get((of.start, of.bits), 0) + of.nbytes
    return [HeavyBin(*bin_, nbytes) for bin_, nbytes in sorted(sizes.items())]


def _sums(reports: list[TaskReport], field: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for report in reports:
        for name, value in getattr(report, field).items():
            found[name] = add_digests(found.get(name, 0), value)
    return found
