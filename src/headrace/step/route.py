"""F: the end of a stage. Hash keys, find bin and worker *for this step*, pack an entry per worker.

The schema of each input of each computation is known to both sides from the pipeline, so entries
carry bare record batches: ``hash``, ``timestamp_us``, ``order`` (the producer's key hash, for produced
records), the parts of the key where they are not columns of the value, and the value's columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadInput
from headrace.keyspace.hashing import hash_columns
from headrace.keyspace.layout import Layout
from headrace.sources.base import TIMESTAMP_COLUMN
from headrace.state.runs import HASH
from headrace.step.wire import Entry
from headrace.topology import Node, Pipeline, Stream

ORDER = "order"


def key_names(node: Node) -> list[str]:
    """Return the columns that carry the key of a computation's input on the wire."""
    return [f"__key{i}" for i in range(len(node.key_fields))]


def input_schema(node: Node, number: int) -> pa.Schema:
    """Return the columns of one input of a computation on the wire."""
    stream = node.inputs[number]
    fields = [pa.field(HASH, pa.uint64()), pa.field(TIMESTAMP_COLUMN, pa.int64())]
    if stream.key_fields:
        fields.append(pa.field(ORDER, pa.uint64()))
    for name, field in zip(key_names(node), node.key_fields, strict=True):
        fields.append(pa.field(name, field.type))
    return pa.schema(fields + list(stream.values.schema))


def stream_schema(stream: Stream) -> pa.Schema:
    """Return the columns of a stream's productions as they are staged: with the producer's key."""
    keys = [pa.field(f"__key{i}", field.type) for i, field in enumerate(stream.key_fields)]
    fields = [pa.field(HASH, pa.uint64()), pa.field(TIMESTAMP_COLUMN, pa.int64()), *keys]
    return pa.schema(fields + list(stream.values.schema))


class Outbox:
    """Entries on their way, by consuming worker."""

    def __init__(self, workers: int) -> None:
        self.entries: list[list[Entry]] = [[] for _ in range(workers)]

    def add(self, worker: int, entry: Entry) -> None:
        """Add an entry for a worker."""
        self.entries[worker].append(entry)


def route_stream(
    pipeline: Pipeline, layout: Layout, stream: Stream, batch: pa.RecordBatch | pa.Table,
    *, order: int, outbox: Outbox, place: str,
) -> None:  # fmt: skip
    """Send a stream's records to all its consumers but the chained ones.

    Args:
        batch: for an injector's stream its ``timestamp_us`` and value columns, for a computation's
            the columns of :func:`stream_schema`.
        order: split number, or producing worker.
        place: where the records come from, for errors.
    """
    for node, number in pipeline.consumers(stream.name):
        if node.chained:
            continue
        rows = consumer_rows(node, number, batch, place=place)
        for worker, part in _by_worker(rows, layout):
            outbox.add(worker, Entry(node.name, number, order, part.num_rows, _serialize(part)))


def _serialize(part: pa.RecordBatch) -> bytes:
    data: bytes = part.serialize().to_pybytes()
    return data


def consumer_rows(
    node: Node, number: int, batch: pa.RecordBatch | pa.Table, *, place: str
) -> pa.RecordBatch:
    """Return records as one input of a computation wants them: with its own key and hash.

    Raises:
        BadInput: for a null in a key.
    """
    stream = node.inputs[number]
    keys = _keys(node, number, batch, place)
    columns = [batch.column(TIMESTAMP_COLUMN)]
    if node.key_columns[number] is None:
        hashes = batch.column(HASH)
    else:
        hashes = pa.array(hash_columns(keys))
    if stream.key_fields:
        columns.append(batch.column(HASH))
    columns += [*keys, *(batch.column(name) for name in stream.values.schema.names)]
    flat = [_flat(column) for column in [hashes, *columns]]
    return pa.record_batch(flat, schema=input_schema(node, number))


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _keys(node: Node, number: int, batch: pa.RecordBatch | pa.Table, place: str) -> list[pa.Array]:
    chosen = node.key_columns[number]
    names = chosen if chosen is not None else tuple(key_names(node))
    found = []
    for name, field in zip(names, node.key_fields, strict=True):
        column = _flat(batch.column(name))
        if column.null_count:
            row = int(np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False))[0])
            raise BadInput(
                f"the key {name!r} of computation {node.name!r} is null",
                place=f"{place}, record {row + 1} of stream {node.inputs[number].name!r}",
                remedy="filter such records out before, or key the stream by a column that is "
                "always there; nothing of this step was committed",
            )
        found.append(column if column.type == field.type else column.cast(field.type))
    return found


def _by_worker(rows: pa.RecordBatch, layout: Layout) -> list[tuple[int, pa.RecordBatch]]:
    """Divide rows among workers, keeping their order."""
    if rows.num_rows == 0:
        return []
    owners = layout.workers_of(rows.column(HASH).to_numpy(zero_copy_only=False))
    if layout.workers == 1 or (owners == owners[0]).all():
        return [(int(owners[0]), rows)]
    by_owner = np.argsort(owners.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    owners = owners[by_owner]
    rows = rows.take(pa.array(by_owner))
    edges: npt.NDArray[np.int64] = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))
    return [
        (int(owners[first]), rows.slice(first, last - first))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
