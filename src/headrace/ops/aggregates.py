"""Aggregates of many values, such as counts, sums and means, made of parts that can be combined.

The aggregate of some records is kept as a *partial* result: a few columns from which the result
follows. Partial results of parts of the records combine to that of all records, however they were
divided. Running totals, windows, panes, merging sessions and hot keys are all built on this.

Nulls are skipped, as in SQL: ``Count("x")`` counts values. The sum, minimum, maximum or mean of no
values is null.

Example::

    hr.ops.Tumbling("1m", visits=Count(), longest=Max("seconds"), mean=Mean("seconds"))
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.computation import InputStream
from headrace.errors import BadInput, PipelineError
from headrace.ops.columns import I64, Mask, column_type, field_of, values_of, with_nulls
from headrace.schema.columns import Column, ColumnType

#: Columns of partial results, by name.
Partial = dict[str, Column]


class Aggregate:
    """Base class of aggregates: a function of a column, described as data.

    Args:
        column: the column of the stream.

    Example::

        times = hr.ops.Running(slowest=hr.ops.Max("ms"), mean=hr.ops.Mean("ms"))
        p.compute("times", times, keys={hits: "page"})
    """

    takes: ClassVar[str]

    def __init__(self, column: str) -> None:
        self.column = column
        self.name = ""
        self.kind: ColumnType
        self.nullable = False

    def bound(self, name: str, stream: InputStream, place: str) -> Self:
        """Return a copy of the aggregate that is bound to a stream.

        Args:
            name: the name of the result.
            stream: the stream that has the column.
            place: the place to name in an error.

        Raises:
            PipelineError: if the stream has no such column, or it cannot be aggregated in this way.
        """
        own = copy.copy(self)
        field = field_of(stream, self.column, place)
        own.name, own.nullable = name, field.nullable
        own.kind = column_type(field, place)
        if not own._fits(own.kind.arrow):
            raise PipelineError(
                f"{type(self).__name__}({self.column!r}) takes {self.takes}, and the column is "
                f"{field.type}",
                place=place,
                remedy="choose another column, or convert it with ops.Map first",
            )
        return own

    def _fits(self, kind: pa.DataType) -> bool:
        return True

    def _column(self, part: str) -> str:
        return f"{self.name}_{part}"

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """The columns of its partial results, by name."""
        raise NotImplementedError

    @property
    def field(self) -> pa.Field:
        """The column of its result."""
        raise NotImplementedError

    def of_records(self, batch: KeyedBatch) -> Partial:
        """Return the partial result of each single record."""
        raise NotImplementedError

    def of_groups(self, batch: KeyedBatch) -> Partial:
        """Return the partial result of each group of a batch."""
        return self.combined(self.of_records(batch), batch.starts)

    def combined(self, partial: Partial, starts: I64) -> Partial:
        """Return partial results combined, one for each stretch.

        Args:
            partial: the partial results.
            starts: the position at which each stretch starts.
        """
        raise NotImplementedError

    def merged(self, one: Partial, other: Partial) -> Partial:
        """Return partial results combined pairwise. The first ones are the earlier ones."""
        raise NotImplementedError

    def result(self, partial: Partial) -> pa.Array | Column:
        """Return the results of partial results."""
        raise NotImplementedError


class Count(Aggregate):
    """The number of records or, of a column, the number of values that are not null. An integer.

    Example::

        p.compute("totals", hr.ops.Running(visits=hr.ops.Count()), keys={hits: "page"})
    """

    takes = "any column"

    def __init__(self, column: str | None = None) -> None:
        super().__init__(column or "")

    def bound(self, name: str, stream: InputStream, place: str) -> Self:
        own = copy.copy(self)
        own.name = name
        own.nullable = bool(self.column) and field_of(stream, self.column, place).nullable
        return own

    @property
    def columns(self) -> dict[str, pa.DataType]:
        return {self._column("count"): pa.int64()}

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, pa.int64(), nullable=False)

    def of_records(self, batch: KeyedBatch) -> Partial:
        if self.nullable:
            return {self._column("count"): (~batch.nulls(self.column)).astype(np.int64)}
        return {self._column("count"): np.ones(len(batch), dtype=np.int64)}

    def of_groups(self, batch: KeyedBatch) -> Partial:
        if not self.nullable:
            return {self._column("count"): batch.counts}
        return super().of_groups(batch)

    def combined(self, partial: Partial, starts: I64) -> Partial:
        return {name: np.add.reduceat(values, starts) for name, values in partial.items()}

    def merged(self, one: Partial, other: Partial) -> Partial:
        return {name: values + other[name] for name, values in one.items()}

    def result(self, partial: Partial) -> Column:
        return partial[self._column("count")]


class _Added(Aggregate):
    """Base of sums and means: a sum, and the number of values in it."""

    takes = "a column of numbers"

    @property
    def sum_type(self) -> pa.DataType:
        """The type in which the sum is kept, wide enough to last."""
        kind = self.kind.arrow
        if pa.types.is_floating(kind):
            return pa.float64()
        if pa.types.is_uint64(kind) or pa.types.is_duration(kind):
            return kind
        return pa.int64()

    def _fits(self, kind: pa.DataType) -> bool:
        return bool(
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        )

    @property
    def columns(self) -> dict[str, pa.DataType]:
        return {self._column("sum"): self.sum_type, self._column("count"): pa.int64()}

    def of_records(self, batch: KeyedBatch) -> Partial:
        values, there = values_of(batch, self.kind)
        count = np.ones(len(batch), np.int64) if there is None else there.astype(np.int64)
        wide = values.astype(ColumnType("sum", self.sum_type).dtype)
        return {self._column("sum"): wide, self._column("count"): count}

    def combined(self, partial: Partial, starts: I64) -> Partial:
        return {name: np.add.reduceat(values, starts) for name, values in partial.items()}

    def merged(self, one: Partial, other: Partial) -> Partial:
        return {name: values + other[name] for name, values in one.items()}


class Sum(_Added):
    """The sum of a column of numbers or durations.

    Integers and booleans give a 64-bit integer, which wraps around; floats give a float. Floats are
    added pairwise, in the order of the records, one step after the other. So their rounding depends
    on the steps.

    Example::

        p.compute("time", hr.ops.Running(ms=hr.ops.Sum("ms")), keys={hits: "page"})
    """

    takes = "a column of numbers or durations"

    def _fits(self, kind: pa.DataType) -> bool:
        return super()._fits(kind) or pa.types.is_duration(kind)

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.sum_type, nullable=self.nullable)

    def result(self, partial: Partial) -> pa.Array:
        sums = ColumnType(self.name, self.sum_type).to_arrow(partial[self._column("sum")])
        return with_nulls(sums, partial[self._column("count")] > 0)


class Mean(_Added):
    """The mean of a column of numbers: a float. For integers it is computed from the exact sum.

    Raises (while it runs):
        BadInput: if that sum needs more than 64 bits.

    Example::

        p.compute("means", hr.ops.Running(ms=hr.ops.Mean("ms")), keys={hits: "page"})
    """

    def combined(self, partial: Partial, starts: I64) -> Partial:
        sums = partial[self._column("sum")]
        if len(sums) and _largest(sums) * len(sums) >= _wraps_at(sums):
            self._check(np.add.reduceat(sums.astype(np.float64), starts), sums)
        return super().combined(partial, starts)

    def merged(self, one: Partial, other: Partial) -> Partial:
        sums, more = one[self._column("sum")], other[self._column("sum")]
        if len(sums) and _largest(sums) + _largest(more) >= _wraps_at(sums):
            self._check(sums.astype(np.float64) + more, sums)
        return super().merged(one, other)

    def _check(self, about: Column, sums: Column) -> None:
        """Check that sums have not wrapped around, given approximate sums as floats.

        Raises:
            BadInput: if one has.
        """
        if (np.abs(about) >= _wraps_at(sums)).any():
            raise BadInput(
                f"the sum of column {self.column!r}, for its mean, needs more than 64 bits",
                remedy="convert the column to float before, or to numbers that are smaller: "
                "milliseconds, or what is above some base",
            )

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, pa.float64(), nullable=self.nullable)

    def result(self, partial: Partial) -> pa.Array:
        count = partial[self._column("count")]
        return with_nulls(pa.array(partial[self._column("sum")] / np.maximum(count, 1)), count > 0)


def _largest(sums: Column) -> float:
    """Return the largest absolute value of some sums. 0 for floats, which do not wrap around."""
    if sums.dtype.kind == "f":
        return 0.0
    return max(float(sums.max()), -float(sums.min()))


def _wraps_at(sums: Column) -> float:
    """Return the value at which sums wrap around, with a margin for the rounding of floats."""
    return 2.0 ** (64 if sums.dtype.kind == "u" else 63) * (1 - 1e-6)


class _Extreme(Aggregate):
    """Base of minimum and maximum. If a float is NaN, so is the result."""

    takes = "a column that can be ordered"
    picks: ClassVar[Any]

    @property
    def columns(self) -> dict[str, pa.DataType]:
        return {self._column("value"): self.kind.arrow, self._column("there"): pa.bool_()}

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.kind.arrow, nullable=self.nullable)

    def of_records(self, batch: KeyedBatch) -> Partial:
        values, there = values_of(batch, self.kind)
        there = np.ones(len(batch), dtype=np.bool_) if there is None else there
        return {self._column("value"): values, self._column("there"): there}

    def combined(self, partial: Partial, starts: I64) -> Partial:
        values, there = partial[self._column("value")], partial[self._column("there")]
        if there.all():
            found, some = self.picks.reduceat(values, starts), there[starts]
            return {self._column("value"): found, self._column("there"): some}
        found = self.kind.new(len(starts))
        rows = np.flatnonzero(there)
        if len(rows):
            groups = np.searchsorted(starts, rows, side="right") - 1
            first = np.flatnonzero(np.diff(groups, prepend=-1))
            found[groups[first]] = self.picks.reduceat(values[rows], first)
        some = np.logical_or.reduceat(there, starts)
        return {self._column("value"): found, self._column("there"): some}

    def merged(self, one: Partial, other: Partial) -> Partial:
        value, there = self._column("value"), self._column("there")
        first, second = one[there], other[there]
        merged = self.picks(one[value], other[value])
        if not second.all():
            merged = np.where(second, merged, one[value])
        if not first.all():
            merged = np.where(first, merged, other[value])
        return {value: merged, there: first | second}

    def result(self, partial: Partial) -> pa.Array:
        values = self.kind.to_arrow(partial[self._column("value")])
        return with_nulls(values, partial[self._column("there")])


class Min(_Extreme):
    """The minimum of a column: numbers, texts (by code points), bytes, times or booleans.

    Example::

        p.compute("fastest", hr.ops.Running(ms=hr.ops.Min("ms")), keys={hits: "page"})
    """

    picks = np.minimum


class Max(_Extreme):
    """The maximum of a column: numbers, texts (by code points), bytes, times or booleans.

    Example::

        p.compute("slowest", hr.ops.Running(ms=hr.ops.Max("ms")), keys={hits: "page"})
    """

    picks = np.maximum


class Aggregation:
    """Several named aggregates, bound to the streams of an operator.

    Args:
        aggregates: the aggregates, by the name of their result.
        inputs: the streams that have the columns.
        place: the place to name in an error.
        reserved: names of columns that the operator itself produces.

    Raises:
        PipelineError: if no aggregate is given, for a wrong column, and for an invalid name.
    """

    def __init__(
        self,
        aggregates: Mapping[str, Aggregate],
        inputs: Any,
        place: str,
        reserved: tuple[str, ...] = (),
    ) -> None:
        if not aggregates:
            raise PipelineError(
                "it has nothing to aggregate", place=place, remedy="give it count=ops.Count()"
            )
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise PipelineError(
                    f"{name}={aggregate!r} is not an aggregate",
                    place=place,
                    remedy="use one of headrace.ops: Count, Sum, Min, Max, Mean, First, Last, …",
                )
            if name.startswith("_") or name in reserved:
                raise PipelineError(
                    f"{name!r} cannot be the name of an aggregate",
                    place=place,
                    remedy="choose another",
                )
        self._parts = [
            aggregate.bound(name, inputs[0], place) for name, aggregate in aggregates.items()
        ]
        for stream in inputs[1:]:
            others = [
                aggregate.bound(name, stream, place) for name, aggregate in aggregates.items()
            ]
            for one, other in zip(self._parts, others, strict=True):
                if one.columns != other.columns:
                    raise PipelineError(
                        f"column {one.column!r} has different types in its streams", place=place
                    )
                one.nullable = one.nullable or other.nullable

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """The columns of partial results, by name."""
        return {name: kind for part in self._parts for name, kind in part.columns.items()}

    @property
    def fields(self) -> list[pa.Field]:
        """The columns of results."""
        return [part.field for part in self._parts]

    def read(self, rows: Any) -> Partial:
        """Return the partial results in table rows, or in a batch."""
        return {name: rows[name] for name in self.columns}

    def of_records(self, batch: KeyedBatch) -> Partial:
        """Return the partial results of each single record."""
        return {n: v for part in self._parts for n, v in part.of_records(batch).items()}

    def of_groups(self, batch: KeyedBatch) -> Partial:
        """Return the partial results of each group of a batch."""
        return {n: v for part in self._parts for n, v in part.of_groups(batch).items()}

    def combined(self, partial: Partial, starts: I64) -> Partial:
        """Return partial results combined, one for each stretch. No stretch is empty."""
        if not len(starts):
            return {name: values[:0] for name, values in partial.items()}
        return {
            name: values
            for part in self._parts
            for name, values in part.combined(_own(part, partial), starts).items()
        }

    def merged(self, one: Partial, other: Partial) -> Partial:
        """Return partial results combined pairwise. The first ones are the earlier ones."""
        return {
            name: values
            for part in self._parts
            for name, values in part.merged(_own(part, one), _own(part, other)).items()
        }

    def accumulated(self, partial: Partial, ranks: I64) -> Partial:
        """Return at each position the combination of its stretch up to and including it.

        Takes a number of rounds that is logarithmic in the longest stretch, each over all
        positions.

        Args:
            partial: partial results, stretch after stretch.
            ranks: the position of each within its stretch.
        """
        distance, longest = 1, int(ranks.max(initial=0))
        while distance <= longest:
            rows = np.flatnonzero(ranks >= distance)
            earlier = {name: values[rows - distance] for name, values in partial.items()}
            merged = self.merged(earlier, {name: values[rows] for name, values in partial.items()})
            partial = {name: _replaced(partial[name], rows, merged[name]) for name in partial}
            distance *= 2
        return partial

    def results(self, partial: Partial) -> dict[str, pa.Array | Column]:
        """Return the results, by name."""
        return {part.name: part.result(partial) for part in self._parts}


def _own(part: Aggregate, partial: Partial) -> Partial:
    return {name: partial[name] for name in part.columns}


def _replaced(values: Column, rows: I64 | Mask, by: Column) -> Column:
    values = values.copy()
    values[rows] = by
    return values
