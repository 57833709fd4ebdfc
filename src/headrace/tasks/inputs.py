"""The records of each input, in the order that defines the step.

The order of arrival is never used.

- Injected records are ordered by source partition and position. That is the order of splits. If
  their ids were checked, they were routed by id in between, so the position travels with them.
- Produced records are ordered by the hash of the producer's key, then the key, then the emission
  number. A stable sort by that hash gives this order: a worker emits its records in it, and no two
  workers share a key.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.keyspace.ordering import order_by_hash
from headrace.protocol.parcels import Entry, Spool
from headrace.tasks.routing import ORDER, InputFormat


def input_batches(
    formats: list[InputFormat], entries: Iterable[Entry], spool: Spool | None
) -> list[pa.RecordBatch | None]:
    """Return the records of each input of a computation, in order; None for an empty input."""
    by_input: list[list[Entry]] = [[] for _ in formats]
    for entry in entries:
        by_input[entry.input].append(entry)
    pairs = zip(formats, by_input, strict=True)
    return [_ordered(format_, found, spool) if found else None for format_, found in pairs]


def _ordered(format_: InputFormat, entries: list[Entry], spool: Spool | None) -> pa.RecordBatch:
    entries.sort(key=lambda entry: entry.order)
    batch = format_.unpack([entry.content(spool) for entry in entries])
    if format_.ordered_by is not None and len(entries) > 1:
        order = batch.column(ORDER).to_numpy(zero_copy_only=False)
        if not (order[1:] >= order[:-1]).all():
            batch = batch.take(pa.array(order_by_hash(order)))
    return batch
