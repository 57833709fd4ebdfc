"""The check of record ids: drops records of an injector whose id was seen before.

Of the records with the same id, the first one by source partition and position passes. Records keep
that order, and their positions travel with them.

Nothing is held back, so watermarks pass through unchanged. The computations after the check judge
which records are late, as if there were no check.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation.batches import grouped
from headrace.computation.record_ids import CHECKED, RecordIds
from headrace.eventtime.timestamps import MAX_TIME
from headrace.pipeline import Node
from headrace.protocol.plan import NodeReport
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.state.ids.ids import IdState
from headrace.state.per_worker import PerWorkerState
from headrace.tasks.routing import key_names, with_id

Mask = npt.NDArray[np.bool_]


class IdCheck:
    """Runs the check of an injector's ids on one worker."""

    divisible = False  # see headrace.tasks.key_groups

    def __init__(self, node: Node, ids: RecordIds, state: IdState) -> None:
        self.node = node
        self.state = state
        self._ids = ids
        self._going: pa.RecordBatch | None = None
        self.per_worker = PerWorkerState({}, place=node.name)  # the check has none

    def step(
        self,
        inputs: list[pa.RecordBatch | None],
        owned: Any,
        *,
        step: int,
        late_before: int,
        watermark: int,
        output_before: int,
        clock_us: int,
        highest_clock_us: int,
        seed: int,
        latest: int,
        portions: int = 0,
    ) -> NodeReport:
        """Check a step's records; see :meth:`headrace.tasks.run_keyed.Visitor.step`."""
        report = NodeReport(
            input_watermark=watermark, output_watermark=watermark, next_wall_timer=MAX_TIME
        )
        remembered_from = self._ids.remembered_from(late_before)
        self.state.forget(remembered_from, late_before)
        (batch,) = inputs
        if batch is not None and batch.num_rows:
            goes = self._goes_on(batch, remembered_from, report)
            self._going = batch if goes.all() else batch.filter(pa.array(goes))
            report.records = report.produced = self._going.num_rows
        return report

    def _goes_on(self, batch: pa.RecordBatch, remembered_from: int, report: NodeReport) -> Mask:
        """Return for each record whether it passes, and count those that do not."""
        named = with_id(batch, self.node)
        times = batch.column(TIMESTAMP_COLUMN).to_numpy()
        candidates = np.flatnonzero(named & (times >= remembered_from))
        goes = ~named
        if len(candidates):
            goes[candidates[self._first_of_new(batch, candidates)]] = True
        report.expired = int(named.sum()) - len(candidates)
        report.duplicates = batch.num_rows - int(goes.sum()) - report.expired
        return goes

    def _first_of_new(
        self, batch: pa.RecordBatch, candidates: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return which of the given records are the first of an id that was not seen before."""
        names = key_names(self.node)
        rows = batch.select([HASH, TIMESTAMP_COLUMN, *names])
        if len(candidates) < batch.num_rows:
            rows = rows.take(pa.array(candidates))
        stream = self.node.inputs[0]
        groups = grouped(
            stream.name,
            stream.values,
            rows,
            self.state.key_types,
            names,
            hash_is_key=self.node.hash_is_key,
        )
        ids = groups.keys
        new = self.state.add(ids.hashes, ids.columns, ids.times_us)
        return groups.first_rows[new]

    def take_outputs(self) -> dict[str, pa.RecordBatch]:
        """Return the records that passed, and forget them."""
        going, self._going = self._going, None
        return {} if going is None or not going.num_rows else {CHECKED: going}
