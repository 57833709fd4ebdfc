"""What is checked of sinks together."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import PipelineError
from headrace.pipeline.nodes import SinkNode
from headrace.pipeline.sink import Sink


def check_apart(name: str, sink: Sink, others: Iterable[SinkNode]) -> None:
    """Check that a sink writes nothing under names that another one writes.

    Each names its files by the step: the same rows would be taken for a step that comes again.

    Raises:
        PipelineError: when one does.
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
