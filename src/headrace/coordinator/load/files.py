"""The files that a new owner of bins has to open before it can read them."""

from __future__ import annotations

from headrace.ledger.head import Head
from headrace.migration.reading import Files
from headrace.runfiles.format import SMALL_FILE


def files_of(head: Head) -> Files:
    """Return what a new owner opens, if all that it gets comes from one worker.

    A worker writes a file for each layer and step that has changed state, and a slice is in the file of
    its step. So the files that hold a worker's state are about those of the steps since the oldest slice.
    """
    layers = len(_layers(head))
    parts = max(1, head.layout.workers) * layers
    large = [run.length for run in head.runs if run.length > SMALL_FILE]
    whole = sum(run.length for run in head.runs) - sum(large)
    return Files(
        first=-(-len(head.runs) // parts),
        layers=layers,
        large=-(-len(large) // parts),
        nbytes=-(-whole // parts),
    )


def _layers(head: Head) -> set[int]:
    """Return the layers that have computations with state."""
    schema = head.stored_schema
    layers = schema.get("layers", {})
    with_state = [name for name, of in schema.get("computations", {}).items() if of["cells"]]
    return {layers.get(name, 1) for name in with_state} or {1}
