"""A plain interpreter of the IR over whole tables: slow, and easy to check by reading.

It shares the expressions with the product, which are tested against Spark, and nothing else. Rows are
found by Python's dictionaries, groups are lists of row numbers, and every aggregate is a few lines of
Python over exact numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import SqlError
from headrace.sql.expressions import Frame, Vector, compile_expression, from_arrow, to_arrow
from headrace.sql.expressions.vectors import dtype_of, narrowed, nulls
from headrace.sql.ir.expressions import Aggregate, Expression, SortKey, WindowFunction
from headrace.sql.ir.relations import (
    Column,
    Distinct,
    Expand,
    Explode,
    Filter,
    Group,
    Join,
    Project,
    Relation,
    Replicate,
    Scan,
    SingleRow,
    Top,
    Union,
    Values,
    Window,
)
from headrace.sql.ir.types import SqlType


@dataclass(frozen=True)
class Rows:
    """The rows of a relation, by column."""

    columns: tuple[Column, ...]
    vectors: tuple[Vector, ...]
    length: int

    @property
    def frame(self) -> Frame:
        return Frame(self.vectors, self.length)

    def take(self, at: Iterable[int]) -> Rows:
        places = np.array(list(at), dtype=np.int64)
        taken = tuple(one.take(places) for one in self.vectors)
        return Rows(self.columns, taken, len(places))

    def value(self, expression: Expression) -> Vector:
        return compile_expression(expression).evaluate(self.frame)

    def python(self, vectors: Sequence[Vector] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows as tuples of plain values, in which NaN and 0.0 are unique."""
        columns = [plain(one) for one in (self.vectors if vectors is None else vectors)]
        return list(zip(*columns, strict=True)) if columns else [()] * self.length

    def arrow(self) -> pa.Table:
        arrays = [to_arrow(v, c.type) for v, c in zip(self.vectors, self.columns, strict=True)]
        fields = [pa.field(f"{at}", array.type) for at, array in enumerate(arrays)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


NAN = "NaN"


def plain(vector: Vector) -> list[Any]:
    """Return a column as Python's values: None for NULL, one NaN that equals itself, no -0.0."""
    values = vector.values.to_pylist() if vector.is_text else vector.values.tolist()
    mask = vector.mask.tolist()
    return [_plain(one) if is_valid else None for one, is_valid in zip(values, mask, strict=True)]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return value


def _lists(value: Any) -> Any:
    """Return a plain value as Arrow takes it."""
    if isinstance(value, tuple):
        return list(map(_lists, value))
    return math.nan if value == NAN else value


def vector_of(values: Sequence[Any], kind: SqlType) -> Vector:
    """Return Python's values as a column; decimals are their unscaled integers."""
    if kind.is_text:
        return Vector(pa.array(values, kind.arrow))
    if kind.is_array:
        lists = [None if one is None else [_lists(part) for part in one] for one in values]
        return Vector(pa.array(lists, kind.arrow))
    if not len(values):
        return nulls(kind, 0)
    valid = np.array([one is not None for one in values])
    filled = [0 if one is None else (math.nan if one == NAN else one) for one in values]
    array = (
        narrowed(np.array(filled, dtype=object))
        if kind.is_decimal
        else np.array(filled, dtype_of(kind))
    )
    return Vector(array, valid)


def run(relation: Relation, tables: Mapping[str, Rows]) -> Rows:  # noqa: PLR0912
    """Return the rows of a relation."""
    match relation:
        case Scan():
            of = tables[relation.table]
            return Rows(
                relation.columns, tuple(of.vectors[at] for at in relation.positions), of.length
            )
        case Values():
            one = Rows((), (), 1)
            made = [[one.value(literal) for literal in row] for row in relation.rows]
            columns = [
                vector_of([v for row in made for v in plain(row[at])], c.type)
                for at, c in enumerate(relation.columns)
            ]
            return Rows(relation.columns, tuple(columns), len(made))
        case Project():
            child = run(relation.child, tables)
            return Rows(
                relation.columns, tuple(child.value(e) for e in relation.expressions), child.length
            )
        case Filter():
            child = run(relation.child, tables)
            return child.take(np.flatnonzero(child.value(relation.condition).is_true()))
        case Join():
            return _join(relation, run(relation.left, tables), run(relation.right, tables))
        case SingleRow():
            child = run(relation.child, tables)
            if child.length > 1:
                raise SqlError(
                    "a scalar subquery has several rows", condition="SCALAR_SUBQUERY_TOO_MANY_ROWS"
                )
            if child.length == 1:
                return Rows(relation.columns, child.vectors, 1)
            return Rows(relation.columns, tuple(nulls(c.type, 1) for c in relation.columns), 1)
        case Group():
            return _group(relation, run(relation.child, tables))
        case Distinct():
            child = run(relation.child, tables)
            return child.take(one[0] for one in _groups(child.python()).values())
        case Union():
            return _stacked(relation.columns, [run(one, tables) for one in relation.children])
        case Expand():
            child = run(relation.child, tables)
            parts = [
                Rows(relation.columns, tuple(child.value(e) for e in row), child.length)
                for row in relation.projections
            ]
            return _stacked(relation.columns, parts)
        case Explode():
            return _exploded(relation, run(relation.child, tables))
        case Replicate():
            child = run(relation.child, tables)
            times = plain(child.value(relation.times))
            rows = Rows(
                relation.columns, tuple(child.value(e) for e in relation.expressions), child.length
            )
            return rows.take(at for at, count in enumerate(times) for _ in range(count))
        case Top():
            child = run(relation.child, tables)
            ordered = sorted_rows(child, relation.order, range(child.length))
            end = None if relation.limit is None else relation.offset + relation.limit
            return child.take(ordered[relation.offset : end])
        case Window():
            return _window(relation, run(relation.child, tables))


def _groups(keys: Sequence[Any]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for at, key in enumerate(keys):
        found.setdefault(key, []).append(at)
    return found


def _stacked(columns: tuple[Column, ...], parts: Sequence[Rows]) -> Rows:
    vectors = [
        vector_of([v for part in parts for v in plain(part.vectors[at])], column.type)
        for at, column in enumerate(columns)
    ]
    return Rows(columns, tuple(vectors), sum(part.length for part in parts))


def _exploded(explode: Explode, child: Rows) -> Rows:
    at: list[int] = []
    places: list[int | None] = []
    elements: list[Any] = []
    for row, array in enumerate(plain(child.value(explode.array))):
        none = [(None, None)] if explode.outer else []
        for place, element in list(enumerate(array or ())) or none:
            at.append(row)
            places.append(place)
            elements.append(element)
    new = [places, elements] if explode.position else [elements]
    kinds = [one.type for one in explode.columns[len(child.columns) :]]
    made = [_of_elements(of, kind) for of, kind in zip(new, kinds, strict=True)]
    return Rows(explode.columns, (*child.take(at).vectors, *made), len(at))


def _of_elements(values: Sequence[Any], kind: SqlType) -> Vector:
    """Return values that Arrow has given, such as decimals and times, as a column."""
    if kind.in_arrow or kind.name in {"int", "bigint", "boolean", "double"}:
        return vector_of(values, kind)
    return from_arrow(pa.array([_lists(one) for one in values], kind.arrow), kind)


# -- joins ------------------------------------------------------------------------------------


def _join(join: Join, left: Rows, right: Rows) -> Rows:
    pairs = _pairs(join, left, right)
    matched = {one for one, _ in pairs}
    if join.kind in {"semi", "anti"}:
        wanted = [at for at in range(left.length) if (at in matched) == (join.kind == "semi")]
        return Rows(join.columns, left.take(wanted).vectors, len(wanted))
    if join.kind == "existence":
        exists = vector_of([at in matched for at in range(left.length)], SqlType("boolean"))
        return Rows(join.columns, (*left.vectors, exists), left.length)
    both: list[tuple[int | None, int | None]] = list(pairs)
    if join.kind in {"left", "full"}:
        both += [(at, None) for at in range(left.length) if at not in matched]
    if join.kind == "full":
        found = {other for _, other in pairs}
        both += [(None, at) for at in range(right.length) if at not in found]
    ones = [*_padded(left, [one for one, _ in both]), *_padded(right, [other for _, other in both])]
    return Rows(join.columns, tuple(ones), len(both))


def _padded(rows: Rows, at: Sequence[int | None]) -> list[Vector]:
    out = []
    for column, vector in zip(rows.columns, rows.vectors, strict=True):
        values = plain(vector)
        out.append(vector_of([None if one is None else values[one] for one in at], column.type))
    return out


def _pairs(join: Join, left: Rows, right: Rows) -> list[tuple[int, int]]:
    """Return the numbers of the rows that match."""
    hashed = [key for key in join.keys if key.nulls != "match"]
    ones = left.python([left.value(key.left) for key in hashed])
    others = right.python([right.value(key.right) for key in hashed])
    differ = [at for at, key in enumerate(hashed) if key.nulls == "differ"]
    table = _groups(others)
    pairs = [
        (at, other)
        for at, key in enumerate(ones)
        if not any(key[part] is None for part in differ)
        for other in table.get(key, ())
    ]
    for key in join.keys:
        if key.nulls == "match":
            a, b = plain(left.value(key.left)), plain(right.value(key.right))
            pairs = [(i, j) for i, j in pairs if a[i] is None or b[j] is None or a[i] == b[j]]
    if join.condition is None or not pairs:
        return pairs
    together = Rows(
        (),
        (*left.take(i for i, _ in pairs).vectors, *right.take(j for _, j in pairs).vectors),
        len(pairs),
    )
    truth = together.value(join.condition).is_true()
    return [pair for pair, holds in zip(pairs, truth.tolist(), strict=True) if holds]


# -- groups -----------------------------------------------------------------------------------


def _group(group: Group, child: Rows) -> Rows:
    keys = [child.value(one) for one in group.keys]
    groups = _groups(child.python(keys))
    if not group.keys and not groups:
        groups = {(): []}
    firsts = [rows[0] for rows in groups.values() if rows]
    out = [one.take(np.array(firsts, dtype=np.int64)) for one in keys]
    for aggregate in group.aggregates:
        arguments = arguments_of(aggregate, child)
        values = [aggregated(aggregate, [arguments[at] for at in rows]) for rows in groups.values()]
        out.append(vector_of(values, aggregate.type))
    return Rows(group.columns, tuple(out), len(groups))


def arguments_of(aggregate: Aggregate, rows: Rows) -> list[tuple[Any, ...] | None]:
    """Return the arguments of an aggregate for each row; None for rows that its FILTER drops."""
    arguments: list[tuple[Any, ...] | None] = list(
        rows.python([rows.value(e) for e in aggregate.args])
    )
    if aggregate.condition is not None:
        truth = rows.value(aggregate.condition).is_true().tolist()
        arguments = [one if holds else None for one, holds in zip(arguments, truth, strict=True)]
    return arguments


def aggregated(aggregate: Aggregate, rows: Sequence[tuple[Any, ...] | None]) -> Any:
    """Return the value of an aggregate for some rows, in order."""
    present = [one for one in rows if one is not None]
    if aggregate.function in {"first", "last"}:
        return _at_end(aggregate, present)
    if aggregate.function in {"min_by", "max_by"}:
        present = [one for one in present if one[1] is not None]
    else:
        present = [one for one in present if None not in one]
    if aggregate.distinct:
        present = list(dict.fromkeys(present))
    if aggregate.function == "count":
        return len(present)
    if aggregate.function in {"collect_list", "collect_set"}:
        values = sorted((one for (one,) in present), key=rank)
        once = aggregate.function == "collect_set"
        return _as_elements(
            tuple(dict.fromkeys(values) if once else values), aggregate.args[0].type
        )
    if not present:
        return None
    if aggregate.function in {"min_by", "max_by"}:
        choose = min if aggregate.function == "min_by" else max
        return choose(present, key=lambda one: (rank(one[1]), rank(one[0])))[0]
    return _AGGREGATES[aggregate.function](aggregate, [one for (one,) in present])


def _as_elements(values: Sequence[Any], kind: SqlType) -> tuple[Any, ...]:
    """Return plain values as Arrow has them in an array."""
    return tuple(map(_plain, to_arrow(vector_of(values, kind), kind).to_pylist()))


def _at_end(aggregate: Aggregate, rows: Sequence[tuple[Any, ...]]) -> Any:
    values = [one for (one,) in rows]
    if dict(aggregate.options).get("ignore_nulls") == "true":
        values = [one for one in values if one is not None]
    if not values:
        return None
    return values[0] if aggregate.function == "first" else values[-1]


def _sum(aggregate: Aggregate, values: list[Any]) -> Any:
    kind = aggregate.type
    if kind.is_float:
        return _float_sum(values)
    total = sum(values)
    if (kind.is_decimal and abs(total) >= 10**kind.precision) or (
        not kind.is_decimal and not -(2**63) <= total < 2**63
    ):
        if dict(aggregate.options).get("mode") == "try":
            return None
        raise SqlError("a sum is too large", condition="ARITHMETIC_OVERFLOW")
    return total


def _float_sum(values: list[Any]) -> Any:
    floats = [math.nan if one == NAN else float(one) for one in values]
    total = math.fsum(floats) if all(map(math.isfinite, floats)) else sum(floats)
    return NAN if math.isnan(total) else total


def _avg(aggregate: Aggregate, values: list[Any]) -> Any:
    if aggregate.type.is_decimal:
        places = aggregate.type.scale - aggregate.args[0].type.scale
        return half_up(Fraction(sum(values) * 10**places, len(values)))
    total = _float_sum(values)
    return total if total == NAN else total / len(values)


def half_up(value: Fraction) -> int:
    """Return the nearest integer; a half is rounded away from zero."""
    nearest = math.floor(abs(value) + Fraction(1, 2))
    return -nearest if value < 0 else nearest


def _variance(aggregate: Aggregate, values: list[Any], free: int, root: bool) -> Any:
    if NAN in values or any(math.isinf(one) for one in values):
        return NAN if len(values) > free else None
    if len(values) <= free:
        return None
    mean = math.fsum(values) / len(values)
    found = math.fsum((one - mean) ** 2 for one in values) / (len(values) - free)
    return math.sqrt(found) if root else found


def _extreme(choose: Callable[..., Any]) -> Callable[[Aggregate, list[Any]], Any]:
    return lambda aggregate, values: choose(values, key=rank)


def _bits(act: Callable[[int, int], int]) -> Callable[[Aggregate, list[Any]], Any]:
    return lambda aggregate, values: functools.reduce(act, values)


_AGGREGATES: dict[str, Callable[[Aggregate, list[Any]], Any]] = {
    "sum": _sum,
    "avg": _avg,
    "min": _extreme(min),
    "max": _extreme(max),
    "stddev_samp": lambda a, v: _variance(a, v, 1, True),
    "stddev_pop": lambda a, v: _variance(a, v, 0, True),
    "var_samp": lambda a, v: _variance(a, v, 1, False),
    "var_pop": lambda a, v: _variance(a, v, 0, False),
    "bit_and": _bits(lambda a, b: a & b),
    "bit_or": _bits(lambda a, b: a | b),
    "bit_xor": _bits(lambda a, b: a ^ b),
}


# -- order ------------------------------------------------------------------------------------


def rank(value: Any) -> Any:
    """Return something that orders values as SQL does: NULL first, NaN last."""
    if value is None:
        return (0, 0)
    if isinstance(value, tuple):
        return (1, tuple(map(rank, value)))
    return (2, 0) if value == NAN else (1, value)


def sorted_rows(rows: Rows, order: Sequence[SortKey], at: Iterable[int]) -> list[int]:
    """Return row numbers in order; rows that it leaves equal are ordered by all columns."""
    everything = rows.python()
    found = sorted(at, key=lambda one: tuple(map(rank, everything[one])))
    for key in reversed(order):
        values = plain(rows.value(key.by))
        found.sort(key=lambda one, of=values: rank(of[one]), reverse=not key.ascending)  # type: ignore[misc]
        found.sort(key=lambda one, of=values: (of[one] is None) != key.nulls_first)  # type: ignore[misc]
    return found


def _window(window: Window, child: Rows) -> Rows:
    groups = _groups(child.python([child.value(one) for one in window.partition]))
    orders = [plain(child.value(one.by)) for one in window.order]
    keys = [tuple(of[at] for of in orders) for at in range(child.length)]
    out: list[list[Any]] = [[None] * child.length for _ in window.functions]
    for rows in groups.values():
        ordered = sorted_rows(child, window.order, rows)
        for values, function in zip(out, window.functions, strict=True):
            for at, value in zip(
                ordered, _over(function, window, child, ordered, keys), strict=True
            ):
                values[at] = value
    made = [vector_of(v, f.type) for v, f in zip(out, window.functions, strict=True)]
    return Rows(window.columns, (*child.vectors, *made), child.length)


def _over(
    function: WindowFunction, window: Window, child: Rows, ordered: list[int], keys: list[Any]
) -> list[Any]:
    count = len(ordered)
    peers = [keys[at] for at in ordered]
    first = [peers.index(one) for one in peers]  # (ties are next to each other)
    last = [count - 1 - peers[::-1].index(one) for one in peers]
    dense = list(dict.fromkeys(peers))
    match function.function:
        case "row_number":
            return [at + 1 for at in range(count)]
        case "rank":
            return [at + 1 for at in first]
        case "dense_rank":
            return [dense.index(one) + 1 for one in peers]
        case "percent_rank":
            return [at / (count - 1) if count > 1 else 0.0 for at in first]
        case "cume_dist":
            return [(at + 1) / count for at in last]
        case "ntile":
            (buckets,) = set(plain(child.value(function.args[0])))
            size, more = divmod(count, buckets)
            wide = more * (size + 1)
            return [
                at // (size + 1) + 1 if at < wide else more + (at - wide) // max(size, 1) + 1
                for at in range(count)
            ]
        case "lag" | "lead":
            return _shifted(function, child, ordered)
    assert function.frame is not None
    frames = [_frame(function, window, at, ordered, keys, first, last) for at in range(count)]
    if function.function == "nth_value":
        values = plain(child.value(function.args[0]))
        (number,) = set(plain(child.value(function.args[1])))
        picked = [[values[at] for at in frame] for frame in frames]
        if dict(function.options).get("ignore_nulls") == "true":
            picked = [[one for one in of if one is not None] for of in picked]
        return [of[number - 1] if len(of) >= number else None for of in picked]
    assert function.aggregate is not None
    arguments = arguments_of(function.aggregate, child)
    return [aggregated(function.aggregate, [arguments[at] for at in frame]) for frame in frames]


def _shifted(function: WindowFunction, child: Rows, ordered: list[int]) -> list[Any]:
    values, offsets, defaults = (plain(child.value(one)) for one in function.args)
    sign = -1 if function.function == "lag" else 1
    skips = dict(function.options).get("ignore_nulls") == "true"
    out = []
    for place, at in enumerate(ordered):
        target = place + sign * offsets[at]
        if skips and offsets[at]:
            step = 1 if target > place else -1
            others = range(place + step, len(ordered) if step > 0 else -1, step)
            there = [one for one in others if values[ordered[one]] is not None]
            far = abs(offsets[at])
            target = there[far - 1] if len(there) >= far else -1
        out.append(values[ordered[target]] if 0 <= target < len(ordered) else defaults[at])
    return out


def _frame(
    function: WindowFunction,
    window: Window,
    at: int,
    ordered: list[int],
    keys: list[Any],
    first: list[int],
    last: list[int],
) -> list[int]:
    """Return the rows that a window function looks at for one row, in order."""
    frame = function.frame
    assert frame is not None
    if frame.unit == "rows":
        low = 0 if frame.lower is None else max(at + frame.lower, 0)
        high = len(ordered) if frame.upper is None else max(at + frame.upper + 1, 0)
        return ordered[low:high]
    mine = keys[ordered[at]]
    low = 0 if frame.lower is None else (first[at] if frame.lower == 0 or mine[0] is None else -1)
    high = (
        len(ordered)
        if frame.upper is None
        else (last[at] + 1 if frame.upper == 0 or mine[0] is None else -1)
    )
    sign = 1 if window.order[0].ascending else -1
    out = []
    for place, row in enumerate(ordered):
        if keys[row][0] is None or mine[0] is None:  # NULL is farther away than anything
            distance = -math.inf if window.order[0].nulls_first else math.inf
        else:
            distance = sign * (keys[row][0] - mine[0])
        after = place >= low if low >= 0 else distance >= frame.lower  # type: ignore[operator]
        before = place < high if high >= 0 else distance <= frame.upper  # type: ignore[operator]
        if after and before:
            out.append(row)
    return out


def rows_of(table: pa.Table, columns: Sequence[Column]) -> Rows:
    """Return an Arrow table as rows."""
    vectors = tuple(from_arrow(table.column(at), one.type) for at, one in enumerate(columns))
    return Rows(tuple(columns), vectors, table.num_rows)
