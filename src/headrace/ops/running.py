"""Running aggregates: what all records of a key have come to so far."""

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
    """Aggregates of all records of a key since the beginning.

    Produces a record with a column for each aggregate, on ``out``, at the highest event time of the
    records that it is due to.

    Args:
        emit: ``"step"``: one production for each key that had records in a step (and input stream);
            ``"record"``: one for each record, with what the key had come to by then.
        aggregates: the result's name → what is asked.

    Guarantees: the last production of a key holds all its on-time records, however the input was
    divided into steps; what is seen before that, with ``emit="step"``, follows the steps. State: a
    row for each key, for ever.
    Cost: a look-up and a write for each key of a step; ``emit="record"`` takes logarithmic rounds
    in the records of the busiest key.

    Example::

        totals = p.compute("totals", hr.ops.Running(visits=hr.ops.Count()), keys={hits: "page"})

    Raises:
        PipelineError: when drawn, for a column that is not there or cannot be aggregated so.
    """

    deterministic = True

    totals: TableHandle

    def __init__(self, *, emit: Emit = "step", **aggregates: Aggregate) -> None:
        if emit not in ("step", "record"):
            raise PipelineError(
                f"emit={emit!r} is neither 'step' nor 'record'", place="ops.Running"
            )
        self._emit = emit
        self._asked = aggregates

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._asked, inputs, place_of(self, inputs))
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
        """Return what each key had come to at each of its records."""
        alone = self._aggregation.of_records(batch)
        firsts = {name: values[batch.starts] for name, values in alone.items()}
        merged = self._aggregation.merged(before, firsts)
        for name, values in merged.items():
            alone[name] = alone[name].copy()
            alone[name][batch.starts] = values
        return self._aggregation.accumulated(alone, batch.ranks)
