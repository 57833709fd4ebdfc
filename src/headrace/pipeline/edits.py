"""Edits of an existing graph: copying it, removing from it, and replacing code in it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import msgspec

from headrace.errors import PipelineError
from headrace.pipeline.arguments import not_there
from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.nodes import Node
from headrace.pipeline.streams import Stream
from headrace.schema import describe


def copy_into(made: PipelineGraph, pipeline: PipelineGraph) -> None:
    """Copy a pipeline's graph into an empty one, which gets streams of its own."""
    streams: dict[int, Stream] = {}

    def own(stream: Stream) -> Stream:
        if id(stream) not in streams:
            streams[id(stream)] = copy.copy(stream)
            streams[id(stream)].pipeline = made
        return streams[id(stream)]

    for name, node in pipeline.nodes.items():
        made.nodes[name] = msgspec.structs.replace(
            node,
            inputs=[own(stream) for stream in node.inputs],
            outputs={short: own(stream) for short, stream in node.outputs.items()},
        )
    for name, injector in pipeline.injectors.items():
        check = None if injector.check is None else made.nodes[injector.check.name]
        letters = None if injector.letters is None else made.nodes[injector.letters.name]
        made.injectors[name] = msgspec.structs.replace(
            injector, stream=own(injector.stream), check=check, letters=letters
        )
    for name, sink in pipeline.sinks.items():
        made.sinks[name] = msgspec.structs.replace(sink, stream=own(sink.stream))
    made.retained = set(pipeline.retained)
    made.kept = dict(pipeline.kept)
    made.views = dict(pipeline.views)


def streams_gone(graph: PipelineGraph, names: Collection[str]) -> set[str]:
    """Return the streams that are removed with computations.

    That includes streams of injectors that lose their last reader.
    """
    idle = [graph.injectors[name] for name in graph.unread_without(names)]
    nodes = [graph.nodes[name] for name in names]
    nodes += [injector.letters for injector in idle if injector.letters is not None]
    return {stream.name for node in nodes for stream in node.outputs.values()}


def removal_problem(
    graph: PipelineGraph, names: Sequence[str], sinks: Sequence[str]
) -> PipelineError | None:
    """Return why computations and sinks cannot be removed from a graph, or None."""
    for name in names:
        if name not in graph.nodes:
            return not_there(name, "computation", graph.nodes)
    for sink in sinks:
        if sink not in graph.sinks:
            return not_there(sink, "sink", graph.sinks)
    going = streams_gone(graph, names)
    readers = sorted(
        node.name
        for node in graph.nodes.values()
        if node.name not in names and going & {stream.name for stream in node.inputs}
    )
    takers = sorted(
        sink.name
        for sink in graph.sinks.values()
        if sink.name not in sinks and sink.stream.name in going
    )
    if not readers and not takers:
        return None
    users = [f"computation {name!r}" for name in readers] + [f"sink {name!r}" for name in takers]
    return PipelineError(
        f"{', '.join(map(repr, names))} cannot be removed: {', '.join(users)} would have no input",
        remedy="remove these with it (computations by name, sinks by sinks= or --sink)",
    )


def check_replaced(
    graph: PipelineGraph, before: Node, after: Node, place: str, retained: set[str]
) -> None:
    """Check that new code of a computation still produces what others read.

    Args:
        graph: the graph.
        before: the computation as it is.
        after: the computation with its new code.
        place: the place of the new code, for messages.
        retained: the streams of the computation that are retained.

    Raises:
        PipelineError: if it does not.
    """
    taken = {sink.stream.name for sink in graph.sinks.values()} | retained
    now = {stream.name: stream for stream in after.outputs.values()}
    for stream in before.outputs.values():
        if stream.name not in taken and next(graph.consumers(stream.name), None) is None:
            continue
        same = stream.name in now and now[stream.name].values.schema == stream.values.schema
        if not same:
            raise PipelineError(
                f"the new code of {after.name!r} does not produce stream {stream.name!r} as the "
                f"old one did ({describe(stream.values.schema)}), and others take it",
                place=place,
                remedy="declare that output as it was, or replace its readers as well",
            )
