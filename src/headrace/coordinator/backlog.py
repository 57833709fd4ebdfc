"""Backlog: due timers and posts that are left for the next steps.

A step fires a bounded number of timers of each key. While some are left, steps take no new input,
and only those computations run that have work left, with all computations that read them. So each
key sees its timers before the records that come after them. Which computations run is a function of
the committed state, so any driver finds the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.eventtime.timestamps import MAX_TIME
from headrace.ledger.head import Head
from headrace.ledger.retained import producer_of


def at_work_on_backlog(
    head: Head, pipeline_facts: PipelineFacts, at_work: Collection[str]
) -> list[str]:
    """Return the computations that run while due timers are left; none if none are left.

    Those furthest down the pipeline come first, because what they have left is earlier than what
    they will receive.

    Args:
        at_work: the computations that would run in such a step if nothing were left.
    """
    left = [name for name in pipeline_facts.nodes if name in head.backlog and name in at_work]
    readers = {name: _fed_by(pipeline_facts, name) for name in left}
    last = [name for name in left if not readers[name] & set(left)]
    found = set(last).union(*(readers[name] for name in last))
    return [name for name in pipeline_facts.nodes if name in found and name in at_work]


def has_backlog(head: Head, pipeline_facts: PipelineFacts, *, backfilling: bool) -> bool:
    """Return whether due timers are left, of computations in the backfill or of the others."""
    behind = set(head.backfilling)
    return any(
        name in pipeline_facts.nodes and (name in behind) is backfilling for name in head.backlog
    )


def backlog_after(
    head: Head,
    left: Collection[str],
    rested: Sequence[str],
    watermarks: Mapping[str, tuple[int, int]],
) -> dict[str, int] | None:
    """Return the backlog after a step; None if it is as before.

    The backlog says how many portions each computation has fired since its input ended.

    Args:
        head: the head before the step.
        left: the computations that left something.
        rested: those that did not run.
        watermarks: (input, output) of each computation after the step.
    """
    after = {name: portions for name, portions in head.backlog.items() if name in rested}
    for name in left:
        ended = watermarks[name][0] >= MAX_TIME
        after[name] = head.backlog.get(name, 0) + 1 if ended else 0
    return None if after == head.backlog else after


def _fed_by(pipeline_facts: PipelineFacts, name: str) -> set[str]:
    """Return the computations that a computation's productions reach, directly or not."""
    found = {name}
    for other in pipeline_facts.nodes:  # producers come before consumers
        if any(producer_of(stream) in found for stream in pipeline_facts.produced.get(other, [])):
            found.add(other)
    return found - {name}
