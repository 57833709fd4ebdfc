"""Sharing: what several views, or several places of one, compute alike is computed once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.sql.ir.canonical import digest
from headrace.sql.ir.printing import describe
from headrace.sql.ir.relations import Query, Relation, inputs


@dataclass
class Node:
    """A relation that is computed once.

    Attributes:
        name: what it computes, as :func:`headrace.sql.ir.canonical.digest` names it.
        relation: the relation. Its inputs are those of :attr:`inputs`.
        inputs: the names of what it reads, in order.
        readers: how many nodes and views read it.
    """

    name: str
    relation: Relation
    inputs: tuple[str, ...]
    readers: int = 0


@dataclass
class Graph:
    """All relations of some views, each once.

    Attributes:
        nodes: the relations by name; each after those that it reads.
        views: the node of each view.

    Example::

        graph = shared([first, second])
        assert len(graph.nodes) == 5
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)

    def add(self, query: Query) -> None:
        """Add a view."""
        name = self._place(query.relation)
        self.nodes[name].readers += 1
        self.views[query.name] = name

    def _place(self, relation: Relation) -> str:
        name = digest(relation)
        if name not in self.nodes:
            below = tuple(self._place(one) for one in inputs(relation))
            for one in below:
                self.nodes[one].readers += 1
            self.nodes[name] = Node(name, relation, below)
        return name

    def layers(self, name: str) -> int:
        """Return the number of relations with state on the longest path below a node, with it."""
        from headrace.sql.rules.properties import state_of

        node = self.nodes[name]
        below = max((self.layers(one) for one in node.inputs), default=0)
        return below + (state_of(node.relation).kept != "none")

    def printed(self) -> str:
        """Return the graph as text: a line a node, with the numbers of those that it reads."""
        numbers = {name: at for at, name in enumerate(self.nodes, 1)}
        lines = []
        for name, node in self.nodes.items():
            reads = ", ".join(str(numbers[one]) for one in node.inputs)
            used = f", read {node.readers} times" if node.readers > 1 else ""
            source = f" of {reads}" if reads else ""
            lines.append(f"{numbers[name]}: {describe(node.relation)}{source}{used}")
        views = [f"view {view}: {numbers[name]}" for view, name in self.views.items()]
        return "\n".join([*lines, *views])


def shared(queries: Iterable[Query]) -> Graph:
    """Return the graph of some views, in which equal relations are one node."""
    graph = Graph()
    for query in queries:
        graph.add(query)
    return graph
