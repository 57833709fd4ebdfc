"""Reopening: what a claim takes back when input that had ended goes on.

The end of an injector's input moves watermarks to the end of time, and all event timers fire.
Reopening takes back the statement that nothing more will come. It does not take back what followed:
a timer that has fired stays fired, and a window that was produced stays produced. So event time
continues where the work has got to:

- The injector's watermark goes back to where its records had brought it before the end.
- The watermark of each computation that it feeds goes back there, too, but not before the latest
  event timer that the end has fired. Records behind it are late, as usual.

The same holds for computations that had read only input that has ended, and get a new injector.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.errors import InputGoesOn, PipelineError
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME, show_time
from headrace.eventtime.watermark import Frontiers, changes
from headrace.ledger.head import Head
from headrace.ledger.records import Backfill


class Reopening(msgspec.Struct, frozen=True):
    """What a claim says of the ends that it takes back; empty if there are none.

    Attributes:
        reopened: injectors whose input had ended and goes on.
        frontiers: what is known of them.
        watermarks, percentiles: of all computations, if any of them goes on.
    """

    reopened: list[str] = []
    frontiers: dict[str, Frontiers] = {}
    watermarks: dict[str, tuple[int, int]] = {}
    percentiles: dict[str, int] = {}


def reopening(head: Head | None, pipeline_facts: PipelineFacts) -> Reopening:
    """Return which ends a claim takes back, on request or because of new injectors."""
    if head is None:
        return Reopening()
    names = [
        name
        for name in pipeline_facts.injectors
        if name in pipeline_facts.reopened and name in head.ended
    ]
    live = [name for name in pipeline_facts.injectors if name not in head.ended or name in names]
    fed = {node for name in live for node in pipeline_facts.readers[name]}
    on = {
        node: _goes_on(head, node)
        for node in pipeline_facts.nodes
        if node in fed and head.watermark_of(node)[0] >= MAX_TIME
    }
    before = {name: head.frontiers_of(name) for name in names}
    frontiers = {
        name: changed
        for name, of in before.items()
        if (changed := changes(of, _without_end(of))) is not None
    }
    if not on:
        return Reopening(names, frontiers)
    ahead = {node for node in on if head.percentiles.get(node, on[node][1]) > on[node][1]}
    return Reopening(
        names,
        frontiers,
        {
            **{
                node: head.watermark_of(node)
                for node in pipeline_facts.nodes
                if node in head.watermarks
            },
            **on,
        },
        {**head.percentiles, **{node: on[node][1] for node in ahead}},
    )


def backfill_after(at: Backfill | None, reopened: Collection[str]) -> Backfill | None:
    """Return the progress of a backfill without the ends that are taken back."""
    if at is None or not set(at.ended) & set(reopened):
        return at
    ended = [name for name in at.ended if name not in reopened]
    frontiers = {
        name: _without_end(of) if name in reopened and of.low >= MAX_TIME else of
        for name, of in at.frontiers.items()
    }
    return msgspec.structs.replace(at, ended=ended, frontiers=frontiers)


def _without_end(of: Frontiers) -> Frontiers:
    """Return what is known of an injector without its end.

    A partition that has ended stays ended until the source says that it goes on.
    """
    return msgspec.structs.replace(of, low=of.reached, percentile=of.reached, reached=MIN_TIME)


def _goes_on(head: Head, node: str) -> tuple[int, int]:
    """Return the watermarks with which a computation goes on.

    An output watermark that is held stays held.
    """
    at, before_out = head.reached_by(node), head.watermark_of(node)[1]
    return (at, at) if before_out >= MAX_TIME else (max(at, before_out), before_out)


def check_names(reopen: Collection[str], injectors: Collection[str]) -> None:
    """Check that injectors to be reopened are in the pipeline.

    Raises:
        PipelineError: when one is not.
    """
    unknown = sorted(set(reopen) - set(injectors))
    if unknown:
        raise PipelineError(
            f"there is no injector {unknown[0]!r} to be reopened",
            remedy=f"the pipeline has: {', '.join(injectors) or 'none'}",
        )


def input_goes_on(
    head: Head, readers: Mapping[str, Collection[str]], more: Mapping[str, str]
) -> InputGoesOn:
    """Return the error for input that had ended and has more.

    Args:
        head: the committed state.
        readers: the computations that an injector's records reach, by injector.
        more: what has come, by injector.
    """
    reported = "; ".join(f"injector {name!r}: {what}" for name, what in more.items())
    late = {
        node: head.reached_by(node)
        for name in more
        for node in readers[name]
        if head.watermark_of(node)[0] >= MAX_TIME
    }
    behind = ", ".join(f"{node!r} before {show_time(at)}" for node, at in sorted(late.items()))
    first = next(iter(more))
    return InputGoesOn(
        f"input that had ended goes on: {reported}",
        place=f"step {head.step}, where all event timers have fired for the end of the input",
        remedy="choose one. (1) Reopen it: headrace.run(..., reopen=["
        + ", ".join(map(repr, more))
        + f"]), or headrace run --reopen {first}; windows that have fired stay as they are"
        + (f", and what comes late is dropped as usual (for {behind})" if behind else "")
        + ". (2) Start with a new storage, and let runs end with job.catch_up(), or headrace run "
        "--available-now: then windows stay open from run to run. (3) Take back what has come",
    )
