"""The first rows of each group in some order: LIMIT, ROW_NUMBER, RANK, and paging.

SQL leaves open which of several equal rows come first. Here all columns break ties, so the result
follows from the rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.computation.declarations import Declaration
from headrace.computation.zset_state import ZSetState
from headrace.errors import PipelineError
from headrace.zsets.linear import NO_STEPS, Linear
from headrace.zsets.operator import NEVER, Operator, Side, Until, add, check_columns, held_by
from headrace.zsets.rows import I64, Groups, Rows, consolidated, joined, no_rows, order_codes, pairs

Ranking = Literal["row_number", "rank", "dense_rank"]
_RANKINGS = ("row_number", "rank", "dense_rank")
_EVERY = np.int64(2**62)


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

    def codes(self, rows: Rows) -> I64:
        """Return numbers by which rows ascend in this order."""
        found = order_codes(rows.columns[self.column])
        null = found < 0
        if self.descending:
            found = -found
        first = not self.descending if self.nulls_first is None else self.nulls_first
        found[null] = -_EVERY if first else _EVERY
        return found


class Top(Operator):
    """The first rows of each group, or all of them with their number.

    The input must be keyed by :class:`headrace.Hashed` of the columns in ``by``.

    Args:
        by: the columns of the group; none for the first rows of all.
        order: what they are ordered by.
        limit: how many rows go on; None for all.
        offset: how many are left out before.
        ranking: what is counted. ``"row_number"`` counts rows. ``"rank"`` and ``"dense_rank"`` give
            rows that are equal in ``order`` the same number, with gaps after them or without.
        number: the name of a column for the number, from 1; None for none.
        until: columns of ``by`` that say when a group does not change any more; see
            :data:`headrace.zsets.operator.Until`.
        sides, then: see :class:`Operator`.

    State: all rows, since any of them may move up. Cost: all rows of the touched groups.

    Example::

        slowest = hr.zsets.Top(["page"], [hr.zsets.Order("ms", descending=True)], 3)
        p.compute("slowest", slowest, keys={hits: hr.Hashed(("page",))})

    Raises:
        PipelineError: for columns that are not there, or a limit below 0.
    """

    def __init__(
        self,
        by: Sequence[str],
        order: Sequence[Order | str],
        limit: int | None = None,
        *,
        offset: int = 0,
        ranking: Ranking = "row_number",
        number: str | None = None,
        until: Until = NEVER,
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        if ranking not in _RANKINGS or offset < 0 or (limit is not None and limit < 0):
            raise PipelineError(
                f"ranking={ranking!r}, limit={limit}, offset={offset} choose no rows",
                place="zsets.Top",
                remedy=f"a ranking of {', '.join(_RANKINGS)}; limit and offset of 0 or more",
            )
        self._by = tuple(by)
        self._order = tuple(Order(of) if isinstance(of, str) else of for of in order)
        self._first, self._last = offset, int(_EVERY) if limit is None else offset + limit
        self._ranking, self._number, self._until = ranking, number, dict(until)

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        check_columns(schema, [*self._by, *(of.column for of in self._order)], self._place)
        check_columns(pa.schema([schema.field(n) for n in self._by]), self._until, self._place)
        numbered = (
            [] if self._number is None else [pa.field(self._number, pa.int64(), nullable=False)]
        )
        self._names = tuple(schema.names)
        return {"rows": ZSetState(schema, until=self._until)}, pa.schema([*schema, *numbered])

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        rows = consolidated(sides[0])
        if not len(rows):
            return no_rows(self._made)
        touched = rows.take(self._first_of_each(rows))
        state = self.rows  # type: ignore[attr-defined]
        before = self._chosen(self._of(touched, held_by(state, keys, rows.at)))
        add(state, keys, rows)
        after = self._chosen(self._of(touched, held_by(state, keys, rows.at)))
        return joined([before.negated(), after])

    def _first_of_each(self, rows: Rows) -> I64:
        groups = Groups(rows, self._by)
        first: I64 = groups.order[groups.starts]
        return first

    def _of(self, touched: Rows, held: Rows) -> tuple[Rows, I64]:
        """Return the rows of the touched groups, and the group of each."""
        first, second = pairs(held, touched, [(name, name) for name in self._by])
        rows = held.take(first)
        there = rows.weights > 0
        return rows.take(there), second[there]

    def _chosen(self, of: tuple[Rows, I64]) -> Rows:
        rows, group = of
        codes = [order.codes(rows) for order in self._order]
        ties = [order_codes(rows.columns[name]) for name in self._names]
        order = np.lexsort((*ties[::-1], *codes[::-1], group))
        rows, group = rows.take(order), group[order]
        codes = [code[order] for code in codes]
        if self._ranking == "row_number":
            return self._by_row_number(rows, group)
        new_group = np.ones(len(rows), dtype=np.bool_)
        new_group[1:] = group[1:] != group[:-1]
        new_value = new_group.copy()
        for code in codes:
            new_value[1:] |= code[1:] != code[:-1]
        counted = np.ones(len(rows), dtype=np.int64)
        if self._ranking == "rank":
            before = _before(rows.weights, group)
            peers = np.flatnonzero(new_value)
            rank = before[peers][np.cumsum(new_value) - 1] + 1
        else:
            rank = _before(counted * new_value, group) + new_value
        chosen = (rank > self._first) & (rank <= self._last)
        return self._with_number(rows.take(chosen), rank[chosen])

    def _by_row_number(self, rows: Rows, group: I64) -> Rows:
        """Return rows by their number. A row of weight 3 has three numbers."""
        before = _before(rows.weights, group)
        first = np.maximum(before, self._first)
        last = np.minimum(before + rows.weights, self._last)
        there = last > first
        rows, first, last = rows.take(there), first[there], last[there]
        if self._number is None:
            return rows.weighing(last - first)
        at = np.repeat(np.arange(len(rows)), last - first)
        starts = np.concatenate([[0], np.cumsum(last - first)[:-1]]) if len(rows) else first
        number = np.arange(len(at)) - starts[at] + first[at] + 1
        ones = np.ones(len(at), dtype=np.int64)
        return self._with_number(rows.take(at).weighing(ones), number)

    def _with_number(self, rows: Rows, number: I64) -> Rows:
        if self._number is None:
            return rows
        columns = rows.columns.with_others({self._number: pa.array(number)})
        return Rows(columns, rows.weights, rows.at)


def _before(counts: I64, group: I64) -> I64:
    """Return the sum of what comes before each row in its group."""
    total = np.cumsum(counts) - counts
    starts = np.ones(len(group), dtype=np.bool_)
    starts[1:] = group[1:] != group[:-1]
    at_start: I64 = total[starts]
    found: I64 = total - at_start[np.cumsum(starts) - 1] if len(group) else total
    return found
