"""Backfill: computations that started at the beginning read again what the others read long ago.

Their input is read from injectors or from retained streams, up to where the pipeline is. What comes
next for them is a function of the committed state, so any driver finds the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from headrace.coordinator.backlog import at_work_on_backlog, has_backlog
from headrace.coordinator.messages import PollBackfill
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.eventtime.watermark import Frontiers
from headrace.ledger.head import Head
from headrace.ledger.records import Backfill
from headrace.ledger.retained import Retained, next_retained, producer_of, watermarks_at
from headrace.pipeline.source import Limit, Offer


def backfill_of(head: Head | None, pipeline_facts: PipelineFacts) -> Backfill | None:
    """Return the backfill from a claim on; None if it does not change."""
    if pipeline_facts.beginning:
        again = streams_again(pipeline_facts, pipeline_facts.beginning)
        return Backfill(pipeline_facts.beginning, retained=-1 if again else None)
    at = None if head is None else head.backfill
    if at is None:
        return None
    # A computation whose state is given up starts over, and starts now.
    behind = [
        name
        for name in at.names
        if name in pipeline_facts.nodes and name not in pipeline_facts.forgotten
    ]
    return None if behind == at.names else msgspec.structs.replace(at, names=behind)


def inactive(head: Head, pipeline_facts: PipelineFacts, *, is_backfill: bool) -> list[str]:
    """Return the computations that do not run in a step."""
    behind = head.backfilling
    rest = [name for name in pipeline_facts.nodes if name not in behind] if is_backfill else behind
    if not head.backlog:
        return rest
    working = [name for name in pipeline_facts.nodes if name not in rest]
    working = at_work_on_backlog(head, pipeline_facts, working) or working
    return [*rest, *(name for name in pipeline_facts.nodes if name not in (*rest, *working))]


def streams_again(pipeline_facts: PipelineFacts, names: Collection[str]) -> list[str]:
    """Return the retained streams that a backfill of these computations reads.

    Their producers are computations outside the backfill.
    """
    read = {stream for name in names for stream in pipeline_facts.produced.get(name, [])}
    return sorted(stream for stream in read if producer_of(stream) not in names)


def retained_after(head: Head, pipeline_facts: PipelineFacts) -> Retained | None:
    """Return what the backfill reads next from retained streams; None if nothing."""
    at = head.backfill
    if at is None or at.retained is None:
        return None
    streams = streams_again(pipeline_facts, at.names)
    if has_backlog(head, pipeline_facts, backfilling=True):
        return Retained(at.retained, [], watermarks_at(head.retained_marks, streams, at.retained))
    return next_retained(head.retained_marks, head.retained, streams, at.retained)


def what_to_read_again(
    head: Head, pipeline_facts: PipelineFacts, at: Backfill, limit: Limit
) -> PollBackfill:
    """Return the poll of sources for a backfill that is as far as ``at`` says."""
    if at.retained is not None:  # no source is asked
        return PollBackfill({}, {}, limit)
    starts = {
        name: start
        for name, start in pipeline_facts.firsts(head).items()
        if set(pipeline_facts.readers[name]) & set(at.names) and name not in at.ended
    }
    return PollBackfill(
        {name: at.positions.get(name, start) for name, start in starts.items()},
        {name: head.positions.get(name, start) for name, start in starts.items()},
        limit,
    )


def offers_as_they_were(head: Head, found: Mapping[str, Offer | None]) -> dict[str, Offer]:
    """Return what injectors offer for a backfill, where they have something."""
    return {
        name: offer
        for name, again in found.items()
        for offer in [_as_it_was(name in head.ended, again)]
        if offer is not None
    }


def _as_it_was(ended: bool, offer: Offer | None) -> Offer | None:
    """Return an injector's offer for a backfill.

    Its input ends only if it has ended for the pipeline.
    """
    if offer is not None and not offer.empty:
        return msgspec.structs.replace(offer, final=offer.final and ended)
    if not ended:
        return None
    return Offer(None, 0, 0, final=True, empty=True)


def known_then(
    head: Head, pipeline_facts: PipelineFacts, polled: Collection[str]
) -> dict[str, Frontiers]:
    """Return what a step of the backfill assumes of each injector.

    Args:
        polled: the injectors that were polled for the backfill.
    """
    then = head.as_of_backfill()
    return {
        name: (then if name in polled or name in then.ended else head).frontiers_of(name)
        for name in pipeline_facts.injectors
    }
