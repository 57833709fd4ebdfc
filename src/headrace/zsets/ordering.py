"""Rows of groups in order: by some columns, and among rows that these leave equal, by all columns.

SQL leaves open which of several equal rows comes first. Here all columns decide, so the order
follows from the rows alone. Few rows are equal in most orders, so only those are compared further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.schema.columns import Column
from headrace.schema.row_columns import RowColumn
from headrace.schema.row_lists import is_list
from headrace.schema.whole_decimals import order_words
from headrace.zsets.rows import I64, Groups, Mask, Rows, equal, order_codes, pairs

_SIGN = np.int64(63)
_MOST = np.int64(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Order:
    """A column to order by.

    Args:
        column: the column.
        descending: whether the greatest come first.
        nulls_first: whether nulls come first; by default, as in Spark, if it is ascending.

    Example::

        slowest = hr.zsets.Order("ms", descending=True)
        hr.zsets.table("rows", hits).top("slowest", "page", slowest, 3)
    """

    column: str
    descending: bool = False
    nulls_first: bool | None = None

    def words(self, rows: Rows) -> list[Column]:
        """Return columns by which rows ascend in this order, the most significant first."""
        column = rows.columns[self.column]
        words = sort_words(column)
        if self.descending:
            words = [~word for word in words]
        if not column.null_count:
            return words
        null = rows.nulls(self.column)
        first = not self.descending if self.nulls_first is None else self.nulls_first
        return [(~null if first else null).astype(np.int8), *(_without(w, null) for w in words)]


def sort_words(column: pa.Array) -> list[Column]:
    """Return columns of integers that sort as values do, the most significant first.

    NaN is above all numbers. What is said of a null means nothing.
    """
    kind = column.type
    if is_list(kind):
        return [order_codes(column)]
    if pa.types.is_floating(kind):
        plain = column.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        bits = np.where(np.isnan(plain), np.nan, plain + 0.0).view(np.int64)
        return [bits ^ ((bits >> _SIGN) & _MOST)]
    memory = RowColumn(pa.field("", kind, nullable=False)).from_arrow(column)
    if memory.dtype == object:
        there = column.is_valid().to_numpy(zero_copy_only=False)
        ranks = np.zeros(len(column), dtype=np.int64)
        ranks[there] = np.unique(memory[there], return_inverse=True)[1]
        return [ranks]
    if memory.dtype == np.bool_:
        return [memory.astype(np.int8)]
    return order_words(memory)


def _without(word: Column, null: Mask) -> Column:
    found = word.copy()
    found[null] = 0
    return found


@dataclass(frozen=True)
class Ordered:
    """Rows in order.

    Attributes:
        at: the positions of the rows, group by group, in order.
        new_group: which of them, in this order, are the first of their group.
        new_value: which of them differ from the one before in the order, or are of another group.
        words: the columns that they ascend by, as the rows were given.
    """

    at: I64
    new_group: Mask
    new_value: Mask
    words: list[Column]


def in_order(rows: Rows, group: I64, order: Sequence[Order]) -> Ordered:
    """Return rows in order.

    Args:
        rows: rows that are all different.
        group: the group of each.
        order: what they are ordered by. Among equal rows all columns decide.
    """
    words = [word for of in order for word in of.words(rows)]
    at = np.lexsort((*words[::-1], group))
    new_group = _differs([group[at]], len(at))
    new_value = new_group | _differs([word[at] for word in words], len(at))
    tied = ~new_value
    tied[:-1] |= ~new_value[1:]
    where = np.flatnonzero(tied)
    if len(where):
        some = rows.take(at[where])
        ties = [word for name in some for word in Order(name).words(some)]
        run = np.cumsum(new_value)[where]
        at[where] = at[where][np.lexsort((*ties[::-1], run))]
    return Ordered(at, new_group, new_value, words)


def _differs(columns: Sequence[Column], length: int) -> Mask:
    """Return which rows differ from the one before, and the first of all."""
    found = np.zeros(length, dtype=np.bool_)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def groups_of(rows: Rows, by: Sequence[str]) -> I64:
    """Return a number for each row, which rows of one key with equal columns have in common."""
    if not len(rows):
        return rows.at
    first = np.empty(int(rows.at.max()) + 1, dtype=np.int64)
    first[rows.at[::-1]] = np.arange(len(rows))[::-1]
    chosen = pa.array(first[rows.at])
    columns = [rows.columns[name] for name in by]
    if equal(columns, [column.take(chosen) for column in columns]).all():
        return rows.at
    return Groups(rows, by).of_row  # (keys of one hash are rare)


def groups_among(rows: Rows, groups: Rows, by: Sequence[str]) -> I64:
    """Return for each row the position of its group among some, or -1.

    Args:
        rows: the rows.
        groups: the groups, each once.
        by: their columns.
    """
    found = np.full(len(rows), -1, dtype=np.int64)
    if not len(rows) or not len(groups):
        return found
    numbers = np.arange(len(groups))
    places = np.full(int(max(rows.at.max(), groups.at.max())) + 1, -1, dtype=np.int64)
    places[groups.at] = numbers
    if (places[groups.at] == numbers).all():  # (but for keys of one hash)
        place = places[rows.at]
        known = np.flatnonzero(place >= 0)
        mine, theirs = pa.array(known), pa.array(place[known])
        same = equal(
            [rows.columns[name].take(mine) for name in by],
            [groups.columns[name].take(theirs) for name in by],
        )
        if not by or same.all():
            return place
    first, second = pairs(rows, groups, [(name, name) for name in by])
    found[first] = second
    return found
