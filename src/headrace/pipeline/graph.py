"""The pipeline graph, for reading: computations by layer, streams, and their readers."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping

from headrace.errors import PipelineError
from headrace.keyspace.groups import Groups
from headrace.pipeline.declared_schema import (
    DeclaredSchema,
    DeclaredView,
    schema_of,
    with_groups,
)
from headrace.pipeline.nodes import Injector, Node, SinkNode
from headrace.pipeline.retention import Keep
from headrace.pipeline.streams import Stream


class PipelineGraph:
    """The graph of a pipeline, as the code sees it that runs it. :class:`Pipeline` builds it.

    Attributes:
        name: the pipeline's name.
        injectors, nodes, sinks: its parts, each by name, in the order in which they were added.
        retained: the streams whose productions are kept, by name.
        kept: how much of a retained stream is kept, for those of which not everything is kept.
        groups: which computations' state moves together.
        views: the views of SQL that its computations maintain, by name.
    """

    def __init__(self, name: str, groups: Groups) -> None:
        self.name = name
        self.groups = groups
        self.injectors: dict[str, Injector] = {}
        self.nodes: dict[str, Node] = {}
        self.sinks: dict[str, SinkNode] = {}
        self.retained: set[str] = set()
        self.kept: dict[str, Keep] = {}
        self.views: dict[str, DeclaredView] = {}

    @property
    def layers(self) -> int:
        """The number of layers of computations."""
        return max((node.layer for node in self.nodes.values()), default=0)

    def nodes_of(self, layer: int) -> list[Node]:
        """Return the computations of a layer, producers before those chained to them."""
        return [node for node in self.nodes.values() if node.layer == layer]

    def consumers(self, stream: str) -> Iterator[tuple[Node, int]]:
        """Yield each (computation, input number) that reads a stream, by the stream's address."""
        for node in self.nodes.values():
            for number, candidate in enumerate(node.inputs):
                if candidate.address == stream:
                    yield node, number

    def readers_of(self, injector: str) -> list[str]:
        """Return the computations that an injector's records reach, directly or indirectly."""
        streams, found = {injector}, []
        for node in self.nodes.values():  # producers are added before consumers
            if any(stream.name in streams for stream in node.inputs):
                found.append(node.name)
                streams.update(stream.name for stream in node.outputs.values())
        return found

    def unread_without(self, names: Collection[str]) -> list[str]:
        """Return the injectors that lose their last reader if these computations are removed."""
        return [
            injector
            for injector, item in self.injectors.items()
            if not self._readers(item) - set(names)
            and any(node.name in names for node in self._reading(item))
        ]

    def _readers(self, injector: Injector) -> set[str]:
        """Return the names of an injector's readers, without the engine's own computations."""
        return {node.name for node in self._reading(injector) if node not in injector.own}

    def _reading(self, injector: Injector) -> list[Node]:
        names = {injector.name}  # its records have this name before and after the check
        if injector.letters is not None:
            names |= {stream.name for stream in injector.letters.outputs.values()}
        return [node for node in self.nodes.values() if names & {s.name for s in node.inputs}]

    def side_streams(self, injector: str) -> Mapping[str, Stream]:
        """Return the side streams of an injector. A name that is not an injector's has none."""
        found = self.injectors.get(injector)
        return {} if found is None or found.letters is None else found.letters.outputs

    @property
    def checks(self) -> dict[str, Injector]:
        """Injectors by the names of the engine's computations for them: checks and dead letters."""
        return {
            node.name: injector for injector in self.injectors.values() for node in injector.own
        }

    def producer(self, stream: Stream) -> Node | None:
        """Return the computation that produces a stream, or None if an injector reads it."""
        for node in self.nodes.values():
            if any(output.address == stream.address for output in node.outputs.values()):
                return node
        return None

    def injectors_of(self, stream: Stream) -> list[str]:
        """Return the injectors from which a stream's records come, directly or indirectly."""
        owner = stream.owner
        if owner in self.injectors:
            return [owner]
        above = [self.injectors_of(source) for source in self.nodes[owner].inputs]
        return sorted({name for names in above for name in names})

    def layer_of_stream(self, stream: str) -> int:
        """Return the layer that produces a stream, by its address. 0 if an injector reads it."""
        for node in self.nodes.values():
            if any(output.address == stream for output in node.outputs.values()):
                return node.layer
        return 0

    def streams(self) -> dict[str, Stream]:
        """Return all streams, by address."""
        found = {item.stream.address: item.stream for item in self.injectors.values()}
        for item in self.injectors.values():
            if item.letters is not None:
                found.update({stream.address: stream for stream in item.letters.inputs})
        for node in self.nodes.values():
            found.update({stream.address: stream for stream in node.outputs.values()})
        return found

    @property
    def staged(self) -> set[str]:
        """The streams whose productions a step stages: those of sinks, and the retained ones."""
        return self.retained | self.sink_streams

    @property
    def sink_streams(self) -> set[str]:
        """The streams that sinks receive."""
        return {sink.stream.name for sink in self.sinks.values()}

    @property
    def weak_only(self) -> set[str]:
        """The streams that only weak sinks receive, and that are not retained."""
        strong = {sink.stream.name for sink in self.sinks.values() if not sink.weak}
        return self.sink_streams - strong - self.retained

    def declared_schema(self) -> DeclaredSchema:
        """Return the facts that stored data depends on, as plain data.

        The storage keeps them, and they are compared at each start.
        """
        found = schema_of(self.injectors, self.nodes, self.streams(), self.retained)
        if self.views:
            found["views"] = self.views
        return with_groups(found, self.groups, self.nodes)

    def check_complete(self) -> None:
        """Check what can only be known once the graph is complete.

        Raises:
            PipelineError: for a pipeline that would do nothing, and for injectors that would take
                records away from each other.
        """
        if not self.injectors or not self.nodes:
            raise PipelineError(
                f"pipeline {self.name!r} has no {'computation' if self.injectors else 'injector'}",
                remedy="add at least one injector and one computation",
            )
        for name, injector in self.injectors.items():
            if not self._readers(injector):
                raise PipelineError(
                    f"no computation reads injector {name!r}",
                    remedy="remove it, or name it in the keys= of a computation",
                )
        for one, other in itertools.combinations(self.injectors.values(), 2):
            takes = one.source.consumes or other.source.consumes
            if takes and one.source.reads_the_same(other.source):
                raise PipelineError(
                    f"injectors {one.name!r} and {other.name!r} read the same "
                    f"{type(one.source).__name__}: what the one has read is gone for the other",
                    remedy="add one injector, and let several computations read its stream",
                )
