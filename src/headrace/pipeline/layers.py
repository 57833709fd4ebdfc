"""Which computations run together: layers, and what is chained within one."""

from __future__ import annotations

from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.nodes import Node


def place_in_layer(drawn: PipelineGraph, node: Node) -> None:
    """Chain the node to its producer where that is sound, or put it a layer below.

    Sound means: one input, keyed by the producer's own key, in the producer's group, so that each
    record is already on the worker of its key; and a producer that holds nothing back (its output
    watermark equals its input watermark after every step). One that may hold knows on each worker only
    of its own holds, and the result would depend on the layout.
    """
    producer = drawn.producer(node.inputs[0])
    producers = [drawn.layer_of_stream(stream.address) for stream in node.inputs]
    node.chained = (
        len(node.inputs) == 1 and node.key_columns[0] is None
        and node.inputs[0].group == node.group
        and producer is not None and not producer.shape.holding
    )  # fmt: skip
    node.layer = producers[0] if node.chained else 1 + max(producers)
