"""Tables: where the rows of a Z-set come from, and whether their changes make sense."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.computation.counters import Counter
from headrace.computation.declarations import Declaration
from headrace.computation.zset_state import ZSetState
from headrace.errors import BadInput
from headrace.zsets.linear import NO_STEPS, Linear, as_mask
from headrace.zsets.operator import OUT, Operator, Side, add, check_columns, held_by, held_by_all
from headrace.zsets.rows import (
    I64,
    Groups,
    Mask,
    Rows,
    check_not_below_zero,
    consolidated,
    minus,
    no_rows,
    pairs,
)

_REMEDY = (
    "check that the source says every insertion, and every deletion with the row as it was; "
    "nothing of this step was committed"
)


class Upserts(Operator):
    """A table with a primary key, of rows that replace the row of their key, or delete it.

    The input must be keyed by :class:`headrace.Hashed` of ``key``. If a step has several rows of a
    key, the last of them in the order of arrival counts.

    Args:
        key: the columns of the primary key.
        deletes: a function of rows that returns which of them delete the row of their key.
        dropped: columns that are not the table's, such as the one that says what happened.
        turn: columns of numbers that say in which order rows come, in the place of their arrival: by the
            first column, then by the second, and so on. Those of equal numbers come in the order of
            arrival.
        ignore_missing: whether the deletion of a row that is not there is only counted (in the
            counter ``ignored``), such as the tombstones of a compacted topic. If not, it is an
            error.
        what: what the table is, for messages.
        sides, then: see :class:`Operator`.

    State: the rows of the table.

    Example::

        newest = hr.zsets.Upserts(["user"])
        p.compute("newest", newest, keys={hits: hr.Hashed(("user",))})

    Raises:
        BadInput: in the step, for the deletion of a row that is not there.
    """

    ignored = Counter("deletions of rows that were not there")

    def __init__(
        self,
        key: Sequence[str],
        *,
        what: str = "a table",
        deletes: Callable[[Rows], Any] | None = None,
        dropped: Sequence[str] = (),
        ignore_missing: bool = False,
        turn: Sequence[str] = (),
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        self._turn = tuple(turn)
        self._key, self._dropped, self._what = tuple(key), tuple(dropped), what
        self._deletes, self._ignore_missing = deletes, ignore_missing

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        check_columns(schema, [*self._key, *self._dropped], self._place)
        kept = pa.schema([field for field in schema if field.name not in self._dropped])
        check_columns(kept, self._key, self._place)
        self._names = tuple(kept.names)
        self.integrals = {OUT: "rows"}
        return {"rows": ZSetState(kept)}, kept

    def contents(self, keys: Keys) -> Rows:
        return held_by_all(self.rows, keys)  # type: ignore[attr-defined]

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        (rows,) = sides
        if not len(rows):
            return no_rows(self._made)
        if self._turn:
            rows = rows.take(np.lexsort([rows[of] for of in reversed(self._turn)]))
        state = self.rows  # type: ignore[attr-defined]
        groups = Groups(rows, self._key)
        order, starts = groups.order, groups.starts
        ends = np.append(starts[1:], len(order)) - 1
        last = rows.take(order[ends])
        last = last.weighing(np.ones(len(last), dtype=np.int64))
        held = held_by(state, keys, last.at)
        on = [(name, name) for name in self._key]
        first, second = pairs(last, held, on)
        gone = np.zeros(len(rows), dtype=np.bool_)
        if self._deletes is not None:
            gone = as_mask(self._deletes(rows), len(rows))[order]
            there = np.zeros(len(starts), dtype=np.bool_)
            there[first] = True
            self._check_there(rows, order, _without_row(gone, starts, there))
        new = last.take(~gone[ends]).select(self._names)
        change = consolidated(minus(new, held.take(second)))
        add(state, keys, change)
        return change

    def _check_there(self, rows: Rows, order: I64, missing: Mask) -> None:
        """Count the deletions of rows that are not there, or refuse the first of them."""
        if self._ignore_missing:
            self.ignored.add(missing.sum())
        elif missing.any():
            wrong = rows.take(order[missing]).select(self._key)
            below = np.full(len(wrong), -1, dtype=np.int64)
            check_not_below_zero(wrong, below, self._what, _REMEDY)


def _without_row(gone: Mask, starts: I64, there: Mask) -> Mask:
    """Return which deletions are of a row that is not there when their turn comes.

    Args:
        gone: which rows are deletions, by key and turn.
        starts: where the rows of each key start.
        there: whether the table had a row of the key before.
    """
    is_missing = np.concatenate([[False], gone[:-1]])
    is_missing[starts] = ~there
    found: Mask = gone & is_missing
    return found


class Checked(Operator):
    """A table whose changes are checked: no row is deleted that is not there.

    The input must be keyed by :class:`headrace.Hashed` of all columns.

    Args:
        what: what holds the rows, for messages.
        remedy: what to do if a row is deleted that is not there.
        sides, then: see :class:`Operator`.

    State: the rows, each with its weight: the *integral* of the changes.

    Example::

        hr.zsets.table("rows", hits).select("page", "user").checked("pages_of_users")

    Raises:
        BadInput: in the step, naming the table and the row.
    """

    def __init__(
        self,
        what: str,
        *,
        remedy: str = _REMEDY,
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        self._what, self._remedy = what, remedy

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        self.integrals = {OUT: "rows"}
        return {"rows": ZSetState(schema)}, schema

    def contents(self, keys: Keys) -> Rows:
        return held_by_all(self.rows, keys)  # type: ignore[attr-defined]

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        rows = consolidated(sides[0])
        if len(rows):
            change = add(self.rows, keys, rows)  # type: ignore[attr-defined]
            check_not_below_zero(rows, change.after, self._what, self._remedy)
        return rows


class KeyedView(Checked):
    """A view with a key: at most one row for each.

    The input must be keyed by :class:`headrace.Hashed` of ``key``.

    Args:
        what, remedy, sides, then: see :class:`Checked`.
        key: the columns of the key.

    Raises:
        BadInput: in the step, if a key has two rows at its end.

    Example::

        counts = hr.zsets.table("rows", hits).group("counts", "page", n=hr.zsets.Count())
        counts.view("visits_by_page", key="page")
    """

    def __init__(
        self,
        what: str,
        key: Sequence[str],
        *,
        remedy: str = _REMEDY,
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(what, remedy=remedy, sides=sides, then=then)
        self._key = tuple(key)

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        check_columns(schemas[0], self._key, self._place)
        return super().plan(*schemas)

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        rows = super().changes(keys, *sides)
        new = rows.take(rows.weights > 0)
        if len(new):
            held = held_by(self.rows, keys, new.at)  # type: ignore[attr-defined]
            groups = Groups(held, self._key)
            counts = np.add.reduceat(held.weights[groups.order], groups.starts)
            twice = np.flatnonzero(counts > 1)
            if len(twice):
                at = groups.order[groups.starts[twice[:1]]]
                (row,) = held.take(at).select(self._key).to_pylist()
                shown = ", ".join(f"{name}={value!r}" for name, value in row.items())
                raise BadInput(
                    f"{self._what} has {int(counts[twice[0]])} rows of one key ({shown})",
                    remedy="choose a key that is different for each row, or none",
                )
        return rows
