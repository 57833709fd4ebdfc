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
from headrace.keyspace.spans import positions
from headrace.zsets.linear import NO_STEPS, Linear
from headrace.zsets.operator import (
    NEVER,
    OUT,
    Around,
    Operator,
    Side,
    Until,
    add,
    add_around,
    check_columns,
    held_by,
    held_by_all,
)
from headrace.zsets.ordering import Order, Ordered, groups_of, in_order
from headrace.zsets.rows import I64, Mask, Rows, check_only_inserts, consolidated, joined, no_rows

Ranking = Literal["row_number", "rank", "dense_rank"]
_RANKINGS = ("row_number", "rank", "dense_rank")


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
        only_inserts: whether no row is ever deleted. Then only the rows are kept that can go on.
        sides, then: see :class:`Operator`.

    State: all rows, since any of them may move up; of rows that are only inserted, the first ones.
    Cost: all rows of the touched groups that are kept.

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
        only_inserts: bool = False,
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
        self._first = offset
        self._last = 1 << 62 if limit is None else offset + limit
        self._ranking, self._number, self._until = ranking, number, dict(until)
        self._drops = only_inserts and limit is not None

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        check_columns(schema, [*self._by, *(of.column for of in self._order)], self._place)
        check_columns(pa.schema([schema.field(n) for n in self._by]), self._until, self._place)
        numbered = (
            [] if self._number is None else [pa.field(self._number, pa.int64(), nullable=False)]
        )
        self.recomputes = () if self._until else (OUT,)
        keeps = f"the first {self._last} by {self._ranking} of each group" if self._drops else ""
        rows = ZSetState(schema, until=self._until, keeps=keeps)
        return {"rows": rows}, pa.schema([*schema, *numbered])

    def contents(self, keys: Keys) -> Rows:
        rows = held_by_all(self.rows, keys)  # type: ignore[attr-defined]
        if not len(rows):
            return no_rows(self._made)
        order = in_order(rows, groups_of(rows, self._by), self._order)
        numbers = self._numbered(rows.weights, order)
        if self._number is None:
            return _weighing(rows, order.at, numbers.counts)
        return self._shown(rows, order.at, numbers, np.zeros(len(rows), dtype=np.bool_), 1)

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        if not len(sides[0]):
            return no_rows(self._made)
        if self._drops:
            around = self._beside_the_first(keys, sides[0])
        else:
            rows = consolidated(sides[0])
            around = add_around(self.rows, keys, rows, rows.at)  # type: ignore[attr-defined]
        rows, order = around.rows, self._in_order(around.rows)
        before, after = (self._numbered(of, order) for of in (around.before, around.after))
        if self._drops:
            self._keep_first(keys, rows, order, around)
        if self._number is None:
            return _weighing(rows, order.at, after.counts - before.counts)
        stays = (before.first == after.first) & (before.counts == after.counts)
        return joined(
            [
                self._shown(rows, order.at, before, stays, -1),
                self._shown(rows, order.at, after, stays, 1),
            ]
        )

    def _in_order(self, rows: Rows) -> Ordered:
        return in_order(rows, groups_of(rows, self._by), self._order)

    def _beside_the_first(self, keys: Keys, new: Rows) -> Around:
        """Return the rows that are kept, and the first of those that are new."""
        check_only_inserts(new, self._place)
        order = self._in_order(new)
        counts = self._numbered(new.weights, order, from_first=True).counts
        first = _weighing(new, order.at, counts).select(self.rows.row_schema.names)  # type: ignore[attr-defined]
        held = held_by(self.rows, keys, first.at)  # type: ignore[attr-defined]
        none = np.zeros(len(first), dtype=np.int64)
        return Around(
            joined([held, first]),
            np.concatenate([held.weights, none]),
            np.concatenate([held.weights, first.weights]),
        )

    def _keep_first(self, keys: Keys, rows: Rows, order: Ordered, around: Around) -> None:
        """Keep the rows that are among the first now, and let go of those that are not any more."""
        kept = self._numbered(around.after, order, from_first=True).counts
        changed = _weighing(rows, order.at, kept - around.before[order.at])
        add(self.rows, keys, consolidated(changed))  # type: ignore[attr-defined]

    def _numbered(self, weights: I64, order: Ordered, *, from_first: bool = False) -> Numbers:
        """Return the numbers of rows of some weights, and how many of them go on.

        Args:
            weights: the weights.
            order: the rows in order.
            from_first: whether those count, too, that are left out before.
        """
        offset = 0 if from_first else self._first
        there = np.maximum(weights[order.at], 0)
        if self._ranking == "row_number":
            before = _before(there, order.new_group)
            first = np.maximum(before, offset)
            last = np.minimum(before + there, self._last)
            return Numbers(first + 1, np.maximum(last - first, 0))
        peers = np.flatnonzero(order.new_value)
        if self._ranking == "rank":
            of_peers = _before(there, order.new_group)[peers]
        elif len(peers):
            is_there = np.maximum.reduceat(there > 0, peers).astype(np.int64)
            of_peers = _before(is_there, order.new_group[peers])
        else:
            of_peers = peers
        before = of_peers[np.cumsum(order.new_value) - 1]
        chosen = (before >= offset) & (before < self._last)
        return Numbers(before + 1, np.where(chosen, there, 0))

    def _shown(self, rows: Rows, at: I64, numbers: Numbers, stays: Mask, sign: int) -> Rows:
        """Return rows with their numbers, but for those that stay as they are."""
        counts = np.where(stays, 0, numbers.counts)
        chosen = np.flatnonzero(counts)
        counts, first = counts[chosen], numbers.first[chosen]
        if self._ranking == "row_number":  # a row of weight 3 has three numbers
            first = positions(first, counts)
            chosen, counts = np.repeat(chosen, counts), np.ones(len(first), dtype=np.int64)
        found = rows.take(at[chosen])
        assert self._number is not None
        columns = found.columns.with_others({self._number: pa.array(first)})
        return Rows(columns, sign * counts, found.at)


@dataclass(frozen=True)
class Numbers:
    """The numbers of rows in order.

    Attributes:
        first: the number of each row; the first of them, if equal rows have several.
        counts: how many of each go on.
    """

    first: I64
    counts: I64


def _weighing(rows: Rows, at: I64, weights: I64) -> Rows:
    """Return some rows with weights, without those whose weight is 0."""
    chosen = np.flatnonzero(weights)
    return rows.take(at[chosen]).weighing(weights[chosen])


def _before(counts: I64, new_group: Mask) -> I64:
    """Return the sum of what comes before each row in its group."""
    total = np.cumsum(counts) - counts
    if not len(total):
        return total
    found: I64 = total - total[new_group][np.cumsum(new_group) - 1]
    return found
