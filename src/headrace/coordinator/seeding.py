"""Seeding: computations that are added begin with the rows that their tables hold.

In each step, the tables are read a portion further (:mod:`headrace.keyspace.sweep`). A new computation
receives the rows of the portion as they are after the step, and of the keys that were read before the
changes of the step. So it always has exactly the rows of the keys that the sweep has passed, and in
the end all rows. No other computation waits meanwhile, and nothing is kept for it.

Until then its input watermark stays at the beginning of time, since any row may still come. One more
step moves it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from headrace.coordinator.changes.beginnings import Beginning, beginnings, not_yet
from headrace.coordinator.pipeline_compatibility import missed_since
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.errors import PipelineError
from headrace.keyspace.sweep import WHOLE, portion_width
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.ledger.records import Seeding
from headrace.ledger.retained import producer_of
from headrace.protocol.plan import SeedPlan, StepPlan


def seeding_of(
    head: Head | None, pipeline_facts: PipelineFacts, *, portion_bytes: int
) -> Seeding | None:
    """Return the seeding from a claim on; None if it does not change.

    Args:
        head: the pipeline before the claim.
        pipeline_facts: facts about the pipeline that is to run.
        portion_bytes: about how many bytes of stored rows a step reads.

    Raises:
        PipelineError: if a table that is still to be read does not keep its rows any more, or if
            another seeding is to begin before one is complete.
    """
    if head is None:
        return None
    at, new = head.seeding, begin_with_rows(head, pipeline_facts)
    left = [] if at is None else [name for name in at.names if _goes_on(name, pipeline_facts)]
    if at is not None:
        _check_tables(at, left, pipeline_facts)
    if new:
        behind = [*left, *head.backfilling]
        if behind:
            raise not_yet(new[0], behind)
        return _begun(head, new, pipeline_facts, portion_bytes)
    if at is None or left == at.names:
        return None
    return msgspec.structs.replace(at, names=left)


def _begun(
    head: Head, names: list[str], pipeline_facts: PipelineFacts, portion_bytes: int
) -> Seeding:
    """Return a seeding at its beginning."""
    known = {*head.stored_schema["computations"], *head.starts, *head.positions}
    read = _read_from_others(pipeline_facts, names)
    tables = [s for s in read if s in pipeline_facts.tables and producer_of(s) in known]
    nbytes = _stored_bytes(head, {producer_of(stream) for stream in tables})
    return Seeding(names, tables, 0, portion_width(nbytes, portion_bytes))


def _read_from_others(pipeline_facts: PipelineFacts, names: Collection[str]) -> list[str]:
    """Return the streams that some computations read, and that others produce."""
    read = {stream for name in names for stream in pipeline_facts.reads[name]}
    return sorted(stream for stream in read if producer_of(stream) not in names)


def _goes_on(name: str, pipeline_facts: PipelineFacts) -> bool:
    """Return whether a computation is still there, with the state that it has."""
    return name in pipeline_facts.nodes and name not in pipeline_facts.forgotten


def given_up(head: Head | None, pipeline_facts: PipelineFacts) -> list[str]:
    """Return the computations whose state lacks rows, and is given up for that reason.

    These are removed ones that have not received all of their rows yet, and those that come back: they have
    missed what has changed meanwhile. All begin with the rows that their inputs hold when they come back.
    """
    if head is None:
        return []
    unfinished = [name for name in head.seeded if name in pipeline_facts.removed]
    return [*unfinished, *_back(head, pipeline_facts)]


def _back(head: Head, pipeline_facts: PipelineFacts) -> list[str]:
    """Return the computations that need all rows of their inputs, and were removed while some came."""
    removed = missed_since(head)
    return [name for name in pipeline_facts.row_readers if name in removed]


def begin_with_rows(head: Head, pipeline_facts: PipelineFacts) -> list[str]:
    """Return the computations that a claim adds and that begin with the rows of their inputs.

    Raises:
        PipelineError: for one that finds the rows of some inputs, and of others not.
    """
    if pipeline_facts.seeded is not None:  # as it was asked for
        return pipeline_facts.seeded
    names = []
    for beginning in _beginnings(head, pipeline_facts):
        if beginning.rows:
            beginning.check()
            names.append(beginning.name)
    return names


def begin_without_rows(head: Head, pipeline_facts: PipelineFacts) -> list[Beginning]:
    """Return the operators that a start adds and that begin now, since nothing keeps their rows."""
    if pipeline_facts.seeded is not None:  # a change: that was asked for
        return []
    found = _beginnings(head, pipeline_facts)
    return [beginning for beginning in found if beginning.without and not beginning.rows]


def _beginnings(head: Head, pipeline_facts: PipelineFacts) -> Iterator[Beginning]:
    """Yield what those of the added computations find that are to begin with rows."""
    stored = head.stored_schema["computations"]
    back = _back(head, pipeline_facts)
    return beginnings(
        [name for name in pipeline_facts.nodes if name not in stored or name in back],
        pipeline_facts.row_readers,
        pipeline_facts.reads,
        pipeline_facts.tables,
        {*stored, *head.starts, *head.positions},
    )


def _check_tables(at: Seeding, left: Collection[str], pipeline_facts: PipelineFacts) -> None:
    """Check that all that a seeding reads keeps its rows.

    Raises:
        PipelineError: naming what does not.
    """
    read = _read_from_others(pipeline_facts, left)
    without = [s for s in at.tables if s in read and s not in pipeline_facts.tables]
    if without:
        raise PipelineError(
            f"{', '.join(left)} are still given the rows of their inputs, and {without[0]!r} does not "
            "keep its rows any more",
            remedy="build its producer as it was until they have arrived (headrace status), or remove "
            "them",
        )


def _stored_bytes(head: Head, owners: set[str]) -> int:
    """Return about how many bytes the state of some computations takes in files.

    Once all slices are there, they hold all of it. What has changed since may have replaced it, and
    cannot be more than that by much.
    """
    slices = [file for part in head.slices.values() for file in part.files]
    whole, since = (
        sum(file.length for file in files if not owners.isdisjoint(file.owners))
        for files in (slices, head.runs)
    )
    return whole + (min(whole, since) if head.slices_floor >= 0 else since)


def seed_plan(head: Head, pipeline_facts: PipelineFacts, intent: Intent) -> SeedPlan | None:
    """Return what a step does for a seeding; None if there is none, or all rows have been read.

    A step in which some computations rest reads nothing further.
    """
    at = head.seeding
    if at is None or at.upto >= WHOLE:
        return None
    rests = intent.is_backfill or bool(head.backlog)
    end = at.upto if rests else min(WHOLE, at.upto + at.portion)
    read = _read_from_others(pipeline_facts, at.names)
    tables = [stream for stream in at.tables if stream in read]
    begins = at.upto == 0 and end > 0
    constants = [stream for stream in tables if begins and stream in pipeline_facts.constants]
    return SeedPlan(at.names, tables, at.upto, end, constants)


def seeding_after(head: Head, plan: StepPlan) -> Seeding | None:
    """Return the seeding after a step; None if it does not change."""
    at = head.seeding
    if at is None:
        return None
    if plan.seeds is not None:
        moved = plan.seeds.end > at.upto
        return msgspec.structs.replace(at, upto=plan.seeds.end) if moved else None
    return None if set(at.names) & set(plan.inactive) else Seeding([])


def seed_bytes(head: Head, seeds: SeedPlan | None) -> int:
    """Return about how many bytes of stored rows a step reads for a seeding."""
    if seeds is None or seeds.first >= seeds.end:
        return 0
    stored = _stored_bytes(head, {producer_of(stream) for stream in seeds.tables})
    return stored * (seeds.end - seeds.first) // WHOLE
