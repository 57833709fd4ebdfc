"""Functions of a row's place among the rows of its group: what SQL computes with OVER.

The rows of a group are put in order, and each gets further columns: what comes before or after it,
or an aggregate of the rows around it. Rows that the order leaves equal are ordered by all columns,
so the result follows from the rows alone.

Aggregates that follow from sums are computed from running totals, and extremes from those of
stretches of 1, 2, 4, … rows, so their cost does not grow with the size of the frame. Other
aggregates, such as sums of floats, look at all rows of each frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation.batches import Keys
from headrace.computation.declarations import Declaration
from headrace.computation.zset_state import ZSetState
from headrace.errors import PipelineError
from headrace.keyspace.spans import positions
from headrace.schema.row_columns import row_type
from headrace.schema.whole_decimals import WIDE, whole_numbers, wide_of, widened
from headrace.zsets.aggregates import Aggregate, Extreme
from headrace.zsets.linear import NO_STEPS, Linear, Project
from headrace.zsets.operator import (
    NEVER,
    OUT,
    Operator,
    Side,
    Until,
    add_around,
    check_columns,
    held_by_all,
)
from headrace.zsets.ordering import Order, Ordered, groups_of, in_order
from headrace.zsets.rows import I64, Mask, Rows, consolidated, equal, joined, no_rows, order_codes

_PLACES: Mapping[str, pa.DataType] = {
    "row_number": pa.int64(),
    "rank": pa.int64(),
    "dense_rank": pa.int64(),
    "ntile": pa.int64(),
    "percent_rank": pa.float64(),
    "cume_dist": pa.float64(),
}
_PICKS = ("lag", "lead", "first", "last", "nth")
#: The most pairs of a row and a row of its frame that are looked at at once.
_PAIRS = 1 << 22


@dataclass(frozen=True)
class Frame:
    """The rows around a row that a function looks at.

    Args:
        lower: where it begins: a distance from the row, below 0 if it is before; None for the
            beginning of the group.
        upper: where it ends, with the row there; None for the end of the group.
        unit: what a distance is. ``"rows"`` are counted. ``"range"`` is a difference of the one
            column that the rows are ordered by; 0 is the rows that are equal in the order.

    Example::

        last_three = hr.zsets.Frame(-2, 0)
        over = hr.zsets.Over(hr.zsets.Sum("ms"), frame=last_three)
        hr.zsets.table("rows", hits).over("sums", "page", "ms", recent=over)
    """

    lower: int | None = None
    upper: int | None = 0
    unit: Literal["rows", "range"] = "range"


@dataclass(frozen=True)
class Over:
    """A function of a row's place in its ordered group.

    Args:
        function: ``"row_number"``, ``"rank"``, ``"dense_rank"``, ``"percent_rank"``,
            ``"cume_dist"`` or ``"ntile"`` (with ``number`` parts); ``"lag"`` or ``"lead"`` for the
            value ``number`` rows before or after; ``"first"``, ``"last"`` or ``"nth"`` for a value
            of the frame; or an aggregate of the frame.
        column: what a value is taken from.
        number: see above.
        default: a column whose value counts where ``"lag"`` and ``"lead"`` leave the group.
        ignore_nulls: whether nulls are passed over.
        frame: the frame; by default from the beginning of the group to the row and its equals.
        type: the Arrow type of the result, where it is not what follows from the function.

    Example::

        before = hr.zsets.Over("lag", "ms")
        hr.zsets.table("rows", hits).over("before", "page", "ms", before=before)
    """

    function: str | Aggregate
    column: str | None = None
    number: int = 1
    default: str | None = None
    ignore_nulls: bool = False
    frame: Frame = Frame()
    type: pa.DataType | None = None

    def field(self, name: str, schema: pa.Schema, place: str) -> pa.Field:
        """Return the column of its result.

        Raises:
            PipelineError: if there is no such function, or it cannot take this column.
        """
        if isinstance(self.function, Aggregate):
            found = self.function.field(name, schema, place)
            return found if self.type is None else found.with_type(row_type(self.type))
        if self.function in _PLACES:
            return pa.field(name, row_type(self.type or _PLACES[self.function]), nullable=False)
        if self.function not in _PICKS or self.column is None:
            raise PipelineError(
                f"{self.function!r} is no function of a window, or lacks its column",
                place=place,
                remedy=f"an aggregate, or one of {', '.join([*_PLACES, *_PICKS])}",
            )
        wanted = [self.column, *([self.default] if self.default is not None else [])]
        check_columns(schema, wanted, place)
        return pa.field(name, row_type(self.type or schema.field(self.column).type))

    def of(self, ordered: Partitions, field: pa.Field) -> pa.Array:
        """Return its value for each row."""
        if isinstance(self.function, Aggregate):
            return _aggregated(self.function, ordered, field, *ordered.bounds(self.frame))
        if self.function in _PLACES:
            return pa.array(ordered.place(self.function, self.number)).cast(field.type)
        return self._picked(ordered).cast(field.type)

    def _picked(self, ordered: Partitions) -> pa.Array:
        assert self.column is not None
        column = ordered.rows.columns[self.column]
        null = ordered.rows.nulls(self.column) if self.ignore_nulls else None
        if self.function in ("lag", "lead"):
            by = self.number if self.function == "lead" else -self.number
            at = ordered.shifted(by, null)
        else:
            at = ordered.nth(self.frame, self.number if self.function == "nth" else 1, null)
            if self.function == "last":
                at = ordered.last(self.frame, null)
        found = column.take(pa.array(at, mask=at < 0))
        if self.default is None:
            return found
        other = ordered.rows.columns[self.default]
        both = pa.concat_arrays([column, other.cast(column.type)])
        places = np.where(at < 0, len(column) + np.arange(len(at)), at)
        return both.take(pa.array(places))


class Partitions:
    """The rows of some groups, in order; a row of weight 3 stands there three times.

    Args:
        rows: the rows, ordered by group.
        group: the group of each, ascending.
        codes: numbers by which each group's rows ascend, for each column of the order.
        order: the order.
    """

    def __init__(
        self, rows: Rows, group: I64, codes: Sequence[I64], order: Sequence[Order]
    ) -> None:
        self.rows, self.group, self.order = rows, group, tuple(order)
        count = len(group)
        new = np.ones(count, dtype=np.bool_)
        new[1:] = group[1:] != group[:-1]
        self.start, self.end = _spans(new)
        peers = new.copy()
        for code in codes:
            peers[1:] |= code[1:] != code[:-1]
        self._new, self._peers = new, peers
        self.first_peer, self.last_peer = _spans(peers)  # the latter is behind the last of them
        self.at = np.arange(count)

    def place(self, function: str, number: int) -> npt.NDArray[Any]:
        """Return the number, rank or share of each row in its group."""
        size = self.end - self.start
        row = self.at - self.start
        match function:
            case "row_number":
                return row + 1
            case "rank":
                return self.first_peer - self.start + 1
            case "dense_rank":
                counted: I64 = np.cumsum(self._peers, dtype=np.int64)
                dense: I64 = counted - counted[self.start] + 1
                return dense
            case "percent_rank":
                found = (self.first_peer - self.start) / np.maximum(size - 1, 1)
                return np.asarray(found, dtype=np.float64)
            case "cume_dist":
                return np.asarray((self.last_peer - self.start) / size, dtype=np.float64)
            case _:
                least, wider = np.divmod(size, number)
                far = wider * (least + 1)
                late = wider + (row - far) // np.maximum(least, 1)
                part: I64 = np.where(row < far, row // (least + 1), late) + 1
                return part

    def shifted(self, by: int, null: npt.NDArray[np.bool_] | None) -> I64:
        """Return the position of the row some places further on; -1 if the group ends before."""
        if null is None or by == 0:
            at = self.at + by
            return np.where((at >= self.start) & (at < self.end), at, -1)
        there, counted = _there(null)
        wanted = counted[self.at] + by if by < 0 else counted[self.at + 1] + by - 1
        return _at(there, wanted, self.start, self.end)

    def nth(self, frame: Frame, number: int, null: npt.NDArray[np.bool_] | None) -> I64:
        """Return the position of the n-th row of the frame of each row, or -1."""
        low, high = self.bounds(frame)
        if null is None:
            at = low + number - 1
            return np.where(at < high, at, -1)
        there, counted = _there(null)
        return _at(there, counted[low] + number - 1, low, high)

    def last(self, frame: Frame, null: npt.NDArray[np.bool_] | None) -> I64:
        """Return the position of the last row of the frame of each row, or -1."""
        low, high = self.bounds(frame)
        if null is None:
            return np.where(high > low, high - 1, -1)
        there, counted = _there(null)
        return _at(there, counted[high] - 1, low, high)

    # -- frames -------------------------------------------------------------------------------

    def bounds(self, frame: Frame) -> tuple[I64, I64]:
        """Return where the frame of each row begins, and the position behind its end."""
        low = self._bound(frame.lower, frame.unit, is_upper=False)
        high = self._bound(frame.upper, frame.unit, is_upper=True)
        return low, np.maximum(low, high)

    def _bound(self, distance: int | None, unit: str, *, is_upper: bool) -> I64:
        if distance is None:
            return self.end if is_upper else self.start
        if unit == "rows":
            count = len(self.at)
            near = min(max(distance, -count), count)  # (a greater distance could wrap around)
            found: I64 = np.clip(self.at + near + is_upper, self.start, self.end)
            return found
        if distance == 0:
            return self.last_peer if is_upper else self.first_peer
        return self._at_distance(distance, is_upper)

    def _at_distance(self, distance: int, is_upper: bool) -> I64:
        """Return where the rows begin, or end, whose value is at most so far from that of each."""
        values, there = self._values
        found = self.last_peer.copy() if is_upper else self.first_peer.copy()
        at = np.flatnonzero(there)
        if not len(at):
            return found
        whole, group = values[at], self.group[at]
        bounds, beyond = _moved(whole, distance)
        both = np.concatenate([whole, bounds])
        groups = np.concatenate([group, group])
        asks = np.repeat([0, 1], len(at))
        # A bound below comes before the rows that are equal to it, and one above behind them.
        order = np.lexsort((asks if is_upper else -asks, both, groups))
        before = np.cumsum(asks[order] == 0)
        count = np.empty(len(order), dtype=np.int64)
        count[order] = before
        number = count[len(at) :]  # of the values in order, the first that is not before the bound
        first = np.searchsorted(group, group, side="left")
        behind = np.searchsorted(group, group, side="right")
        number[beyond] = (behind if distance > 0 else first)[beyond]
        inside = number < behind
        places = np.where(inside, at[np.minimum(number, len(at) - 1)], at[behind - 1] + 1)
        found[at] = np.where(number <= first, at[first], places)
        return found

    @cached_property
    def _values(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """The values of the one column of the order, ascending, and which are not null."""
        (order,) = self.order
        column = self.rows.columns[order.column]
        there = ~self.rows.nulls(order.column)
        kind = column.type
        if pa.types.is_date32(kind):
            values = column.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
        elif pa.types.is_uint64(kind):
            # Less 2**63 each: they fit then, and are as far apart.
            values = (column.fill_null(0).to_numpy() ^ np.uint64(1 << 63)).view(np.int64)
        else:
            values = column.cast(pa.int64()).fill_null(0).to_numpy()
        return (~values if order.descending else values), there


def _moved(values: I64, by: int) -> tuple[I64, Mask]:
    """Return whole numbers plus a distance, and which of them would be beyond 64 bits."""
    limits = np.iinfo(np.int64)
    beyond = values > limits.max - by if by > 0 else values < limits.min - by
    with np.errstate(over="ignore"):
        return np.where(beyond, values, values + by), beyond


def _spans(new: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    """Return where the stretch of each row starts, and the position behind its end."""
    starts = np.flatnonzero(new)
    lengths = np.diff(np.append(starts, len(new)))
    return np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)


def _there(null: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    """Return the positions of values that are not null, and how many there are before each row."""
    counted = np.concatenate([[0], np.cumsum(~null)])
    return np.flatnonzero(~null), counted


def _at(there: I64, wanted: I64, low: I64, high: I64) -> I64:
    """Return the wanted ones of some positions, -1 where one is outside of its bounds."""
    inside = (wanted >= 0) & (wanted < len(there))
    if not len(there):
        return np.full(len(wanted), -1, dtype=np.int64)
    at = there[np.where(inside, wanted, 0)]
    return np.where(inside & (at >= low) & (at < high), at, -1)


# -- aggregates of frames ---------------------------------------------------------------------


def _aggregated(
    of: Aggregate, ordered: Partitions, field: pa.Field, low: I64, high: I64
) -> pa.Array:
    """Return an aggregate of the rows from ``low`` to ``high`` for each row."""
    rows = ordered.rows
    if isinstance(of, Extreme):
        at = _extremes(rows.columns[of.column or ""], of.greatest, low, high)
        return rows.columns[of.column or ""].take(pa.array(at, mask=at < 0)).cast(field.type)
    schema = pa.schema([(name, column.type) for name, column in rows.columns.items()])
    if not of.is_linear(schema):
        return _by_rows(of, rows, field, low, high)
    each = of.partials(rows, np.arange(len(rows)))
    sums = {name: _between(values, low, high) for name, values in each.items()}
    kind = rows.columns[of.column].type if of.column is not None else pa.int64()
    return of.of_sums(field, sums, high - low, kind)


def _between(values: npt.NDArray[Any], low: I64, high: I64) -> npt.NDArray[Any]:
    """Return sums of stretches of whole numbers, from running totals."""
    if values.dtype != WIDE:
        totals = np.concatenate([[0], np.cumsum(values)])
        sums: I64 = totals[high] - totals[low]
        return sums
    narrow = np.ascontiguousarray(values["lo"]).view(np.int64)
    fits = bool((values["hi"] == (narrow >> 63)).all())
    largest = max(abs(int(narrow.max())), abs(int(narrow.min()))) if len(values) else 0
    if fits and largest * max(len(values), 1) < 1 << 62:
        totals = np.concatenate([[0], np.cumsum(narrow)])
        return widened(totals[high] - totals[low])
    exact = [0]
    for number in whole_numbers(values):
        exact.append(exact[-1] + number)
    return wide_of([exact[b] - exact[a] for a, b in zip(low.tolist(), high.tolist(), strict=True)])


def _extremes(column: pa.Array, greatest: bool, low: I64, high: I64) -> I64:
    """Return the position of the extreme of each stretch, -1 if all of it is null."""
    codes = order_codes(column)
    worst = np.int64(-1) if greatest else np.int64(np.iinfo(np.int64).max)
    codes = np.where(codes < 0, worst, codes)
    better = np.maximum if greatest else np.minimum
    found = np.full(len(low), worst, dtype=np.int64)
    length = high - low
    level, width = codes, 1
    while width <= (int(length.max()) if len(length) else 0):
        # Two stretches of this width, which may overlap, cover a frame of up to twice the width.
        now = np.flatnonzero((length >= width) & (length < 2 * width))
        found[now] = better(level[low[now]], level[high[now] - width])
        level = better(level[:-width], level[width:]) if len(level) > width else level[:0]
        width *= 2
    order = np.argsort(codes, kind="stable")
    at = np.searchsorted(codes[order], found)
    places = order[np.minimum(at, len(order) - 1)] if len(order) else at
    return np.where(found == worst, -1, places)


def _by_rows(of: Aggregate, rows: Rows, field: pa.Field, low: I64, high: I64) -> pa.Array:
    """Return an aggregate of stretches by looking at all of their rows."""
    parts = []
    for first, last in _portions(high - low):
        counts = high[first:last] - low[first:last]
        frame = rows.take(positions(low[first:last], counts))
        group = np.repeat(np.arange(last - first), counts)
        parts.append(of.of_rows(field, frame, group, last - first))
    return pa.concat_arrays(parts) if parts else pa.array([], field.type)


def _portions(lengths: I64) -> Iterator[tuple[int, int]]:
    """Divide stretches into portions of some million rows; at least one stretch in each."""
    first, total = 0, np.cumsum(lengths)
    while first < len(lengths):
        before = total[first - 1] if first else 0
        last = max(int(np.searchsorted(total, before + _PAIRS, side="right")), first + 1)
        yield first, min(last, len(lengths))
        first = last


# -- the operator -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Further functions of the same groups in the same order, over rows that the first ones are in.

    Args:
        linear: the projections that the rows go through first. They leave out no row.
        order: what the rows are ordered by already, by its columns here.
        functions: name → function, for each further column. Rows that are equal in the order may be
            in any order for them.
    """

    linear: Linear
    order: Sequence[Order | str]
    functions: Mapping[str, Over]


