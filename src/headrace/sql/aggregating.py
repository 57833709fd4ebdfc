"""Aggregates of the IR as those that groups and windows of Z-sets maintain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.sql.ir.expressions import Aggregate, Call, Expression, Literal, Ref, conjunction
from headrace.sql.ir.types import BOOLEAN
from headrace.zsets import Aggregate as Maintained
from headrace.zsets import Avg, Count, Max, Min, OfRows, Rows, Sum, Variance
from headrace.zsets.rows import I64, Groups, order_codes

_BITS = {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}


def arguments_of(aggregate: Aggregate) -> tuple[Expression, ...]:
    """Return what an aggregate looks at.

    The last of it is NULL, or false, for rows that do not count.
    """
    args = aggregate.args
    if aggregate.function == "count" and len(args) > 1 and not aggregate.distinct:
        present = tuple(Call("is_not_null", (one,), BOOLEAN, False) for one in args)
        args = (_where(conjunction(present), Literal(True, BOOLEAN)),)
    if aggregate.condition is None:
        return args
    if _counts_values(aggregate):
        return (*args, aggregate.condition)
    if not args:
        return (aggregate.condition,)
    return (*args[:-1], _where(aggregate.condition, args[-1]))


def _counts_values(aggregate: Aggregate) -> bool:
    """Return whether it counts the different values of a column for which a condition is true.

    Such counts keep the values together, whatever their conditions are.
    """
    is_count = aggregate.function == "count" and aggregate.distinct and len(aggregate.args) == 1
    return is_count and aggregate.condition is not None and isinstance(aggregate.args[0], Ref)


def _where(condition: Expression | None, value: Expression) -> Expression:
    """Return a value, or NULL where a condition is not true."""
    assert condition is not None
    return Call("case", (condition, value, Literal(None, value.type)), value.type, True)


def maintained(  # noqa: PLR0912
    aggregate: Aggregate, columns: Sequence[str]
) -> Maintained:
    """Return an aggregate as it is maintained.

    Args:
        aggregate: the aggregate.
        columns: the columns with its arguments.

    Raises:
        PipelineError: if there is no such aggregate.
    """
    kind = aggregate.type.arrow
    column = columns[0] if columns else None
    match aggregate.function:
        case "count" if not aggregate.args and aggregate.condition is not None:
            return Count(where=column)
        case "count" if _counts_values(aggregate):
            return Count(column, distinct=True, where=columns[1])
        case "count" if len(columns) > 1:
            function = DifferentRows(tuple(columns))
            return OfRows(function=function, type=kind, columns=function.columns)
        case "count":
            return Count(column, distinct=aggregate.distinct)
        case "sum":
            return Sum(column, distinct=aggregate.distinct, type=kind)
        case "avg":
            return Avg(column, distinct=aggregate.distinct, type=kind)
        case "min":
            return Min(column)
        case "max":
            return Max(column)
        case "min_by" | "max_by":
            value, order = columns
            chosen = ValueAtExtreme(value, order, aggregate.function == "max_by")
            return OfRows(function=chosen, type=kind, columns=(value, order))
        case "bit_and" | "bit_or" | "bit_xor":
            bits = Bits(columns[0], aggregate.function, kind, aggregate.distinct)
            return OfRows(function=bits, type=kind, columns=(columns[0],))
        case "collect_list" | "collect_set":
            once = aggregate.distinct or aggregate.function == "collect_set"
            collected = Collected(columns[0], once, kind)
            return OfRows(function=collected, type=kind, columns=(columns[0],))
        case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop":
            return Variance(
                column,
                distinct=aggregate.distinct,
                population=aggregate.function.endswith("pop"),
                root=aggregate.function.startswith("stddev"),
            )
        case _:
            raise PipelineError(
                f"a view cannot maintain the aggregate {aggregate.function} yet",
                remedy="use count, sum, avg, min, max, min_by, max_by, stddev, variance or bit_and",
            )


@dataclass(frozen=True)
class DifferentRows:
    """The number of different rows without a NULL: COUNT(DISTINCT a, b)."""

    columns: tuple[str, ...]

    def __call__(self, rows: Rows, group: I64, groups: int) -> pa.Array:
        there = np.ones(len(rows), dtype=np.bool_)
        for name in self.columns:
            there &= ~rows.nulls(name)
        chosen = rows.take(there).select(self.columns)
        placed = Rows(chosen.columns, chosen.weights, group[there])
        each = Groups(placed, self.columns)
        first = each.order[each.starts]
        return pa.array(np.bincount(placed.at[first], minlength=groups).astype(np.int64))


@dataclass(frozen=True)
class ValueAtExtreme:
    """The value of the row at which another column is least or greatest.

    Of several such rows, ``min_by`` takes the one with the least value, and ``max_by`` the one with
    the greatest. NULL is the least.
    """

    value: str
    order: str
    greatest: bool

    def __call__(self, rows: Rows, group: I64, groups: int) -> pa.Array:
        values, order = rows.columns[self.value], order_codes(rows.columns[self.order])
        codes = order_codes(values)
        sign = -1 if self.greatest else 1
        ranked = np.lexsort((sign * codes, sign * order, order < 0, group))
        first = np.ones(len(ranked), dtype=np.bool_)
        first[1:] = group[ranked][1:] != group[ranked][:-1]
        at = ranked[first]
        places = np.full(groups, -1, dtype=np.int64)
        places[group[at]] = np.where(order[at] < 0, -1, at)
        return values.take(pa.array(places, mask=places < 0))


@dataclass(frozen=True)
class Collected:
    """The values of a group that are not NULL, in ascending order, as an array.

    Args:
        column: the column.
        once: whether equal values are there once.
        type: the type of the arrays.
    """

    column: str
    once: bool
    type: pa.DataType

    def __call__(self, rows: Rows, group: I64, groups: int) -> pa.Array:
        values = rows.columns[self.column]
        codes = order_codes(values)
        order = np.lexsort((codes, group))
        order = order[codes[order] >= 0]
        if self.once:
            order = _once(order, codes, group)
        else:
            order = np.repeat(order, rows.weights[order])
        lengths = np.bincount(group[order], minlength=groups)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, values.take(pa.array(order)), type=self.type)


def _once(order: I64, codes: I64, group: I64) -> I64:
    """Return the first of the rows of each group that have equal codes.

    Args:
        order: rows by group and code.
        codes, group: of all rows.
    """
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = codes[order][1:] != codes[order][:-1]
    new[1:] |= group[order][1:] != group[order][:-1]
    first: I64 = order[new]
    return first


@dataclass(frozen=True)
class Bits:
    """Integers joined bit by bit.

    Args:
        column: the column.
        function: ``bit_and``, ``bit_or`` or ``bit_xor``.
        type: the type of the result.
        once: whether equal values count once.
    """

    column: str
    function: str
    type: pa.DataType
    once: bool = False

    def __call__(self, rows: Rows, group: I64, groups: int) -> pa.Array:
        there = self._that_count(rows, group)
        values, of = rows[self.column][there], group[there]
        starts = np.flatnonzero(np.append(True, of[1:] != of[:-1])[: len(of)])
        found: Any = np.zeros(groups, dtype=values.dtype)
        known = np.zeros(groups, dtype=np.bool_)
        known[group[~rows.nulls(self.column)]] = True
        if len(starts):
            found[of[starts]] = _BITS[self.function].reduceat(values, starts)
        return pa.array(found, mask=~known).cast(self.type)

    def _that_count(self, rows: Rows, group: I64) -> I64:
        """Return the rows that have a say: of bits that flip, an even number has none."""
        there = np.flatnonzero(~rows.nulls(self.column))
        if self.function != "bit_xor":
            return there
        if self.once:
            codes = order_codes(rows.columns[self.column])
            return _once(there[np.lexsort((codes[there], group[there]))], codes, group)
        odd: I64 = there[rows.weights[there] % 2 == 1]
        return odd
