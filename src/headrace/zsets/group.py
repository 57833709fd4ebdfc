"""Groups of a Z-set with aggregates: GROUP BY, and DISTINCT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.computation.declarations import Declaration
from headrace.computation.zset_state import ZSetState
from headrace.keyspace.arrays import U64
from headrace.zsets.aggregates import Aggregate, Count, Extreme, OfRows
from headrace.zsets.linear import NO_STEPS, Linear, field_of
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
from headrace.zsets.ordering import groups_among
from headrace.zsets.rows import (
    I64,
    Groups,
    Mask,
    Rows,
    check_only_inserts,
    consolidated,
    joined,
    no_rows,
    summed_weights,
)

#: The column of the one group without a GROUP BY; it is never shown.
_ALL = "all"
_SEED = "seed"


class Group(Operator):
    """A row for each group of rows with equal columns, and aggregates of the group.

    The input must be keyed by :class:`headrace.Hashed` of the columns in ``by``. Null is a group.
    Without aggregates it is DISTINCT: each row once, for as long as it is there.

    Args:
        by: the columns; none for one group of all rows. That group has a row even if no rows are
            left (but not before the first has come).
        aggregates: name → aggregate, for each further column of the result.
        until: columns of ``by`` that say when a group does not change any more; see
            :data:`headrace.zsets.operator.Until`.
        only_inserts: whether no row is ever deleted. Then of aggregates that look again extremes keep
            only the rows that have them.
        sides, then: see :class:`Operator`.

    State: a row for each group. For numbers of different values also each value, with how often it
    is there; for aggregates that look again, the columns that they look at.

    Raises:
        PipelineError: for columns that are not there, or that cannot be aggregated.

    Example::

        pages = hr.zsets.Group(["page"], {"n": hr.zsets.Count(), "ms": hr.zsets.Sum("ms")})
        p.compute("pages", pages, keys={hits: hr.Hashed(("page",))})
    """

    def __init__(
        self,
        by: Sequence[str],
        aggregates: Mapping[str, Aggregate] | None = None,
        *,
        until: Until = NEVER,
        only_inserts: bool = False,
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        self._by = tuple(by)
        self._aggregates = dict(aggregates or {})
        self._until = dict(until)
        self._only_inserts = only_inserts

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        groups = [field_of(schema, name, self._place) for name in self._by]
        check_columns(pa.schema(groups), self._until, self._place)
        fields = {n: of.field(n, schema, self._place) for n, of in self._aggregates.items()}
        self._fields = fields
        self._divide(schema)
        sums: dict[str, Any] = {
            f"{name}_{part}": kind
            for name in (*self._linear, *self._counts)
            for part, kind in self._aggregates[name].sums().items()
        }
        if not self._by:
            sums[_SEED] = pa.int64()
        self._sums = tuple(sums)
        keys = pa.schema(groups or [pa.field(_ALL, pa.bool_(), nullable=False)])
        self._names = tuple(keys.names)
        self._types = {field.name: field.type for field in schema}
        states: dict[str, Declaration] = {"groups": ZSetState(keys, sums=sums, until=self._until)}
        for column, counts in self._counted.items():
            value = schema.field(column).with_nullable(False)
            flags = {name: int for name, of in counts.items() if of.where is not None}
            values = pa.schema([*keys, value])
            states[f"values_{column}"] = ZSetState(values, sums=flags, until=self._until)
        looked_at = self._looked_at()
        self._kept = tuple(n for n in schema.names if n in looked_at and n not in self._by)
        if self._again:
            kept = [schema.field(name) for name in self._kept]
            keeps = f"the extremes {', '.join(self._again)} of each group" if self._drops else ""
            states["rows"] = ZSetState(pa.schema([*keys, *kept]), until=self._until, keeps=keeps)
        self.recomputes = () if self._until else (OUT,)
        return states, pa.schema([*groups, *fields.values()])

    @property
    def _drops(self) -> bool:
        """Whether rows are let go that are not the extreme ones."""
        every = all(isinstance(self._aggregates[name], Extreme) for name in self._again)
        return self._only_inserts and every

    def _divide(self, schema: pa.Schema) -> None:
        """Divide the aggregates by how they are maintained."""
        linear = {n for n, of in self._aggregates.items() if of.is_linear(schema)}
        self._counted: dict[str, dict[str, Count]] = {}
        for name, of in self._aggregates.items():
            if isinstance(of, Count) and name not in linear and of.column not in (None, *self._by):
                self._counted.setdefault(of.column or "", {})[name] = of
        self._counts = tuple(name for counts in self._counted.values() for name in counts)
        self._linear = tuple(n for n in self._aggregates if n in linear)
        self._again = tuple(n for n in self._aggregates if n not in {*linear, *self._counts})

    def _looked_at(self) -> set[str]:
        found: set[str] = set()
        for name in self._again:
            of = self._aggregates[name]
            found |= {of.column} if of.column is not None else set()
            found |= set(of.columns) if isinstance(of, OfRows) else set()
            found |= {of.where} if isinstance(of, Count) and of.where is not None else set()
        return found

    def contents(self, keys: Keys) -> Rows:
        held = self.groups.of_keys(keys)  # type: ignore[attr-defined]
        groups = Rows({name: held.arrow(name) for name in self._names}, held.weights, held.at)
        sums = {name: held[name] for name in self._sums}
        there = groups.weights > 0 if self._by else sums[_SEED] > 0
        again = self._all_looked_again(keys, groups) if self._again else {}
        return self._results(groups, groups.weights, sums, again, there)

    def _all_looked_again(self, keys: Keys, groups: Rows) -> dict[str, pa.Array]:
        """Return the results of aggregates that look again, for all groups of some keys."""
        held = held_by_all(self.rows, keys)  # type: ignore[attr-defined]
        group = groups_among(held, groups, self._names)
        order = self._order(held, group)
        ordered = _Ordered(held.take(order), group[order])
        return self._of_rows(ordered, held.weights[order], len(groups))

    # -- a step -------------------------------------------------------------------------------

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        (rows,) = sides
        if not len(rows):
            return no_rows(self._made)
        if not self._by:
            constant = pa.array(np.zeros(len(rows), dtype=np.bool_))
            rows = Rows(rows.columns.with_others({_ALL: constant}), rows.weights, rows.at)
        touched, sums = self._partials(rows)
        for column in self._counted:
            sums |= self._new_values(keys, rows, column, touched)
        if not self._by:
            has_row = len(held_by(self.groups, keys, touched.at)) > 0  # type: ignore[attr-defined]
            sums[_SEED] = np.full(len(touched), 0 if has_row else 1)
        change = add(self.groups, keys, touched, sums)  # type: ignore[attr-defined]
        before, after = self._looked_again(keys, rows, touched)
        was, now = change.before > 0, change.after > 0
        if not self._by:
            was, now = change.sums_before[_SEED] > 0, np.ones(len(touched), dtype=np.bool_)
        old = self._results(touched, change.before, change.sums_before, before, was)
        new = self._results(touched, change.after, change.sums_after, after, now)
        return joined([old.negated(), new])

    def _partials(self, rows: Rows) -> tuple[Rows, dict[str, Any]]:
        """Return each touched group once, and what is added to its sums."""
        groups = Groups(rows, self._names)
        ordered = rows.take(groups.order)
        first = groups.order[groups.starts]
        weights = summed_weights(ordered.weights, groups.starts)
        sums: dict[str, Any] = {}
        for name in self._linear:
            partials = self._aggregates[name].partials(ordered, groups.starts)
            sums |= {f"{name}_{part}": values for part, values in partials.items()}
        touched = rows.take(first).select(self._names).weighing(weights)
        return touched, sums

    def _new_values(self, keys: Keys, rows: Rows, column: str, touched: Rows) -> dict[str, I64]:
        """Take in the values of a column, and return how many more different ones each group has."""
        if rows.columns[column].null_count:
            rows = rows.take(~rows.nulls(column))
        names = (*self._names, column)
        groups = Groups(rows, names)
        ordered = rows.take(groups.order)
        values = rows.take(groups.order[groups.starts]).select(names)
        counts = self._counted[column]
        flags = {
            name: summed_weights(of.weights_of(ordered), groups.starts)
            for name, of in counts.items()
            if of.where is not None
        }
        weights = summed_weights(ordered.weights, groups.starts)
        state = vars(self)[f"values_{column}"]
        change = add(state, keys, values.weighing(weights), flags)
        group = groups_among(values, touched, self._names)
        found = {}
        for name in counts:
            before = change.sums_before.get(name, change.before)
            after = change.sums_after.get(name, change.after)
            more = (after > 0).astype(np.int64) - (before > 0)
            sums = np.bincount(group, more, minlength=len(touched))
            found[f"{name}_n"] = sums.astype(np.int64)
        return found

    def _looked_again(
        self, keys: Keys, rows: Rows, touched: Rows
    ) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
        """Return the results of aggregates that look again, before and after the step."""
        if not self._again:
            return {}, {}
        looked_at = rows.select([*self._names, *self._kept])
        if self._drops:
            around = self._beside_the_extremes(keys, looked_at, touched)
        else:
            state = self.rows  # type: ignore[attr-defined]
            around = add_around(state, keys, consolidated(looked_at), touched.at)
        group = groups_among(around.rows, touched, self._names)
        order = self._order(around.rows, group)
        ordered = _Ordered(around.rows.take(order), group[order])
        before, after = around.before[order], around.after[order]
        groups = len(touched)
        if self._drops:
            kept = np.zeros(len(order), dtype=np.int64)
            kept[self._extremes(ordered, groups)] = 1
            changed = np.flatnonzero(kept != before)
            changes = ordered.rows.take(changed).weighing((kept - before)[changed])
            add(self.rows, keys, consolidated(changes))  # type: ignore[attr-defined]
        return self._of_rows(ordered, before, groups), self._of_rows(ordered, after, groups)

    def _beside_the_extremes(self, keys: Keys, new: Rows, touched: Rows) -> Around:
        """Return the rows that are kept, and the extremes among those that are new."""
        check_only_inserts(new, self._place)
        group = groups_among(new, touched, self._names)
        order = np.argsort(group, kind="stable")
        ordered = _Ordered(new.take(order), group[order])
        found = ordered.rows.take(self._extremes(ordered, len(touched)))
        held = held_by(self.rows, keys, touched.at)  # type: ignore[attr-defined]
        ones = np.ones(len(found), dtype=np.int64)
        return Around(
            joined([held, found]),
            np.concatenate([held.weights, ones - 1]),
            np.concatenate([held.weights, ones]),
        )

    def _extremes(self, of: _Ordered, groups: int) -> I64:
        """Return the positions of rows that have one of the extremes of their group."""
        parts = []
        for name in self._again:
            extreme = self._aggregates[name]
            assert isinstance(extreme, Extreme)
            parts.append(extreme.places(of.rows, of.group, groups))
        places = np.unique(np.concatenate(parts))
        return places[places >= 0]

    def _order(self, rows: Rows, group: I64) -> I64:
        """Return the rows of the touched groups by group, and in a canonical order if it counts."""
        if all(self._aggregates[name].any_order for name in self._again):
            order: I64 = np.argsort(group, kind="stable")
        else:
            hashes = rows.hashes([*self._names, *self._kept])
            order = _canonical(rows, group, hashes)
        return order[group[order] >= 0]

    def _of_rows(self, ordered: _Ordered, weights: I64, groups: int) -> dict[str, pa.Array]:
        there = weights > 0
        rows = ordered.rows.weighing(weights).take(there)
        return {
            name: self._aggregates[name].of_rows(
                self._fields[name], rows, ordered.group[there], groups
            )
            for name in self._again
        }

    def _results(
        self, touched: Rows, weights: I64, sums: Mapping[str, Any], again: Any, there: Mask
    ) -> Rows:
        """Return the rows of the groups that are there."""
        columns = {name: touched.columns[name].filter(pa.array(there)) for name in self._by}
        for name, of in self._aggregates.items():
            field = self._fields[name]
            if name in again:
                columns[name] = again[name].filter(pa.array(there))
            else:
                own = {part: sums[f"{name}_{part}"][there] for part in of.sums()}
                kind = self._types[of.column] if of.column is not None else pa.int64()
                columns[name] = of.of_sums(field, own, weights[there], kind)
        return Rows(columns, np.ones(int(there.sum()), dtype=np.int64), touched.at[there])


@dataclass(frozen=True)
class _Ordered:
    """Rows by group.

    Attributes:
        rows: the rows.
        group: the group of each.
    """

    rows: Rows
    group: I64


def _canonical(rows: Rows, group: I64, hashes: U64) -> I64:
    """Return an order that depends on rows alone, even where two of a group have one hash."""
    order: I64 = np.lexsort((hashes, group))
    same = (hashes[order][1:] == hashes[order][:-1]) & (group[order][1:] == group[order][:-1])
    if not same.any():
        return order
    texts = np.array([repr(row) for row in rows.to_pylist()])
    found: I64 = np.lexsort((texts, hashes, group))
    return found
