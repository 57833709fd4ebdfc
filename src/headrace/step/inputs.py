"""S, first half: entries become the records of each input, in the order that the step is defined by.

Arrival order is never used. Injected records are applied by source partition and position, which
is the order of splits; produced ones by (hash of the producer's key, key, emission number), which a
stable sort by that hash gives, since each producing worker emits them so and no two workers share
a key.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from headrace.step.route import ORDER, input_schema
from headrace.step.wire import Entry
from headrace.topology import Node


def input_batches(node: Node, entries: Iterable[Entry]) -> list[pa.RecordBatch | None]:
    """Return the records of each input of a computation, in order, or None where there are none."""
    by_input: list[list[Entry]] = [[] for _ in node.inputs]
    for entry in entries:
        by_input[entry.input].append(entry)
    return [_ordered(node, number, found) for number, found in enumerate(by_input)]


def _ordered(node: Node, number: int, entries: list[Entry]) -> pa.RecordBatch | None:
    if not entries:
        return None
    schema = input_schema(node, number)
    entries.sort(key=lambda entry: entry.order)
    batches = [pa.ipc.read_record_batch(pa.py_buffer(entry.body), schema) for entry in entries]
    batch = batches[0] if len(batches) == 1 else concat(batches, schema)
    if node.inputs[number].key_fields:
        order = batch.column(ORDER).to_numpy(zero_copy_only=False)
        batch = batch.take(pa.array(np.argsort(order, kind="stable")))
    return batch


def concat(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return batches as one."""
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    merged = table.to_batches()
    return merged[0] if merged else pa.RecordBatch.from_pylist([], schema=schema)