class Window(Operator):
    """All rows of each group, each with functions of its place in an order.

    The input must be keyed by :class:`headrace.Hashed` of the columns in ``by``.

    Args:
        by: the columns of the group; none for one group of all rows.
        order: what the rows of a group are ordered by; nothing leaves them all equal.
        functions: name → function, for each further column.
        further: what is computed of the rows then, one after the other; see :class:`Stage`.
        until: columns of ``by`` that say when a group does not change any more; see
            :data:`headrace.zsets.operator.Until`.
        sides, then: see :class:`Operator`.

    State: all rows. Cost: all rows of the touched groups.

    Raises:
        PipelineError: for columns that are not there, and for a range over several columns, or over
            one that has no distances.

    Example::

        numbered = hr.zsets.Window(["page"], ["ms"], {"place": hr.zsets.Over("row_number")})
        p.compute("numbered", numbered, keys={hits: hr.Hashed(("page",))})
    """

    def __init__(
        self,
        by: Sequence[str],
        order: Sequence[Order | str],
        functions: Mapping[str, Over],
        *,
        further: Sequence[Stage] = (),
        until: Until = NEVER,
        sides: Sequence[Side] | None = None,
        then: Linear = NO_STEPS,
    ) -> None:
        super().__init__(sides, then)
        self._by = tuple(by)
        self._order = _orders(order)
        self._until = dict(until)
        self._stages = (Stage(NO_STEPS, self._order, dict(functions)), *further)

    def plan(self, *schemas: pa.Schema) -> tuple[dict[str, Declaration], pa.Schema]:
        (schema,) = schemas
        check_columns(schema, [*self._by, *(of.column for of in self._order)], self._place)
        check_columns(pa.schema([schema.field(n) for n in self._by]), self._until, self._place)
        self.recomputes = () if self._until else (OUT,)
        self._fields: list[list[pa.Field]] = []
        made = schema
        for stage in self._stages:
            made = self._plan_stage(stage, made)
        return {"rows": ZSetState(schema, until=self._until)}, made

    def _plan_stage(self, stage: Stage, before: pa.Schema) -> pa.Schema:
        """Return the columns of the rows behind a stage."""
        if not all(isinstance(step, Project) for step in stage.linear.steps):
            raise PipelineError("a stage of a window only projects", place=self._place)
        schema = stage.linear.schema(before, self._place)
        order = _orders(stage.order)
        check_columns(schema, [of.column for of in order], self._place)
        for of in stage.functions.values():
            self._check_frame(of.frame, schema, order)
        self._fields.append([of.field(n, schema, self._place) for n, of in stage.functions.items()])
        return pa.schema([*schema, *self._fields[-1]])

    def _check_frame(self, frame: Frame, schema: pa.Schema, order: Sequence[Order]) -> None:
        if frame.unit == "rows" or {frame.lower, frame.upper} <= {None, 0}:
            return
        kinds = [schema.field(of.column).type for of in order]
        if len(kinds) != 1 or not _has_distances(kinds[0]):
            raise PipelineError(
                "a range with a distance needs an order by one column of integers or times",
                place=self._place,
                remedy="order by such a column alone, or count rows",
            )

    def contents(self, keys: Keys) -> Rows:
        rows = held_by_all(self.rows, keys)  # type: ignore[attr-defined]
        if not len(rows):
            return no_rows(self._made)
        group = groups_of(rows, self._by)
        order = in_order(rows, group, self._order)
        found = self._computed(rows, group, order, rows.weights)
        return found.take(np.ones(len(found.at), dtype=np.bool_))

    def changes(self, keys: Keys, *sides: Rows) -> Rows:
        rows = consolidated(sides[0])
        if not len(rows):
            return no_rows(self._made)
        around = add_around(self.rows, keys, rows, rows.at)  # type: ignore[attr-defined]
        rows, group = around.rows, groups_of(around.rows, self._by)
        order = in_order(rows, group, self._order)
        before = self._computed(rows, group, order, around.before)
        after = self._computed(rows, group, order, around.after)
        old, new = _different(before, after, projected=len(self._stages) > 1)
        return joined([old.negated(), new])

    def _computed(self, rows: Rows, group: I64, order: Ordered, weights: I64) -> _Computed:
        """Return the rows of some weights, each copy by itself, with their further columns."""
        times = np.maximum(weights[order.at], 0)
        at = np.repeat(order.at, times)
        copy = positions(np.zeros(len(times), dtype=np.int64), times)
        there = rows.take(at).weighing(np.ones(len(at), dtype=np.int64))
        words, groups = [word[at] for word in order.words], group[at]
        columns: dict[str, pa.Array] = {}
        for number, (stage, fields) in enumerate(zip(self._stages, self._fields, strict=True)):
            there = stage.linear.apply(there)
            ordered = Partitions(there, groups, words, _orders(stage.order))
            columns = {
                field.name: of.of(ordered, field)
                for field, of in zip(fields, stage.functions.values(), strict=True)
            }
            if number < len(self._stages) - 1:
                there = Rows(there.columns.with_others(columns), there.weights, there.at)
        return _Computed(there, columns, at, copy, np.maximum(weights, 0))


