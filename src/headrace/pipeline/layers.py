"""Which computations run together: layers, and computations that are chained within a layer."""

from __future__ import annotations

from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.nodes import Node


def place_in_layer(graph: PipelineGraph, node: Node) -> None:
    """Chain a node to its producer if that is sound; otherwise put it in the next layer.

    Chaining is sound if all of these hold:

    - The node has one input, keyed by the producer's own key, and is in the producer's group. So
      each record is on the worker of its key already.
    - The producer holds nothing back: its output watermark equals its input watermark after every
      step. A producer with holds knows on each worker only that worker's holds, so the result would
      depend on the layout.
    """
    producer = graph.producer(node.inputs[0])
    producers = [graph.layer_of_stream(stream.address) for stream in node.inputs]
    node.chained = (
        len(node.inputs) == 1
        and node.key_columns[0] is None
        and node.inputs[0].group == node.group
        and producer is not None
        and not producer.declarations.holding
    )
    node.layer = producers[0] if node.chained else 1 + max(producers)
