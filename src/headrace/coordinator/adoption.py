"""Adoption: which attempts of a try make up the step, or that none can.

Spark retries, speculates and re-runs tasks; several attempts of one (layer, worker) may have run, and
consumers may have read different ones. A try is adopted only if, over all reports, each (layer,
worker) maps to exactly one attempt, and that attempt's report is at hand.
"""

from __future__ import annotations

import msgspec

from headrace.eventtime.timestamps import MAX_TIME
from headrace.eventtime.watermark import Seen, lowest, merged_seen
from headrace.keyspace.digests import add_digests
from headrace.ledger.manifest import Counts, HeldBy, Slice
from headrace.protocol.plan import Failure, Plan, TaskReport
from headrace.runfiles.format import FileRef
from headrace.state.per_worker import NOTHING


class Conflict(msgspec.Struct, frozen=True):
    """Why a try cannot be adopted; it is abandoned, and the step runs again."""

    why: str


class Adopted(msgspec.Struct, frozen=True):
    """What the adopted attempts add up to; of phases the sums, and those of the slowest tasks.

    ``inline_outputs`` has copies of small outputs, ``unstaged`` those that are nowhere else; ``unread``
    says whether somebody still has to read ahead; ``reached`` says
    up to when computations had work due; ``tasks`` are the reports of those that applied a layer.
    """

    seen: dict[str, dict[str, Seen]]
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


def adopt(plan: Plan, layers: int, reports: list[TaskReport]) -> Adopted | Conflict | Failure:
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


def _sum(plan: Plan, reports: list[TaskReport]) -> Adopted:
    applied = [report for report in reports if report.layer > 0]
    nodes = {name for report in applied for name in report.nodes}
    of_node = {name: [r.nodes[name] for r in applied if name in r.nodes] for name in nodes}
    streams: dict[str, tuple[int, int]] = {}
    phases: dict[str, float] = {}
    inline: dict[str, list[bytes]] = {}
    unstaged: dict[str, list[bytes]] = {}
    soft: dict[str, int] = {}
    for report in reports:
        for name, produced in report.streams.items():
            rows, digest = streams.get(name, (0, 0))
            streams[name] = (rows + produced.rows, add_digests(digest, produced.digest))
        for name, seconds in report.phases.items():
            phases[name] = phases.get(name, 0.0) + seconds
        for name, data in report.inline_outputs.items():
            inline.setdefault(name, []).append(data)
        for name, data in report.unstaged.items():
            unstaged.setdefault(name, []).append(data)
        how = report.notes.get("soft_state")
        if how:
            soft[how] = soft.get(how, 0) + 1
    return Adopted(
        seen=merged_seen(report.seen for report in reports),
        read_rows=_sums(reports, "read_rows"),
        read_digests=_sums(reports, "read_digests"),
        skipped=_sums(reports, "skipped"),
        watermarks={
            name: (
                lowest(report.input_watermark for report in found),
                lowest(report.output_watermark for report in found),
            )
            for name, found in of_node.items()
        },
        percentiles={
            name: lowest(report.percentile for report in found) for name, found in of_node.items()
        },
        oldest={name: lowest(report.oldest for report in found) for name, found in of_node.items()},
        reached={name: max(report.reached for report in found) for name, found in of_node.items()},
        next_wall_timer=min(
            (report.next_wall_timer for found in of_node.values() for report in found),
            default=MAX_TIME,
        ),
        runs=[report.run for report in applied if report.run],
        outputs=[report.outputs for report in applied if report.outputs],
        retained=[report.retained for report in applied if report.retained],
        backlog=sorted(
            name for name, found in of_node.items() if any(report.backlog for report in found)
        ),
        slice=_slice(plan, applied),
        state_digests={
            name: sum(report.state_digest for report in found) & (2**64 - 1)
            for name, found in of_node.items()
        },
        stream_digests=streams,
        counts={
            name: Counts(
                sum(report.records for report in found),
                sum(report.late for report in found),
                sum(report.skipped for report in found),
                sum(report.timers for report in found),
                sum(report.produced for report in found),
                sum(report.duplicates for report in found),
                sum(report.expired for report in found),
            )
            for name, found in of_node.items()
        },
        inline_outputs=inline,
        phases=phases,
        longest_phases=_longest(reports),
        soft_state=soft,
        unstaged=unstaged,
        unread=any(report.unread for report in applied),
        per_worker=_per_worker(applied),
        tasks=applied,
    )


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
    found: dict[str, float] = {}
    for _, phases in slowest.values():
        for name, seconds in phases.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _slice(plan: Plan, applied: list[TaskReport]) -> Slice | None:
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
