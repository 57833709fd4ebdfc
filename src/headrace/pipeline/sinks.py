"""Checks that concern several sinks of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import PipelineError
from headrace.pipeline.nodes import SinkNode
from headrace.pipeline.sink import Sink


def check_apart(name: str, sink: Sink, others: Iterable[SinkNode]) -> None:
    """Check that a sink writes to no place that another sink writes to.

    Sinks name files by the step. So rows of one would be taken for a repeated step of the other.

    Raises:
        PipelineError: if it does.
    """
    place = sink.occupies()
    if not place:
        return
    for other in others:
        if other.sink.occupies() == place:
            raise PipelineError(
                f"sink {name!r} would write the same files as sink {other.name!r}",
                place=place,
                remedy="give each sink a directory of its own",
            )
