"""Retention: how much of the retained streams is kept.

It is a function of the committed state and of what the pipeline asks for.
"""

from __future__ import annotations

from headrace.coordinator.backfill import streams_again
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.ledger.head import Head


def kept_from(head: Head, pipeline_facts: PipelineFacts, *, now_us: int) -> dict[str, int]:
    """Return the first step that is kept from now on, for each stream that loses something.

    Args:
        head: the pipeline as of the newest step.
        pipeline_facts: facts about the pipeline.
        now_us: the clock reading of the next step. A production must be old by the newest step's
            reading, too. So a clock that is ahead for one step drops nothing.
    """
    if not pipeline_facts.kept:
        return {}
    now_us = min(now_us, head.clock_now or head.clock_us)
    stored = head.stored_schema.get("retained", {})
    found = {}
    for stream, (age_us, steps) in pipeline_facts.kept.items():
        first = head.step + 1
        if steps:
            first = min(first, head.step - steps + 1)
        if age_us:
            old = [step for step, clock_us in head.retained_clocks if clock_us < now_us - age_us]
            first = min(first, max(old, default=-1) + 1)
        first = min(first, _still_to_be_read(head, pipeline_facts, stream))
        if stream in stored and first > stored[stream]:
            found[stream] = first
    return found


def _still_to_be_read(head: Head, pipeline_facts: PipelineFacts, stream: str) -> int:
    """Return the first step of a stream that a backfill still has to read."""
    at = head.backfill
    if at is None or at.retained is None or stream not in streams_again(pipeline_facts, at.names):
        return head.step + 1
    return at.retained + 1
