"""What of retained streams is still kept: a function of the committed state and of what is asked for."""

from __future__ import annotations

from headrace.coordinator.backfill import streams_again
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.ledger.head import Head


def kept_from(head: Head, shape: PipelineFacts, *, now_us: int) -> dict[str, int]:
    """Return the first step that is kept from now on, of each stream of which some is to go.

    Args:
        head: as of the newest step.
        shape: the pipeline.
        now_us: the clock reading of the step that comes next. What is old must be so by the newest
            step's, too: a clock that is ahead for one step lets nothing go.
    """
    if not shape.kept:
        return {}
    now_us = min(now_us, head.clock_now or head.clock_us)
    stored = head.identity.get("retained", {})
    found = {}
    for stream, (age_us, steps) in shape.kept.items():
        first = head.step + 1
        if steps:
            first = min(first, head.step - steps + 1)
        if age_us:
            old = [step for step, clock_us in head.retained_clocks if clock_us < now_us - age_us]
            first = min(first, max(old, default=-1) + 1)
        first = min(first, _still_to_be_read(head, shape, stream))
        if stream in stored and first > stored[stream]:
            found[stream] = first
    return found


def _still_to_be_read(head: Head, shape: PipelineFacts, stream: str) -> int:
    """Return the first step of a stream that a computation which catches up has still to read."""
    at = head.catch_up
    if at is None or at.retained is None or stream not in streams_again(shape, at.names):
        return head.step + 1
    return at.retained + 1
