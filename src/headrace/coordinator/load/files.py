"""How many files a new owner of bins has to open before it can read them."""

from __future__ import annotations

from headrace.ledger.head import Head
from headrace.migration.costs import Files


def files_of(head: Head) -> Files:
    """Return what a new owner opens, if all that it gets comes from one worker.

    A worker writes a file for each layer and step that has changed state, and a slice is in the file of
    its step. So the files that hold a worker's state are about those of the steps since the oldest slice.
    """
    layers = len(_layers(head))
    workers = max(1, head.layout.workers)
    return Files(-(-len(head.runs) // (workers * layers)), layers)


def _layers(head: Head) -> set[int]:
    """Return the layers that have computations with state."""
    schema = head.stored_schema
    layers = schema.get("layers", {})
    with_state = [name for name, of in schema.get("computations", {}).items() if of["cells"]]
    return {layers.get(name, 1) for name in with_state} or {1}
