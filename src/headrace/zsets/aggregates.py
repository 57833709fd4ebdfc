"""Aggregates of groups of a Z-set. Nulls are skipped, as in SQL.

A *linear* aggregate follows from sums over the group's rows, which insertions and deletions change
alike: counts, and sums, means and variances of integers and decimals. Its group costs one row of
state, however many rows it has.

Every other aggregate *looks again* at the rows of a group that has changed: extremes, everything
that is distinct, and sums of floats, since floats cannot be taken away from a sum without a trace
((1e16 + 1) - 1e16 is not 1). Floats are added in an order that depends on the rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.schema.row_columns import MOST_DIGITS, row_type
from headrace.schema.whole_decimals import (
    TooLarge,
    decimals_of,
    summed,
    whole_numbers,
    whole_of,
    wide_of,
)
from headrace.zsets.linear import field_of
from headrace.zsets.ordering import sort_words
from headrace.zsets.rows import I64, Rows, plain_column, summed_weights

#: The type of sums of up to 38 digits.
SUM = pa.decimal128(38, 0)
Sums = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Aggregate:
    """Base class of aggregates.

    Example::

        rows = hr.zsets.table("rows", hits)
        rows.group("totals", "page", n=hr.zsets.Count(), ms=hr.zsets.Sum("ms"))

    Args:
        column: the column; None for whole rows, where that makes sense.
        distinct: whether each value counts once, however many rows have it.
        type: the Arrow type of the result, where it is not what follows from the column's.
    """

    column: str | None = None
    distinct: bool = False
    type: pa.DataType | None = None
    #: Whether rows count alike in whatever order they are given.
    any_order: ClassVar[bool] = False

    def field(self, name: str, schema: pa.Schema, place: str) -> pa.Field:
        """Return the column of its result.

        Raises:
            PipelineError: if the column cannot be aggregated in this way.
        """
        raise NotImplementedError

    def is_linear(self, schema: pa.Schema) -> bool:
        """Return whether it follows from sums."""
        return False

    def sums(self) -> dict[str, pa.DataType]:
        """Return the sums that it follows from, by name."""
        return {}

    def partials(self, rows: Rows, starts: I64) -> dict[str, npt.NDArray[Any]]:
        """Return what stretches of rows add to its sums."""
        return {}

    def of_sums(self, field: pa.Field, sums: Sums, weights: I64, kind: pa.DataType) -> pa.Array:
        """Return the result for each group.

        Args:
            field: the column of the result.
            sums: the sums of each group.
            weights: the number of rows of each group.
            kind: the type of the column.
        """
        raise NotImplementedError

    def of_rows(self, field: pa.Field, rows: Rows, group: I64, groups: int) -> pa.Array:
        """Return the result for each group, from its rows.

        Args:
            field: the column of the result.
            rows: the rows of all groups, in canonical order, each with a weight above 0.
            group: the group of each row, ascending.
            groups: the number of groups.
        """
        raise NotImplementedError

    def _kind(self, schema: pa.Schema, place: str) -> pa.DataType:
        if self.column is None:
            raise PipelineError(f"{type(self).__name__}() needs a column", place=place)
        return field_of(schema, self.column, place).type

    def _number(self, schema: pa.Schema, place: str) -> pa.DataType:
        kind = self._kind(schema, place)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return kind
        raise PipelineError(
            f"{type(self).__name__}({self.column!r}) takes numbers, and the column is {kind}",
            place=place,
            remedy="choose another column, or convert it with select() first",
        )

    def _is_exact(self, schema: pa.Schema) -> bool:
        assert self.column is not None
        return not (self.distinct or pa.types.is_floating(schema.field(self.column).type))

    def _values(self, rows: Rows) -> Rows:
        """Return the rows that have a value: each value of a group once, if it is distinct."""
        assert self.column is not None
        return rows.take(~rows.nulls(self.column)) if rows.columns[self.column].null_count else rows


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of rows or, of a column, the number of values that are not null.

    Args:
        where: a column of booleans; only rows count in which it is true.

    Example::

        rows = hr.zsets.table("rows", hits)
        rows.group("totals", "page", n=hr.zsets.Count(), users=hr.zsets.Count("user", distinct=True))
    """

    where: str | None = None
    any_order = True

    def field(self, name: str, schema: pa.Schema, place: str) -> pa.Field:
        if self.column is not None:
            field_of(schema, self.column, place)
        if self.where is not None and field_of(schema, self.where, place).type != pa.bool_():
            raise PipelineError(
                f"where={self.where!r}: the column is of type {schema.field(self.where).type}",
                place=place,
                remedy="name a column of booleans",
            )
        return pa.field(name, row_type(self.type or pa.int64()), nullable=False)

    def is_linear(self, schema: pa.Schema) -> bool:
        return not self.distinct

    def sums(self) -> dict[str, pa.DataType]:
        return {} if self.column is None and self.where is None else {"n": pa.int64()}

    def partials(self, rows: Rows, starts: I64) -> dict[str, npt.NDArray[Any]]:
        if self.column is None and self.where is None:
            return {}
        weights = self.weights_of(rows)
        if self.column is not None and rows.columns[self.column].null_count:
            weights = np.where(rows.nulls(self.column), 0, weights)
        return {"n": summed_weights(weights, starts)}

    def weights_of(self, rows: Rows) -> I64:
        """Return how often rows count, whatever is in the column."""
        return rows.weights if self.where is None else np.where(rows[self.where], rows.weights, 0)

    def of_sums(self, field: pa.Field, sums: Sums, weights: I64, kind: pa.DataType) -> pa.Array:
        return pa.array(sums.get("n", weights), field.type)

    def of_rows(self, field: pa.Field, rows: Rows, group: I64, groups: int) -> pa.Array:
        if self.where is not None:
            rows, group = rows.take(rows[self.where]), group[rows[self.where]]
        _, of = _distinct_values(rows, group, self.column or "")
        return pa.array(np.bincount(of, minlength=groups).astype(np.int64), field.type)


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum. Integers have a sum of 64 bits, decimals one with ten more digits; null of no values.

    A sum beyond its type is an error, and never wraps.

    Example::

        rows = hr.zsets.table("rows", hits)
        rows.group("totals", "page", ms=hr.zsets.Sum("ms"))
    """

    def field(self, name: str, schema: pa.Schema, place: str) -> pa.Field:
        kind = self._number(schema, place)
        found = pa.int64()
        if pa.types.is_floating(kind):
            found = pa.float64()
        elif pa.types.is_decimal(kind):
            found = pa.decimal128(min(MOST_DIGITS, kind.precision + 10), kind.scale)
        return pa.field(name, row_type(self.type or found))

    def is_linear(self, schema: pa.Schema) -> bool:
        return self._is_exact(schema)

    def sums(self) -> dict[str, pa.DataType]:
        return {"n": pa.int64(), "x": SUM}

    def partials(self, rows: Rows, starts: I64) -> dict[str, npt.NDArray[Any]]:
        assert self.column is not None
        n = _counted(rows, self.column, starts)
        return {"n": n, "x": summed(_whole(rows, self.column), rows.weights, starts)}

    def of_sums(self, field: pa.Field, sums: Sums, weights: I64, kind: pa.DataType) -> pa.Array:
        return _as_number(field.type, sums["x"], sums["n"] > 0, _scale(kind))

    def of_rows(self, field: pa.Field, rows: Rows, group: I64, groups: int) -> pa.Array:
        assert self.column is not None
        values, of, times = _values_of(self, rows, group)
        n = np.bincount(of, minlength=groups)
        if pa.types.is_floating(values.type):
            return _floats(_float_sums(values, times, of, groups), n > 0, field.type)
        found = _exact_sums(values, times, of, groups)
        return _as_number(field.type, found, n > 0, _scale(values.type))


@dataclass(frozen=True)
class Avg(Aggregate):
    """The mean: a float, or of decimals a decimal with four more digits, rounded half up.

    Example::

        rows = hr.zsets.table("rows", hits)
        rows.group("totals", "page", ms=hr.zsets.Avg("ms"))
    """

    def field(self, name: str, schema: pa.Schema, place: str) -> pa.Field:
        kind = self._number(schema, place)
        found = pa.float64()
        if pa.types.is_decimal(kind):
            scale = min(MOST_DIGITS, kind.scale + 4)
            found = pa.decimal128(min(MOST_DIGITS, kind.precision + 4), scale)
        return pa.field(name, row_type(self.type or found))

    def is_linear(self, schema: pa.Schema) -> bool:
        return self._is_exact(schema)

    def sums(self) -> dict[str, pa.DataType]:
        return {"n": pa.int64(), "x": SUM}

    def partials(self, rows: Rows, starts: I64) -> dict[str, npt.NDArray[Any]]:
        return Sum(self.column).partials(rows, starts)

    def of_sums(self, field: pa.Field, sums: Sums, weights: I64, kind: pa.DataType) -> pa.Array:
        return _means(field.type, sums["x"], sums["n"], _scale(kind))

    def of_rows(self, field: pa.Field, rows: Rows, group: I64, groups: int) -> pa.Array:
        values, of, times = _values_of(self, rows, group)
        n = np.bincount(of, times, minlength=groups).astype(np.int64)
        if pa.types.is_floating(values.type):
            found = _float_sums(values, times, of, groups) / np.maximum(n, 1)
            return _floats(found, n > 0, field.type)
        return _means(field.type, _exact_sums(values, times, of, groups), n, _scale(values.type))


@dataclass(frozen=True)
class Variance(Aggregate):
    """The variance of a sample, or of a population; or its root. A float; null of too few values.

    Args:
        population: whether the rows are all there are. If not, they are a sample.
        root: whether to take the root: the standard deviation.

    Example::

        rows = hr.zsets.table("rows", hits)
        rows.group("totals", "page", spread=hr.zsets.Variance("ms", root=True))
    """

    population: bool = False
    root: bool = False

    def field(self, name: str, schema: pa.Schema, place: str) -> pa.Field:
        self._number(schema, place)
        return pa.field(name, pa.float64())

    def is_linear(self, schema: pa.Schema) -> bool:
        return self._is_exact(schema)

    def sums(self) -> dict[str, pa.DataType]:
        return {"n": pa.int64(), "x": SUM, "xx": SUM}

    def partials(self, rows: Rows, starts: I64) -> dict[str, npt.NDArray[Any]]:
        assert self.column is not None
        values = _whole(rows, self.column)
        squares = _squares(values)
        partials = Sum(self.column).partials(rows, starts)
        return {**partials, "xx": summed(squares, rows.weights, starts)}

    def of_sums(self, field: pa.Field, sums: Sums, weights: I64, kind: pa.DataType) -> pa.Array:
        unit = 10 ** _scale(kind)
        exact = zip(
            whole_numbers(sums["n"]),
            whole_numbers(sums["x"]),
            whole_numbers(sums["xx"]),
            strict=True,
        )
        return pa.array([self._of(n, n * xx - x * x, unit) for n, x, xx in exact], pa.float64())

    def _of(self, n: int, spread: int, unit: int) -> float | None:
        """Return the variance, from n² times the variance of the population in units squared."""
        least = 1 if self.population else 2
        if n < least:
            return None
        found = spread / (n * (n if self.population else n - 1) * unit * unit)
        return float(found**0.5 if self.root else found)

    def of_rows(self, field: pa.Field, rows: Rows, group: I64, groups: int) -> pa.Array:
        values, of, times = _values_of(self, rows, group)
        n = np.bincount(of, times, minlength=groups)
        plain = _as_floats(values)
        mean = np.bincount(of, plain * times, minlength=groups) / np.maximum(n, 1)
        apart = np.bincount(of, (plain - mean[of]) ** 2 * times, minlength=groups)
        rest = n if self.population else n - 1
        found = apart / np.maximum(rest, 1)
        return _floats(np.sqrt(found) if self.root else found, rest > 0, pa.float64())


@dataclass(frozen=True)
class Extreme(Aggregate):
    """Base of :class:`Min` and :class:`Max`: of any ordered column. NaN is above all numbers."""

    greatest = False
    any_order = True

    def field(self, name: str, schema: pa.Schema, place: str) -> pa.Field:
        return pa.field(name, row_type(self._kind(schema, place)))

    def of_rows(self, field: pa.Field, rows: Rows, group: I64, groups: int) -> pa.Array:
        assert self.column is not None
        at = self.places(rows, group, groups)
        return rows.columns[self.column].take(pa.array(at, mask=at < 0))

    def places(self, rows: Rows, group: I64, groups: int) -> I64:
        """Return the position of the first row with the extreme of each group, -1 if it has none.

        Args:
            rows: the rows.
            group: the group of each, ascending.
            groups: the number of groups.
        """
        assert self.column is not None
        return _extreme_rows(rows.columns[self.column], group, groups, greatest=self.greatest)


@dataclass(frozen=True)
class Min(Extreme):
    """The least value; null of no values.

    Example::

        rows = hr.zsets.table("rows", hits)
        rows.group("totals", "page", least=hr.zsets.Min("ms"))
    """


@dataclass(frozen=True)
class Max(Extreme):
    """The greatest value; null of no values.

    Example::

        rows = hr.zsets.table("rows", hits)
        rows.group("totals", "page", most=hr.zsets.Max("ms"))
    """

    greatest = True


@dataclass(frozen=True)
class OfRows(Aggregate):
    """A result that a function computes from the rows of each group, whenever the group changes.

    Args:
        function: gets the rows of many groups in canonical order, each row once with its weight,
            the group of each row, and the number of groups. It returns a value for each group.
        type: the Arrow type of the result.
        columns: the columns that the function looks at.

    Example::

        def different(rows, group, groups):
            return pa.array(np.bincount(group, minlength=groups))


        count = hr.zsets.OfRows(function=different, type=pa.int64(), columns=("user",))
        hr.zsets.table("rows", hits).group("users", "page", n=count)
    """

    function: Callable[[Rows, I64, int], Any] | None = None
    columns: tuple[str, ...] = ()

    def field(self, name: str, schema: pa.Schema, place: str) -> pa.Field:
        if self.function is None or self.type is None:
            raise PipelineError("OfRows() needs a function and a type", place=place)
        for column in self.columns:
            field_of(schema, column, place)
        return pa.field(name, row_type(self.type))

    def of_rows(self, field: pa.Field, rows: Rows, group: I64, groups: int) -> pa.Array:
        assert self.function is not None
        return self.function(rows, group, groups)


# -- values -----------------------------------------------------------------------------------


def _counted(rows: Rows, column: str, starts: I64) -> I64:
    """Return the number of values in stretches of rows."""
    if not rows.columns[column].null_count:
        return summed_weights(rows.weights, starts)
    weights = np.where(rows.nulls(column), 0, rows.weights)
    return summed_weights(weights, starts)


def _whole(rows: Rows, column: str) -> npt.NDArray[Any]:
    """Return whole numbers; of decimals in units of the last digit. A null is zero."""
    values = rows.columns[column]
    if pa.types.is_decimal(values.type):
        return whole_of(values)
    if pa.types.is_uint64(values.type):
        return wide_of([value or 0 for value in values.to_pylist()])
    return rows[column].astype(np.int64)


def _squares(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.dtype == np.int64 and ((values < 1 << 31) & (values > -(1 << 31))).all():
        small: npt.NDArray[Any] = values * values
        return small
    return wide_of([value * value for value in whole_numbers(values)])


def _scale(kind: pa.DataType) -> int:
    return kind.scale if pa.types.is_decimal(kind) else 0


def _values_of(own: Aggregate, rows: Rows, group: I64) -> tuple[pa.Array, I64, I64]:
    """Return the values of groups that are not null, the group of each, and how often it counts."""
    assert own.column is not None
    if own.distinct:
        at, of = _distinct_values(rows, group, own.column)
        return rows.columns[own.column].take(pa.array(at)), of, np.ones(len(at), dtype=np.int64)
    there = ~rows.nulls(own.column)
    return rows.columns[own.column].filter(pa.array(there)), group[there], rows.weights[there]


def _distinct_values(rows: Rows, group: I64, column: str) -> tuple[I64, I64]:
    """Return one position of each value of each group that is not null, and its group."""
    there = np.flatnonzero(~rows.nulls(column))
    words = sort_words(rows.columns[column].take(pa.array(there)))
    order = np.lexsort((*words[::-1], group[there]))
    new = _firsts(group[there][order])
    for word in words:
        new[1:] |= word[order][1:] != word[order][:-1]
    at: I64 = there[order[new]]
    return at, group[at]


def _extreme_rows(column: pa.Array, group: I64, groups: int, *, greatest: bool) -> I64:
    """Return the position of the first extreme value of each group, -1 if it has none."""
    found = np.full(groups, -1, dtype=np.int64)
    there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    words, of = sort_words(column.take(pa.array(there))), group[there]
    if greatest:
        words = [~word for word in words]
    if len(words) == 1 and len(there):
        starts = np.flatnonzero(_firsts(of))
        least = np.repeat(
            np.minimum.reduceat(words[0], starts), np.diff(np.append(starts, len(of)))
        )
        at = np.flatnonzero(words[0] == least)
    else:
        order = np.lexsort((*words[::-1], of))
        at = order[_firsts(of[order])]
    found[of[at][::-1]] = there[at][::-1]
    return found


def _firsts(group: I64) -> npt.NDArray[np.bool_]:
    first = np.ones(len(group), dtype=np.bool_)
    first[1:] = group[1:] != group[:-1]
    return first


def _as_floats(values: pa.Array) -> npt.NDArray[np.float64]:
    if pa.types.is_decimal(values.type):
        return np.array([float(value) for value in values.to_pylist()], dtype=np.float64)
    return plain_column(values).astype(np.float64)


def _float_sums(values: pa.Array, times: I64, of: I64, groups: int) -> npt.NDArray[np.float64]:
    """Return sums of floats in the order in which they are given."""
    found = np.zeros(groups)
    starts = np.flatnonzero(_firsts(of))
    if len(starts):
        found[of[starts]] = np.add.reduceat(_as_floats(values) * times, starts)
    return found


def _exact_sums(values: pa.Array, times: I64, of: I64, groups: int) -> npt.NDArray[Any]:
    starts = np.flatnonzero(_firsts(of))
    rows = Rows({"x": values}, times, of)
    found = wide_of([0] * groups)
    found[of[starts]] = summed(_whole(rows, "x"), times, starts)
    return found


# -- results ----------------------------------------------------------------------------------


def _floats(values: npt.NDArray[np.float64], there: Any, kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.float64(), mask=~there).cast(kind)


def _as_number(kind: pa.DataType, values: npt.NDArray[Any], there: Any, scale: int) -> pa.Array:
    """Return sums as numbers of a type.

    Raises:
        TooLarge: if one is beyond the type.
    """
    if pa.types.is_decimal(kind):
        if kind.scale != scale:
            values = wide_of([_rescaled(v, scale, kind.scale) for v in whole_numbers(values)])
        _check_digits(values, kind)
        found = decimals_of(values, kind)
        return found if there.all() else found.take(pa.array(np.arange(len(found)), mask=~there))
    if pa.types.is_floating(kind):
        unit = 10**scale
        return _floats(np.array([v / unit for v in whole_numbers(values)]), there, kind)
    fits = values["hi"] == (values["lo"].view(np.int64) >> 63)
    if not (fits | ~there).all():
        raise TooLarge(f"a sum is beyond {kind}")
    words = np.ascontiguousarray(values["lo"]).view(np.int64)
    return pa.array(words, pa.int64(), mask=~there).cast(kind)


def _check_digits(values: npt.NDArray[Any], kind: pa.DataType) -> None:
    most = 10**kind.precision
    doubtful = np.flatnonzero((values["hi"] != 0) & (values["hi"] != -1) | (kind.precision < 19))
    for value in whole_numbers(values[doubtful]):
        if not -most < value < most:
            raise TooLarge(f"a sum has more digits than {kind}")


def _means(kind: pa.DataType, sums: npt.NDArray[Any], n: I64, scale: int) -> pa.Array:
    there = n > 0
    if pa.types.is_floating(kind):
        unit = 10**scale
        pairs = zip(whole_numbers(sums), n.tolist(), strict=True)
        found = [s / (m * unit) if m > 0 else 0.0 for s, m in pairs]
        return _floats(np.array(found, dtype=np.float64), there, kind)
    more = 10 ** max(0, kind.scale - scale)
    fewer = 10 ** max(0, scale - kind.scale)
    pairs = zip(whole_numbers(sums), n.tolist(), strict=True)
    whole = wide_of([_half_up(s * more, m * fewer) if m > 0 else 0 for s, m in pairs])
    return _as_number(kind, whole, there, kind.scale)


def _rescaled(value: int, scale: int, wanted: int) -> int:
    return (
        value * 10 ** (wanted - scale)
        if wanted >= scale
        else _half_up(value, 10 ** (scale - wanted))
    )


def _half_up(value: int, by: int) -> int:
    """Return a quotient, rounded to the nearest; halves away from zero."""
    found = (2 * abs(value) + by) // (2 * by)
    return found if value >= 0 else -found
