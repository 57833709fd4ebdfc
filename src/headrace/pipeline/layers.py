"""Which computations run together: layers, and computations that are chained within a layer."""

from __future__ import annotations

from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.nodes import Node


def place_in_layer(graph: PipelineGraph, node: Node) -> None:
    """Chain a node to its producers if that is sound; otherwise put it in the next layer.

    It is chained if all producers of the last layer before it can be in its own task. What comes
    from earlier layers is routed. Chaining to a producer is sound if all of these hold:

    - The input is keyed by the producer's own key, and the node is in the producer's group. So each
      record is on the worker of its key already.
    - The producer holds nothing back: its output watermark equals its input watermark after every
      step. A producer with holds knows on each worker only that worker's holds, so the result would
      depend on the layout.
    """
    layers = [graph.layer_of_stream(stream.address) for stream in node.inputs]
    last = [number for number, layer in enumerate(layers) if layer == max(layers)]
    is_chained = all(_may_be_chained(graph, node, number) for number in last)
    node.chained_inputs = frozenset(last if is_chained else ())
    node.layer = max(layers) if is_chained else 1 + max(layers)


def _may_be_chained(graph: PipelineGraph, node: Node, number: int) -> bool:
    stream = node.inputs[number]
    producer = graph.producer(stream)
    return (
        node.key_columns[number] is None
        and stream.group == node.group
        and producer is not None
        and not producer.declarations.holding
    )
