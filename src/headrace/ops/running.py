"""Running aggregates: the aggregates of all records of a key so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError
from headrace.ops.aggregates import Aggregate, Aggregation, Partial
from headrace.ops.columns import place_of

Emit = Literal["step", "record"]


class Running(ColumnarComputation):
    """Aggregates of all records of a key so far.

    Produces on ``out`` a record with a column for each aggregate, at the highest event time of the
    records that caused it.

    Args:
        emit: ``"step"`` produces one record for each key that had records in a step, for each input
            stream. ``"record"`` produces one for each record, with the aggregates up to that
            record.
        aggregates: the aggregates, by the name of their result.

    Guarantees: the last production of a key covers all its on-time records, however the input was
    divided into steps. With ``emit="step"``, earlier productions depend on the steps.

    State: a row for each key, which is never removed. Cost: a look-up and a write for each key of a
    step. ``emit="record"`` takes a number of rounds that is logarithmic in the records of the
    busiest key.

    Example::

        totals = p.compute("totals", hr.ops.Running(visits=hr.ops.Count()), keys={hits: "page"})

    Raises:
        PipelineError: when the pipeline is built, for a column that does not exist or cannot be
            aggregated in this way.
    """

    deterministic = True

    totals: TableHandle

    def __init__(self, *, emit: Emit = "step", **aggregates: Aggregate) -> None:
        if emit not in ("step", "record"):
            raise PipelineError(
                f"emit={emit!r} is neither 'step' nor 'record'", place="ops.Running"
            )
        self._emit = emit
        self._requested = aggregates

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._requested, inputs, place_of(self, inputs))
        return {
            "totals": TableState(self._aggregation.columns),
            "out": Output(pa.schema(self._aggregation.fields)),
        }

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        before = self._aggregation.read(rows)
        if self._emit == "record":
            each = self._each(before, batch)
            rows.upsert(**{name: batch.last(values) for name, values in each.items()})
            ctx.produce("out", batch.row_keys, self._aggregation.results(each))
            return
        now = self._aggregation.merged(before, self._aggregation.of_groups(batch))
        rows.upsert(**now)
        ctx.produce("out", batch.keys, self._aggregation.results(now))

    def _each(self, before: Partial, batch: KeyedBatch) -> Partial:
        """Return the aggregates of each key up to each of its records."""
        alone = self._aggregation.of_records(batch)
        firsts = {name: values[batch.starts] for name, values in alone.items()}
        merged = self._aggregation.merged(before, firsts)
        for name, values in merged.items():
            alone[name] = alone[name].copy()
            alone[name][batch.starts] = values
        return self._aggregation.accumulated(alone, batch.ranks)
