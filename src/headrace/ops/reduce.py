"""Reduce: all records of a key combined into one, by a function of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError
from headrace.ops.columns import I64, column_type, expect_inputs, field_of, place_of, values_of
from headrace.schema.columns import Column

#: Column → array with a value for each key.
Columns = dict[str, Column]


class Reduce(ColumnarComputation):
    """Combines the records of a key with a function of two: the result so far, and the next record.

    The function works on many keys at once. It gets two dicts, column → array with a value for each
    key, and returns such a dict. Times are integers of microseconds, texts are objects. A key's
    first record is its first result. For each key that had records in a step, the result is
    produced on ``out``.

    Args:
        function: ``function(so_far, next) -> dict`` of the same columns. The result for a key must
            depend on that key's values alone.
        columns: the columns it works on; by default all. A record with a null in one of them is
            left out.
        associative: a promise that ``f(f(a, b), c) = f(a, f(b, c))``. A step's records of a key are
            then combined pairwise, in a logarithmic number of calls. Otherwise they are combined
            one after another, in order of arrival. That takes as many calls as the busiest key has
            records in the step.

    Guarantees: without ``associative``, the function sees exactly the sequence of a key's records.

    State: a row for each key, which is never removed.

    Example::

        def farther(so_far, next):
            new = next["km"] > so_far["km"]
            return {name: np.where(new, next[name], so_far[name]) for name in next}


        p.compute("farthest", hr.ops.Reduce(farther, associative=True), keys={trips: "car"})

    Raises:
        PipelineError: for an object that is not a function. When the pipeline is built, for wrong
            columns.
        UserCodeError: in the step, if the function returns other columns.
    """

    kept: TableHandle

    def __init__(
        self,
        function: Callable[[Columns, Columns], Mapping[str, Any]],
        *,
        columns: Sequence[str] | None = None,
        associative: bool = False,
    ) -> None:
        if not callable(function):
            raise PipelineError(f"{function!r} is not a function", place="ops.Reduce")
        self._function = function
        self._chosen = columns
        self._associative = associative

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        place = place_of(self, inputs)
        expect_inputs(inputs, 1, place)
        names = inputs[0].values.schema.names if self._chosen is None else self._chosen
        self._kinds = [column_type(field_of(inputs[0], name, place), place) for name in names]
        columns = {kind.name: kind.arrow for kind in self._kinds}
        # Renamed in the table, since a table cannot have all names that a stream's columns can
        # have.
        table = {f"v_{name}": kind for name, kind in columns.items()}
        fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
        return {"kept": TableState(table), "out": Output(pa.schema(fields))}

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        whole = np.ones(len(batch), dtype=np.bool_)
        for kind in self._kinds:
            _, there = values_of(batch, kind)
            whole &= True if there is None else there
        if not whole.any():
            return
        if not whole.all():
            batch = batch.where(whole)
        rows = self.kept.at(batch.keys)
        values = {kind.name: batch[kind.name] for kind in self._kinds}
        if self._associative:
            values = self._paired(values, batch.group_of_row)
            ranks = np.zeros(len(batch.keys), dtype=np.int64)
            groups = np.arange(len(batch.keys))
        else:
            ranks, groups = batch.ranks, batch.group_of_row
        so_far = {kind.name: rows[f"v_{kind.name}"] for kind in self._kinds}
        so_far = self._in_order(so_far, rows.exists, values, ranks, groups)
        rows.upsert(**{f"v_{name}": column for name, column in so_far.items()})
        ctx.produce("out", batch.keys, so_far)

    def _in_order(
        self, so_far: Columns, begun: Any, values: Columns, ranks: I64, groups: I64
    ) -> Columns:
        """Combine values one after another: the first of all keys, then all second ones, etc."""
        by_rank = np.argsort(ranks, kind="stable")
        edges = np.flatnonzero(np.diff(ranks[by_rank], prepend=-1, append=-1))
        for number, (first, last) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            now = by_rank[first:last]
            if number == 0:
                new = now[~begun[groups[now]]]
                so_far = _replaced(so_far, groups[new], _taken(values, new))
                now = now[begun[groups[now]]]
            if len(now):
                at = groups[now]
                so_far = _replaced(so_far, at, self._of(_taken(so_far, at), _taken(values, now)))
        return so_far

    def _paired(self, values: Columns, groups: I64) -> Columns:
        """Return the combined values of each group, neighbours first: one value for each group."""
        while True:
            ranks = np.arange(len(groups)) - np.searchsorted(groups, groups)
            second = np.flatnonzero(ranks % 2 == 1)
            if not len(second):
                return values
            made = self._of(_taken(values, second - 1), _taken(values, second))
            values = _replaced(values, second - 1, made)
            stays = np.flatnonzero(ranks % 2 == 0)
            values, groups = _taken(values, stays), groups[stays]

    def _of(self, one: Columns, other: Columns) -> Columns:
        """Call the function, and convert its result to the columns' types.

        Raises:
            TypeError: if it returns other columns.
        """
        length = len(next(iter(other.values())))
        found = self._function(one, other)
        if not isinstance(found, Mapping) or set(found) != set(other):
            raise TypeError(
                f"the function of ops.Reduce must return a dict of the columns {', '.join(other)}"
            )
        return {kind.name: kind.coerced(found[kind.name], length) for kind in self._kinds}


def _taken(values: Columns, at: I64) -> Columns:
    return {name: column[at] for name, column in values.items()}


def _replaced(values: Columns, at: I64, by: Columns) -> Columns:
    found = {}
    for name, column in values.items():
        found[name] = column.copy()
        found[name][at] = by[name]
    return found
