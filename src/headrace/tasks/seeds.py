"""Seeds: what a table gives to computations that were added, until they have all of its rows.

See :mod:`headrace.coordinator.seeding`. The task that owns some rows of a table reads them from the
state that it has, so nothing is read twice, and moves and crashes need no care.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.computation.zset_state import WEIGHT
from headrace.keyspace import sweep
from headrace.keyspace.row_hashing import hash_rows
from headrace.pipeline.integrals import Integral, integrals_of
from headrace.protocol.plan import SeedPlan
from headrace.runfiles.batches import as_one_batch, one_array
from headrace.runfiles.sections import SUB_PREFIX, column_name
from headrace.schema.reserved import HASH
from headrace.tasks.late_records import in_key_order
from headrace.tasks.routing import key_names, stream_schema
from headrace.tasks.run_columnar import BatchVisitor
from headrace.tasks.user_code import raise_in_handler

_STORED_WEIGHT = column_name(WEIGHT, 1)


class Seeds:
    """What one table gives in a step.

    Args:
        visitor: the table's computation, with its state after the step.
        plan: which rows are given.
        time_us: the event time of rows that are read from state.
    """

    def __init__(self, visitor: BatchVisitor, plan: SeedPlan, time_us: int) -> None:
        self._visitor, self._plan, self._time_us = visitor, plan, time_us
        self._node, self._state = visitor.node, visitor.state
        self._integrals = {integral.output: integral for integral in integrals_of(visitor.node)}

    def of(self, output: str, produced: pa.RecordBatch | None) -> pa.RecordBatch | None:
        """Return what new readers of an output receive; None if nothing.

        Args:
            output: the output.
            produced: what others receive: the changes of the step.
        """
        changes = None if produced is None else self._of_swept(produced)
        integral = self._integrals.get(output)
        rows = self._recomputed(output) if integral is None else self._rows(integral)
        parts = [part for part in (changes, rows) if part is not None and part.num_rows]
        return in_key_order(self._node, as_one_batch(parts)) if parts else None

    def _of_swept(self, produced: pa.RecordBatch) -> pa.RecordBatch:
        """Return the changes of rows whose key was read before."""
        places = produced.column(HASH).to_numpy()
        swept = sweep.is_swept(places, self._node.group, self._plan.first)
        return produced.filter(pa.array(swept))

    def _rows(self, integral: Integral) -> pa.RecordBatch | None:
        """Return the rows of the keys that are read in this step, in an order that follows from them."""
        section = self._state.states[integral.state].table.section
        found = self._stored.get(section)
        if found is None or not found.num_rows:
            return None
        columns = self._as_produced(integral, found)
        values = columns[2 + len(key_names(self._node)) :]
        order = np.lexsort((hash_rows(values, found.num_rows), columns[0].to_numpy()))
        stream = self._node.outputs[integral.output]
        batch = pa.RecordBatch.from_arrays(columns, schema=stream_schema(stream))
        return batch.take(pa.array(order))

    @cached_property
    def _stored(self) -> dict[str, pa.Table]:
        """The state of the keys that are read in this step, by section."""
        ranges = sweep.portion(self._node.group, self._plan.first, self._plan.end)
        return self._state.whole(ranges.within(self._state.ranges))

    def _recomputed(self, output: str) -> pa.RecordBatch | None:
        """Return the rows of the keys that are read in this step, as the code computes them."""
        keys = self._keys()
        if keys is None:
            return None
        self._state.load_bins_of(keys.hashes)
        visitor = self._visitor
        try:
            visitor.computation.recompute(visitor.context, output, keys)
        except BaseException as error:
            place = (
                f"computation {self._node.name!r}, {len(keys)} keys for new readers of {output!r}"
            )
            raise_in_handler(error, place)
        return visitor.take_outputs().get(output)

    def _keys(self) -> Keys | None:
        """Return the keys that are read in this step and have state; None if there are none."""
        kinds = self._state.key_types
        names = [HASH, *(kind.name for kind in kinds)]
        sections = [of.table.section for of in self._state.states.values()]
        found = [self._stored[name].select(names) for name in sections if name in self._stored]
        if not found:
            return None
        once = pa.concat_tables(found).group_by(names).aggregate([])
        once = once.sort_by([(name, "ascending") for name in names])
        hashes, *columns = (one_array(column) for column in once.columns)
        times = np.full(len(hashes), self._time_us, dtype=np.int64)
        typed = [kind.from_arrow(column) for kind, column in zip(kinds, columns, strict=True)]
        return Keys(kinds, hashes.to_numpy(), typed, lambda: (times, times), once=True)

    def _as_produced(self, integral: Integral, stored: pa.Table) -> list[pa.Array]:
        """Return the columns of stored rows as the output has them."""
        keys = [one_array(column) for column in stored.columns[1 : 1 + len(key_names(self._node))]]
        times = pa.array(np.full(stored.num_rows, self._time_us, dtype=np.int64))
        columns = [one_array(stored.column(HASH)), times, *keys]
        for field in self._node.outputs[integral.output].values.schema:
            is_weight = field.name == integral.weight
            name = _STORED_WEIGHT if is_weight else SUB_PREFIX + field.name
            column = one_array(stored.column(name))
            columns.append(column if column.type == field.type else column.cast(field.type))
        return columns
