"""The parts of a pipeline as boxes and arrows: what both drawings show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.keys import Computed, Hashed, Salt
from headrace.pipeline.nodes import Injector, Node, SinkNode
from headrace.pipeline.streams import Stream

Kind = Literal["injector", "computation", "sink"]


class Part(msgspec.Struct, frozen=True):
    """An injector, a computation or a sink.

    Attributes:
        id: identifies it: a sink may have the name of a computation.
        kind: which of the three it is.
        name: the user's name for it.
        what: what it is, such as the class of a computation.
        details: more about it, each in a few words.
    """

    id: str
    kind: Kind
    name: str
    what: str
    details: tuple[str, ...] = ()


class Arrow(msgspec.Struct, frozen=True):
    """A stream on its way from one part to another.

    Attributes:
        source, target: the ids of the parts.
        stream: the stream's name within its producer; empty if the producer has only one.
        key: the key by which the target reads it; empty if it keeps the producer's, and for sinks.
    """

    source: str
    target: str
    stream: str = ""
    key: str = ""

    @property
    def label(self) -> str:
        """What to write on the arrow."""
        return " ".join(filter(None, [self.stream, self.key and f"by {self.key}"]))


def parts_of(graph: PipelineGraph) -> list[Part]:
    """Return the parts, producers before consumers."""
    return [
        *(_injector(item) for item in graph.injectors.values()),
        *(_computation(node, graph) for node in graph.nodes.values()),
        *(_sink(item) for item in graph.sinks.values()),
    ]


def arrows_of(graph: PipelineGraph) -> list[Arrow]:
    """Return the arrows, those of one target after each other, in the order of its inputs."""
    found = [
        Arrow(
            _producer(stream, graph), f"computation {node.name}", _short(stream, graph), _key(key)
        )
        for node in graph.nodes.values()
        for stream, key in zip(node.inputs, node.key_columns, strict=True)
    ]
    found += [
        Arrow(_producer(sink.stream, graph), f"sink {sink.name}", _short(sink.stream, graph))
        for sink in graph.sinks.values()
    ]
    return found


def _injector(item: Injector) -> Part:
    what = item.source.source_kind or type(item.source).__name__
    return Part(f"injector {item.name}", "injector", item.name, what)


def _computation(node: Node, graph: PipelineGraph) -> Part:
    details = [f"{name}: {kind}" for name, kind in _kept(node)]
    details += [f"late: {node.late}"] if node.late != node.computation.default_late else []
    details += [f"on_error: {node.on_error}"] if node.on_error != "stop" else []
    names = graph.groups.names
    details += [f"group: {names[node.group.number]}"] if names else []
    kept = [stream.name for stream in node.outputs.values() if stream.name in graph.retained]
    details += [f"retained: {', '.join(kept)}"] if kept else []
    return Part(
        f"computation {node.name}",
        "computation",
        node.name,
        _class(node.computation),
        tuple(details),
    )


def _kept(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the states and timers of a computation, each with its kind."""
    for name, item in [*node.declarations.states.items(), *node.declarations.per_worker.items()]:
        yield name, item.kind
    for name, timer in node.declarations.timers.items():
        yield name, f"timer in {str(timer.domain).replace(chr(95), chr(32))}"


def _sink(item: SinkNode) -> Part:
    return Part(
        f"sink {item.name}", "sink", item.name, _class(item.sink), ("weak",) if item.weak else ()
    )


def _class(some: Any) -> str:
    return type(some).__name__


def _producer(stream: Stream, graph: PipelineGraph) -> str:
    node = graph.producer(stream)
    return f"injector {stream.owner}" if node is None else f"computation {node.name}"


def _short(stream: Stream, graph: PipelineGraph) -> str:
    """Return a stream's name within its producer, if that has more than one."""
    node = graph.producer(stream)
    if node is None or len(node.outputs) == 1:
        return ""
    return next(name for name, own in node.outputs.items() if own.address == stream.address)


def _key(columns: tuple[str | Salt | Hashed | Computed, ...] | None) -> str:
    return "" if columns is None else ", ".join(map(_key_part, columns))


def _key_part(part: str | Salt | Hashed | Computed) -> str:
    if isinstance(part, Computed):
        return f"computed from {', '.join(part.columns)}"
    if isinstance(part, Salt):
        return f"salt of {part.parts}"
    return f"hash of {', '.join(part.columns)}" if isinstance(part, Hashed) else part
