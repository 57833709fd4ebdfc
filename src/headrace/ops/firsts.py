"""Aggregates that pick a value by its time: the first one, and the last one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.ops.aggregates import Aggregate, Partial
from headrace.ops.columns import I64, Mask, values_of, with_nulls


class _ByTime(Aggregate):
    """Base of first and last: a value, its event time, and whether there is one."""

    takes = "a column that a table can keep"

    @property
    def columns(self) -> dict[str, pa.DataType]:
        return {
            self._column("value"): self.kind.arrow,
            self._column("at"): pa.int64(),
            self._column("there"): pa.bool_(),
        }

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.kind.arrow, nullable=self.nullable)

    def of_records(self, batch: KeyedBatch) -> Partial:
        values, there = values_of(batch, self.kind)
        return {
            self._column("value"): values,
            self._column("at"): batch.timestamps_us,
            self._column("there"): np.ones(len(batch), np.bool_) if there is None else there,
        }

    def _wins(self, one: I64, other: I64) -> Mask:
        """Return where the later of two values, in the order of arrival, is the one to keep."""
        raise NotImplementedError

    def _winner(self, order: I64, groups: I64) -> I64:
        """Return the position of each group's value, given positions by group and time."""
        raise NotImplementedError

    def combined(self, partial: Partial, starts: I64) -> Partial:
        there, times = partial[self._column("there")], partial[self._column("at")]
        groups = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(times)))
        order = np.lexsort((times, self._rank(there), groups))
        at = self._winner(order, groups)
        return {name: values[at] for name, values in partial.items()}

    def _rank(self, there: Mask) -> Mask:
        """Return what puts missing values where they are picked only if there are no others."""
        raise NotImplementedError

    def merged(self, one: Partial, other: Partial) -> Partial:
        at, there = self._column("at"), self._column("there")
        later = other[there] & (~one[there] | self._wins(one[at], other[at]))
        return {name: np.where(later, other[name], values) for name, values in one.items()}

    def result(self, partial: Partial) -> pa.Array:
        values = self.kind.to_arrow(partial[self._column("value")])
        return with_nulls(values, partial[self._column("there")])


class First(_ByTime):
    """The value of the record with the earliest event time; of equal times, what arrived first.

    Nulls are skipped, as in all aggregates.

    Example::

        p.compute("entries", hr.ops.Running(page=hr.ops.First("page")), keys={hits: "user"})
    """

    def _wins(self, one: I64, other: I64) -> Mask:
        return other < one

    def _winner(self, order: I64, groups: I64) -> I64:
        ordered = groups[order]
        found: I64 = order[np.append(True, ordered[1:] != ordered[:-1])]
        return found

    def _rank(self, there: Mask) -> Mask:
        return ~there


class Last(_ByTime):
    """The value of the record with the latest event time; of equal times, what arrived last.

    Nulls are skipped, as in all aggregates.

    Example::

        p.compute("exits", hr.ops.Running(page=hr.ops.Last("page")), keys={hits: "user"})
    """

    def _wins(self, one: I64, other: I64) -> Mask:
        return other >= one

    def _winner(self, order: I64, groups: I64) -> I64:
        ordered = groups[order]
        found: I64 = order[np.append(ordered[1:] != ordered[:-1], True)]
        return found

    def _rank(self, there: Mask) -> Mask:
        return there