@dataclass(frozen=True)
class _Computed:
    """Rows with what functions say of them.

    Attributes:
        rows: the rows; one of weight 3 is there three times.
        columns: what the functions say.
        at: the position of each row among those of the touched groups.
        copy: the number of each among the copies of its row, from 0.
        times: how often each row of the touched groups is there.
    """

    rows: Rows
    columns: dict[str, pa.Array]
    at: I64
    copy: I64
    times: I64

    @property
    def every(self) -> Mapping[str, pa.Array]:
        """All columns."""
        return self.rows.columns.with_others(self.columns)

    def take(self, chosen: Mask) -> Rows:
        """Return some of the rows, with their further columns."""
        rows = self.rows.take(chosen)
        mask = pa.array(chosen)
        further = {name: column.filter(mask) for name, column in self.columns.items()}
        return Rows(rows.columns.with_others(further), rows.weights, rows.at)


def _orders(order: Sequence[Order | str]) -> tuple[Order, ...]:
    return tuple(Order(of) if isinstance(of, str) else of for of in order)


def _different(before: _Computed, after: _Computed, *, projected: bool) -> tuple[Rows, Rows]:
    """Return the rows of before that are gone or have changed, and what there is in their place.

    Args:
        before, after: the rows.
        projected: whether their other columns may have changed, too.
    """
    # Rows have one order before and after. So what is left of both stands side by side.
    old = before.copy < after.times[before.at]
    new = after.copy < before.times[after.at]
    was, now = pa.array(old), pa.array(new)
    # What projections say of a row may have changed, too.
    names = (*before.columns, *(before.rows if projected else ()))
    one, other = before.every, after.every
    same = equal(
        [one[name].filter(was) for name in names], [other[name].filter(now) for name in names]
    )
    gone, come = ~old, ~new
    gone[np.flatnonzero(old)[~same]] = True
    come[np.flatnonzero(new)[~same]] = True
    return before.take(gone), after.take(come)


def _has_distances(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    )
