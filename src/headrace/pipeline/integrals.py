"""Integrals: Z-sets in which a computation keeps the rows of all that it has produced.

What a computation produces on an output may be *changes*: rows with weights. If it keeps their sum in
a Z-set (:class:`headrace.ZSetState`), a reader that is added later can begin with these rows. It also can
if the computation is able to compute them again from its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.computation.zset_state import ZSetState
from headrace.errors import PipelineError
from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.nodes import Node


class Integral(NamedTuple):
    """A Z-set with the rows of all that was produced on an output.

    Attributes:
        output: the output.
        state: the Z-set.
        weight: the output's column of weights. Its other columns are those of the Z-set.
    """

    output: str
    state: str
    weight: str


def integrals_of(node: Node) -> Iterator[Integral]:
    """Yield the outputs of a computation whose rows it keeps."""
    for output, state in node.computation.integrals.items():
        kept = node.declarations.states[state]
        assert isinstance(kept, ZSetState)
        names = node.outputs[output].values.schema.names
        (weight,) = set(names) - set(kept.schema.names)
        yield Integral(output, state, weight)


def streams_with_rows(graph: PipelineGraph) -> dict[str, str]:
    """Return the streams of a graph whose rows their producer has, each with the producer."""
    constant = {n: n for n, injector in graph.injectors.items() if injector.source.is_constant}
    return constant | {
        node.outputs[output].name: node.name
        for node in graph.nodes.values()
        for output in (*node.computation.integrals, *node.computation.recomputes)
    }


def check_integrals(node: Node, place: str) -> None:
    """Check that the Z-sets which a computation names can hold what it produces.

    Raises:
        PipelineError: for one that is not there, lets rows go, or has other columns than the output.
    """
    for output in node.computation.recomputes:
        if output not in node.outputs:
            raise PipelineError(
                f"computation {node.name!r} recomputes {output!r}, which it does not declare",
                place=place,
                remedy=f"its outputs are: {', '.join(node.outputs) or 'none'}",
            )
    for output, state in node.computation.integrals.items():
        kept = node.declarations.states.get(state)
        what = f"computation {node.name!r} says that {state!r} holds the rows of {output!r}"
        if output not in node.outputs or not isinstance(kept, ZSetState):
            missing = "output" if output not in node.outputs else "ZSetState"
            raise PipelineError(
                f"{what}, and declares no such {missing}",
                place=place,
                remedy="name them in integrals = {output: state}",
            )
        if kept.until_us:
            raise PipelineError(
                f"{what}, and lets rows go (until=)",
                place=place,
                remedy="leave it out of integrals",
            )
        names = node.outputs[output].values.schema.names
        weights = [name for name in names if name not in kept.schema.names]
        if len(weights) != 1 or len(names) != len(kept.schema.names) + 1:
            raise PipelineError(
                f"{what}, whose columns are {', '.join(kept.schema.names)}; the output has "
                f"{', '.join(names)}",
                place=place,
                remedy="the output has the columns of the Z-set, and one more for the weight",
            )
