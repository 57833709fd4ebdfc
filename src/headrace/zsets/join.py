"""Joins of two Z-sets, of all kinds that SQL has.

The change of a join is ``Δa ⋈ b + (a + Δa) ⋈ Δb``: new left rows meet the old right side, then new
right rows meet the new left side. Weights multiply.

Rows without a partner need to know only whether there is one. So for outer, semi and anti joins the
operator keeps how many rows the other side has for each value of the key, and looks at the rows of
a key only when that number reaches or leaves zero. With a further condition there is no such
number: if the other side of a key changes, its rows are compared with what that side was and what it
is. An inner join only leaves pairs out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.computation.declarations import Declaration
from headrace.computation.zset_state import ZSetState
from headrace.errors import PipelineError
from headrace.eventtime.durations import duration_micros
from headrace.zsets.columns import Columns
from headrace.zsets.linear import NO_STEPS, Linear, as_mask, field_of
from headrace.zsets.operator import (
    NEVER,
    OUT,
    Operator,
    Side,
    Until,
    add,
    any_null,
    held_by,
    held_by_all,
)
from headrace.zsets.rows import I64, Mask, Rows, consolidated, joined, multiplied, no_rows, pairs

#: ``mark`` keeps all left rows, with a column that says whether they have a partner.
How = Literal["inner", "left", "right", "full", "semi", "anti", "mark"]
HOWS = ("inner", "left", "right", "full", "semi", "anti", "mark")
_PAIRS = ("inner", "left", "right", "full")


class Join(Operator):
    """The join of two Z-sets.

    Both inputs must be keyed by :class:`headrace.Hashed` of their columns in ``on``, in that order.

    Args:
        on: pairs of columns (of the left, of the right) that must be equal. Null equals nothing.
            An empty list pairs every row with every row.
        how: ``"inner"``, ``"left"``, ``"right"``, ``"full"``; ``"semi"`` for the left rows with a
            partner, ``"anti"`` for those without; ``"mark"`` for all left rows, with the column
            ``mark``, which says whether there is a partner.
        null_safe: the positions in ``on`` of pairs in which null equals null, or True for all.
        condition: a function of pairs, :class:`Rows` with all columns of both sides, that returns
            which of them count.
        right_names: the names in the result of right columns (old → new). A right column whose name
            the left side has too gets ``suffix``.
        suffix: see above.
        mark: the name of the column of ``"mark"``.
        until: for each side, columns that say when none of its rows will meet another, or be
            deleted; see :data:`headrace.zsets.operator.Until`. A row that decides whether one of
            the other side has a partner stays as long as that one may change.
        sides, then: see :class:`Operator`.

    State: the rows of both sides, and for outer, semi and anti joins the number of rows for each
    value of the key. Cost: the changed rows, and the rows of the other side that they meet.

    Raises:
        PipelineError: for columns that are not there, or of other types.

    Example::

        paid = hr.zsets.Join([("id", "order")], "left")
        p.compute("paid", paid, keys={orders: hr.Hashed(("id",)), payments: hr.Hashed(("order",))})
    """

    inputs = 2

    def __init__(
        self,
        on: Sequence[tuple[str, str]],
        how: How = "inner",
        *,
        null_safe: bool | Sequence[int] = False,
        condition: Callable[[Rows], Any] | None = None,
        right_names: Mapping[str, str] | None = None,
        suffix: str = "_right",
        mark: str = "exists",
        until: tuple[Until, Until] = (NEVER, NEVER),
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        if how not in HOWS:
            raise PipelineError(
                f"how={how!r} is no kind of join", place="zsets.Join", remedy=f"one of {HOWS}"
            )
        self._on = tuple((left, right) for left, right in on)
        self._how = how
        everywhere = tuple(range(len(self._on)))
        safe = everywhere if null_safe is True else tuple(null_safe or ())
        self._strict = tuple(pair for n, pair in enumerate(self._on) if n not in safe)
        self._condition = condition
        self._right_names = dict(right_names or {})
        self._suffix, self._mark, self._until = suffix, mark, until
        self._outer_left = how in ("left", "full")
        self._outer_right = how in ("right", "full")

    # -- what it keeps and produces -----------------------------------------------------------

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        left, right = schemas
        for one, other in self._on:
            a, b = field_of(left, one, self._place), field_of(right, other, self._place)
            if not _comparable(a.type, b.type):
                raise PipelineError(
                    f"{one!r} is {a.type} and {other!r} is {b.type}: they are never equal",
                    place=self._place,
                    remedy="convert one of them with select() first",
                )
        self._renamed = right_names(left, right, self._right_names, self._suffix)
        self._left, self._right = left, right
        has_pairs = self._how in _PAIRS
        states: dict[str, Declaration] = {"left": ZSetState(left, until=self._until[0])}
        if has_pairs or self._condition is not None:
            states["right"] = ZSetState(right, until=self._until[1])
        if self._condition is None and not (has_pairs and not self._outer_left):
            keys = self._keys_schema(right, 1)
            states["right_keys"] = ZSetState(keys, until=self._until_of_keys())
        if self._condition is None and self._outer_right:
            keys = self._keys_schema(left, 0)
            states["left_keys"] = ZSetState(keys, until=self._until_of_keys())
        self.recomputes = (OUT,) if self._keeps_all(left, right) else ()
        return states, self._schema_of_result(left, right)

    def _keeps_all(self, left: pa.Schema, right: pa.Schema) -> bool:
        """Return whether the result follows from the state.

        A row whose null equals nothing is shown without being kept, by a join that shows rows without
        a partner.
        """
        shows = (self._outer_left or self._how in ("anti", "mark"), self._outer_right)
        lone = any(
            shows[side] and schema.field(pair[side]).nullable
            for pair in self._strict
            for side, schema in enumerate((left, right))
        )
        return not lone and not any(self._until)

    def _keys_schema(self, schema: pa.Schema, side: int) -> pa.Schema:
        """Return the columns that are compared; a constant if there are none."""
        names = [pair[side] for pair in self._on]
        fields = [schema.field(name).with_name(f"k{n}") for n, name in enumerate(names)]
        return pa.schema(fields or [pa.field("k", pa.bool_(), nullable=False)])

    def _until_of_keys(self) -> Until:
        """Return when no row of either side has a value of the key any more."""
        left, right = self._until
        return {
            f"k{n}": max(left[one], right[other], key=duration_micros)
            for n, (one, other) in enumerate(self._on)
            if one in left and other in right
        }

    def _schema_of_result(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        if self._how in ("semi", "anti"):
            return left
        if self._how == "mark":
            return left.append(pa.field(self._mark, pa.bool_(), nullable=False))
        fields = [f.with_nullable(f.nullable or self._outer_right) for f in left]
        for field in right:
            nullable = field.nullable or self._outer_left
            fields.append(field.with_name(self._renamed[field.name]).with_nullable(nullable))
        names = [field.name for field in fields]
        if len({*names}) < len(names):
            raise PipelineError(
                f"the result has two columns of one name: {', '.join(names)}",
                place=self._place,
                remedy="give right_names=, or another suffix",
            )
        return pa.schema(fields)

    def contents(self, keys: Keys) -> Rows:
        sides = [held_by_all(self._state(0), keys), no_rows(self._right)]
        if self._how in _PAIRS or self._condition is not None:
            sides[1] = held_by_all(self._state(1), keys)
        left, right = sides
        found = [self._pairs(left, right)] if self._how in _PAIRS else []
        if self._outer_left or self._how not in _PAIRS:
            found += self._all_lone_or_met(keys, left, right, 0)
        if self._outer_right:
            found += self._all_lone_or_met(keys, right, left, 1)
        there = [rows for rows in found if len(rows)]
        return joined(there) if there else no_rows(self._made)

    def _all_lone_or_met(self, keys: Keys, own: Rows, other: Rows, side: int) -> list[Rows]:
        """Return what all rows of one side come to, each of which has a partner or none."""
        if self._condition is not None:
            return self._lone_or_met(own, self._meets(own, other, side), side)
        counts = self.right_keys if side == 0 else self.left_keys  # type: ignore[attr-defined]
        return self._lone_or_met(own, self._has_key(own, held_by_all(counts, keys), side), side)

    def _has_key(self, own: Rows, counts: Rows, side: int) -> Mask:
        """Return which rows of one side have a partner, by the keys of the other."""
        on = [(own_name, f"k{n}") for n, own_name in enumerate(pair[side] for pair in self._on)]
        first, _ = pairs(own, counts.take(counts.weights > 0), on)
        has = np.zeros(len(own), dtype=np.bool_)
        has[first] = True
        return has

    # -- a step -------------------------------------------------------------------------------

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        new_left, new_right = (consolidated(side) for side in sides)
        left, lone_left = self._parted(new_left, 0)
        right, lone_right = self._parted(new_right, 1)
        if self._condition is not None and self._how != "inner":
            found = self._with_condition(keys, left, right)
        else:
            found = self._by_keys(keys, left, right)
        found += [self._alone(lone_left, 0), self._alone(lone_right, 1)]
        there = [rows for rows in found if len(rows)]
        return joined(there) if there else no_rows(self._made)

    def _parted(self, rows: Rows, side: int) -> tuple[Rows, Rows]:
        """Return the rows that may have a partner, and those whose null equals nothing."""
        lone = any_null(rows, [pair[side] for pair in self._strict])
        return (rows.take(~lone), rows.take(lone)) if lone.any() else (rows, rows.take(lone))

    def _by_keys(self, keys: Keys, left: Rows, right: Rows) -> list[Rows]:
        """Take in changes where a partner is whoever has the same key."""
        found = []
        if self._outer_left or self._how not in _PAIRS:
            found.append(self._flipped(keys, left, right, 0))
        if self._outer_right:
            found.append(self._flipped(keys, right, left, 1))
        if self._how in _PAIRS:
            found.append(self._pairs(left, held_by(self._state(1), keys, left.at)))
        add(self._state(0), keys, left)
        if self._how in _PAIRS:
            found.append(self._pairs(held_by(self._state(0), keys, right.at), right))
            add(self._state(1), keys, right)
        return found

    def _state(self, side: int) -> Any:
        return self.left if side == 0 else self.right  # type: ignore[attr-defined]

    def _flipped(self, keys: Keys, own: Rows, other: Rows, side: int) -> Rows:
        """Return the changes of rows that have, or lack, a partner. Take in the other side's keys.

        Called before ``own`` is taken in.
        """
        counts = self.right_keys if side == 0 else self.left_keys  # type: ignore[attr-defined]
        other_keys = consolidated(self._keys_of(other, 1 - side))
        change = add(counts, keys, other_keys)
        was, now = change.before > 0, change.after > 0
        flips = other_keys.take(was != now)
        on = [(own_name, f"k{n}") for n, own_name in enumerate(pair[side] for pair in self._on)]
        has = self._has_key(own, held_by(counts, keys, own.at), side)
        found = self._lone_or_met(own, has, side)
        held = held_by(self._state(side), keys, flips.at)
        first, second = pairs(held, flips, on)
        rows, now_has = held.take(first), now[was != now][second]
        found += self._lone_or_met(rows, now_has, side)
        found += self._lone_or_met(rows.negated(), ~now_has, side)
        return joined(found)

    def _keys_of(self, rows: Rows, side: int) -> Rows:
        names = {f"k{n}": pair[side] for n, pair in enumerate(self._on)}
        if names:
            return rows.select(names)
        constant = pa.array(np.zeros(len(rows), dtype=np.bool_))
        return Rows({"k": constant}, rows.weights, rows.at)

    def _with_condition(self, keys: Keys, left: Rows, right: Rows) -> list[Rows]:
        """Take in changes where a partner must fulfil a condition, too."""
        sides = (left, right)
        looks = [self._outer_left or self._how not in _PAIRS, self._outer_right]
        # What rows of the other side see of this one: all its rows of the keys that either touched.
        touched = np.concatenate([left.at, right.at])
        before = [
            held_by(self._state(side), keys, touched if looks[1 - side] else other.at)
            for side, other in enumerate((right, left))
        ]
        found = []
        if self._how in _PAIRS:
            found += [self._pairs(left, before[1]), self._pairs(before[0], right)]
            found.append(self._pairs(left, right))
        for side in (0, 1):
            add(self._state(side), keys, sides[side])
        for side in np.flatnonzero(looks).tolist():
            old = before[1 - side]
            new = consolidated(joined([old, sides[1 - side]]))
            found += self._new_lone_or_met(sides[side], new, side)
            found += self._changed_lone_or_met(before[side], old, new, side)
        return found

    def _new_lone_or_met(self, own: Rows, other: Rows, side: int) -> list[Rows]:
        """Return what new rows of one side come to, of which some have a partner."""
        return self._lone_or_met(own, self._meets(own, other, side), side)

    def _changed_lone_or_met(self, own: Rows, old: Rows, new: Rows, side: int) -> list[Rows]:
        """Return the changes of rows of one side of which the other side was or is a partner."""
        was, now = self._meets(own, old, side), self._meets(own, new, side)
        rows, now = own.take(was != now), now[was != now]
        return self._lone_or_met(rows, now, side) + self._lone_or_met(rows.negated(), ~now, side)

    def _meets(self, own: Rows, other: Rows, side: int) -> Mask:
        """Return which rows of one side have a partner on the other that fulfils the condition."""
        theirs = other.take(other.weights > 0)
        first, second = pairs(own, theirs, self._on_from(side))
        one, two = (first, second) if side == 0 else (second, first)
        left, right = (own, theirs) if side == 0 else (theirs, own)
        has = np.zeros(len(own), dtype=np.bool_)
        has[first[self._fulfilled(left, one, right, two)]] = True
        return has

    def _on_from(self, side: int) -> list[tuple[str, str]]:
        return [(a, b) if side == 0 else (b, a) for a, b in self._on]

    # -- rows of the result -------------------------------------------------------------------

    def _pairs(self, left: Rows, right: Rows) -> Rows:
        first, second = pairs(left, right, self._on)
        if self._condition is not None and len(first):
            chosen = self._fulfilled(left, first, right, second)
            first, second = first[chosen], second[chosen]
        both = self._both(left, first, right, second)
        found = both.weighing(multiplied(left.weights[first], right.weights[second]))
        found.is_consolidated = True  # as both sides are, no pair comes twice
        return found

    def _both(self, left: Rows, first: I64, right: Rows, second: I64) -> Rows:
        one, two = left.take(first), right.take(second)
        renamed = {new: two.columns.parts[old] for old, new in self._renamed.items()}
        return Rows(one.columns.with_others(renamed), one.weights, one.at)

    def _fulfilled(self, left: Rows, first: I64, right: Rows, second: I64) -> Mask:
        assert self._condition is not None
        if not len(first):
            return np.zeros(0, dtype=np.bool_)
        found: Mask = as_mask(self._condition(self._both(left, first, right, second)), len(first))
        return found

    def _lone_or_met(self, rows: Rows, has: Mask, side: int) -> list[Rows]:
        """Return what rows of one side come to, each of which has a partner or none."""
        if self._how == "semi":
            return [rows.take(has)]
        if self._how == "mark":
            columns = rows.columns.with_others({self._mark: pa.array(has)})
            return [Rows(columns, rows.weights, rows.at)]
        return [self._alone(rows.take(~has), side)]

    def _alone(self, rows: Rows, side: int) -> Rows:
        """Return what rows without a partner come to."""
        wanted = self._outer_left if side == 0 else self._outer_right
        if self._how in ("anti", "mark") and side == 0:
            if self._how == "anti":
                return rows
            mark = pa.array(np.zeros(len(rows), dtype=np.bool_))
            columns = rows.columns.with_others({self._mark: mark})
            return Rows(columns, rows.weights, rows.at)
        if not wanted:
            return no_rows(self._made)
        own = {
            name if side == 0 else self._renamed[name]: column
            for name, column in rows.columns.parts.items()
        }
        filled = {
            field.name: own[field.name] if field.name in own else pa.nulls(len(rows), field.type)
            for field in self._made
        }
        return Rows(Columns(filled), rows.weights, rows.at)


def right_names(
    left: pa.Schema, right: pa.Schema, given: Mapping[str, str] | None, suffix: str
) -> dict[str, str]:
    """Return the names in the result of a join's right columns (old → new)."""
    taken, given = {*left.names}, given or {}
    return {n: given.get(n, n + suffix if n in taken else n) for n in right.names}


def _comparable(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(one == other or (pa.types.is_integer(one) and pa.types.is_integer(other)))
