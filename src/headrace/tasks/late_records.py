"""Late records: those behind a watermark that their computation has relied on already."""

from __future__ import annotations

import pyarrow as pa

from headrace.computation.batches import keys_apart
from headrace.eventtime.timestamps import MIN_TIME
from headrace.keyspace.ordering import order_by_hash
from headrace.pipeline import Node
from headrace.protocol.plan import NodeReport
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.tasks.routing import key_names, stream_schema


class LateRecords:
    """Separates a computation's late records of a step from those that are on time.

    Lateness is judged by the input watermark of the step before. Timers up to it have fired, so a
    record behind it comes too late for them. A record is never late because of what arrives in the
    same step.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.admitted = 0  # late records of this step that are processed
        self._sides: dict[str, pa.RecordBatch] = {}

    def on_time(
        self, number: int, batch: pa.RecordBatch, before: int, report: NodeReport
    ) -> pa.RecordBatch:
        """Return the records of an input that are to be processed, and count those that are late.

        Args:
            number: which input.
            batch: its records.
            before: the input watermark of the step before.
            report: counts late records.
        """
        node = self._node
        is_process = node.late == "process"
        if is_process and node.computation.judges_late:
            return batch
        if node.inputs[number].is_late or before <= MIN_TIME:
            return batch
        times = batch.column(TIMESTAMP_COLUMN).to_numpy(zero_copy_only=False)
        on_time = times >= max(MIN_TIME, before - node.allowed_lateness_us)
        late = len(times) - int(on_time.sum())
        if not late:
            return batch
        report.late += late
        if is_process:
            self.admitted += late
            return batch
        if node.late == "side":
            name = node.late_output(number)
            columns = batch.select(stream_schema(node.outputs[name]).names)
            self._sides[name] = in_key_order(node, columns.filter(pa.array(~on_time)))
        return batch.filter(pa.array(on_time))

    def take(self) -> dict[str, pa.RecordBatch]:
        """Return the records for side streams by output, and forget them."""
        taken, self._sides = self._sides, {}
        return taken


def in_key_order(node: Node, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a computation's productions sorted by (hash, key). A key's keep their order."""
    hashes = batch.column(HASH).to_numpy()
    if len(hashes) > 1 and not (hashes[1:] >= hashes[:-1]).all():
        batch = batch.take(pa.array(order_by_hash(hashes)))
    if node.hash_is_key:
        return batch
    columns = [batch.column(name) for name in key_names(node)]
    order, _ = keys_apart(batch.column(HASH).to_numpy(), columns)
    return batch if order is None else batch.take(pa.array(order))
