"""From the IR to operators on Z-sets, which keep a view up to date.

Every relation becomes a stream whose columns are called ``c0``, ``c1``, … by position. Projections,
filters and unions run inside the operators that read them. Joins, groups and the like become
computations, named after the view and what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import PipelineError, SqlError
from headrace.sql.expressions import Frame, Vector, compile_expression, from_arrow, to_arrow
from headrace.sql.ir.canonical import digest
from headrace.sql.ir.expressions import (
    Aggregate,
    Call,
    Expression,
    Literal,
    Ref,
    SortKey,
    conjunction,
)
from headrace.sql.ir.relations import (
    Column,
    Distinct,
    Expand,
    Filter,
    Group,
    Join,
    KeyPair,
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
from headrace.sql.ir.traversal import walk
from headrace.sql.ir.types import BOOLEAN, INT, SqlType
from headrace.zsets import Aggregate as Maintained
from headrace.zsets import Avg, Count, Max, Min, OfRows, Order, Rows, Sum, Variance, ZStream

_KINDS = {
    "inner": "inner",
    "left": "left",
    "full": "full",
    "semi": "semi",
    "anti": "anti",
    "existence": "mark",
}
_RANKINGS = {"row_number", "rank", "dense_rank"}


def name_of(index: int) -> str:
    """Return the name of a column of a stream."""
    return f"c{index}"


@dataclass(frozen=True)
class Evaluated:
    """An expression as a function of rows. It is sent to workers as the IR, and compiled there."""

    expression: Expression
    columns: tuple[SqlType, ...]

    def __call__(self, rows: Rows) -> pa.Array:
        vectors = _Lazy(rows, self.columns)
        return to_arrow(self._compiled.evaluate(vectors), self.expression.type)

    @cached_property
    def _compiled(self) -> Any:
        return compile_expression(self.expression)

    def __getstate__(self) -> dict[str, Any]:
        return {"expression": self.expression, "columns": self.columns}


class _Lazy(Frame):
    """The rows of a change, of which a column is read when it is needed."""

    def __init__(self, rows: Rows, types: Sequence[SqlType]) -> None:
        super().__init__((), len(rows))
        self._rows = rows
        self._types = types

    def column(self, index: int) -> Vector:
        return from_arrow(self._rows.arrow(name_of(index)), self._types[index])


@dataclass(frozen=True)
class _Times:
    """For each row the positions of its copies; and all columns."""

    times: Evaluated
    columns: tuple[Evaluated, ...]

    def __call__(self, rows: Rows) -> tuple[Any, Mapping[str, Any]]:
        counts = np.asarray(self.times(rows).fill_null(0))
        at = np.repeat(np.arange(len(rows)), counts)
        values = [one(rows).take(pa.array(at)) for one in self.columns]
        return at, {name_of(index): value for index, value in enumerate(values)}


@dataclass(frozen=True)
class _OnlyRow:
    """The one value of a scalar subquery."""

    column: str
    type: pa.DataType

    def __call__(self, rows: Rows, group: Any, groups: int) -> pa.Array:
        count = np.zeros(groups, dtype=np.int64)
        np.add.at(count, group, rows.weights)
        if (count > 1).any():
            raise SqlError(
                "a scalar subquery has several rows",
                condition="SCALAR_SUBQUERY_TOO_MANY_ROWS",
                remedy="aggregate in the subquery, or add a condition that leaves one row",
            )
        places = np.full(groups, -1, dtype=np.int64)
        places[group] = np.arange(len(rows))
        return rows.arrow(self.column).take(pa.array(places, mask=places < 0)).cast(self.type)


@dataclass
class Lowering:
    """Builds the operators of the views of a pipeline. Equal relations are built once.

    Args:
        tables: the stream of each table, with its columns by their names.
    """

    tables: Mapping[str, ZStream]
    built: dict[str, ZStream] = field(default_factory=dict)
    view: str = ""

    def stream(self, relation: Relation) -> ZStream:
        """Return the stream of a relation."""
        name = digest(relation)
        if name not in self.built:
            self.built[name] = self._lower(relation)
        return self.built[name]

    def _lower(self, relation: Relation) -> ZStream:  # noqa: PLR0912
        match relation:
            case Scan():
                return self._scan(relation)
            case Project():
                child = self.stream(relation.child)
                return _projected(child, relation.expressions, relation.child.columns)
            case Filter():
                child = self.stream(relation.child)
                return child.filter(_evaluated(relation.condition, relation.child.columns))
            case Join():
                return self._join(relation)
            case Group():
                return self._group(relation)
            case Distinct():
                return self.stream(relation.child).distinct(self._name("distinct", relation))
            case Union():
                return self._union(relation.children, relation.columns)
            case Expand():
                child = self.stream(relation.child)
                parts = [
                    _typed(_projected(child, row, relation.child.columns), relation.columns)
                    for row in relation.projections
                ]
                return parts[0].union(*parts[1:])
            case Replicate():
                return self._replicated(relation)
            case SingleRow():
                return self._single_row(relation)
            case Top():
                return self._top(relation)
            case Window():
                return self._window(relation)
            case Values():
                raise PipelineError(
                    f"view {self.view!r} has rows that stand in the query, which cannot be "
                    "maintained yet",
                    remedy="put them in a table",
                )

    def _name(self, what: str, relation: Relation) -> str:
        return f"{self.view}_{what}_{digest(relation)[:8]}"

    # -- row by row ---------------------------------------------------------------------------

    def _scan(self, scan: Scan) -> ZStream:
        table = self.tables[scan.table]
        names = [table.schema.names[at] for at in scan.positions]
        return chosen(table, {name_of(at): name for at, name in enumerate(names)})

    def _union(self, children: Sequence[Relation], columns: Sequence[Column]) -> ZStream:
        parts = [_typed(self.stream(one), columns) for one in children]
        return parts[0].union(*parts[1:])

    def _replicated(self, relation: Replicate) -> ZStream:
        of = relation.child.columns
        every = tuple(_evaluated(one, of) for one in relation.expressions)
        schema = pa.schema([_field(at, one) for at, one in enumerate(relation.columns)])
        return self.stream(relation.child).flat_map(
            _Times(_evaluated(relation.times, of), every), schema
        )

    # -- joins --------------------------------------------------------------------------------

    def _join(self, join: Join) -> ZStream:
        hashed = [one for one in join.keys if one.nulls != "match"]
        width = len(join.left.columns)
        left, ons = self._keyed(join.left, [one.left for one in hashed])
        right, others = self._keyed(join.right, [one.right for one in hashed])
        names = {one: f"r_{one}" for one in right.schema.names}
        safe = [at for at, one in enumerate(hashed) if one.nulls == "equal"]
        joined = left.join(
            self._name(f"{join.kind}_join", join),
            right,
            on=list(zip(ons, others, strict=True)),
            how=_KINDS[join.kind],  # type: ignore[arg-type]
            null_safe=safe,
            condition=_condition(join),
            right_names=names,
            mark="exists",
        )
        of_left = {name_of(at): name_of(at) for at in range(width)}
        if join.kind in {"semi", "anti"}:
            return chosen(joined, of_left)
        if join.kind == "existence":
            return chosen(joined, {**of_left, name_of(width): "exists"})
        of_right = {
            name_of(width + at): names[name_of(at)] for at in range(len(join.right.columns))
        }
        return chosen(joined, {**of_left, **of_right})

    def _keyed(
        self, relation: Relation, expressions: Sequence[Expression]
    ) -> tuple[ZStream, list[str]]:
        """Return a relation with columns for some expressions, and the names of these."""
        stream = self.stream(relation)
        width = len(relation.columns)
        extra: list[Expression] = []
        names = []
        for one in expressions:
            if isinstance(one, Ref):
                names.append(name_of(one.index))
                continue
            if one not in extra:
                extra.append(one)
            names.append(name_of(width + extra.index(one)))
        if not extra:
            return stream, names
        return _projected(stream, [*_refs(relation.columns), *extra], relation.columns), names

    def _single_row(self, relation: SingleRow) -> ZStream:
        if _has_one_row(relation.child):
            return self.stream(relation.child)
        child = self.stream(relation.child)
        aggregates: dict[str, Maintained] = {
            name_of(at): OfRows(
                type=one.type.arrow,
                function=_OnlyRow(name_of(at), one.type.arrow),
                columns=(name_of(at),),
            )
            for at, one in enumerate(relation.columns)
        }
        return child.group(self._name("only_row", relation), (), **aggregates)

    # -- groups -------------------------------------------------------------------------------

    def _group(self, group: Group) -> ZStream:
        arguments = [_argument(one) for one in group.aggregates]
        if not group.keys:
            # count(*) counts this, since further rows keep the group alive
            arguments = [Literal(True, BOOLEAN) if one is None else one for one in arguments]
        present = [one for one in arguments if one is not None]
        expressions = tuple(dict.fromkeys((*group.keys, *present)))
        child = self._grouped(group, expressions)
        keys = [name_of(expressions.index(one)) for one in group.keys]
        if len(set(keys)) < len(keys):
            raise PipelineError(f"view {self.view!r} groups by one expression twice")
        results = {
            f"x{at}": _maintained(
                one, None if argument is None else name_of(expressions.index(argument))
            )
            for at, (one, argument) in enumerate(zip(group.aggregates, arguments, strict=True))
        }
        grouped = child.group(self._name("group", group), keys, **results)
        columns = [*keys, *results]
        return chosen(grouped, {name_of(at): name for at, name in enumerate(columns)})

    def _grouped(self, group: Group, expressions: tuple[Expression, ...]) -> ZStream:
        """Return the rows that a group looks at.

        The group of all rows has a result even if no row is in it. So the rows of all tables below
        are added, with NULL in every column: they count for nothing, but they are there.
        """
        of = group.child.columns
        child = self.stream(group.child)
        if group.keys:
            return _projected(child, expressions, of)
        rows = _projected(child, [_nullable(one) for one in expressions], of)
        blank = [Literal(None, one.type) for one in expressions]
        tables = sorted({one.table for one in walk(group.child) if isinstance(one, Scan)})
        return rows.union(*(_projected(self.tables[name], blank, ()) for name in tables))

    # -- order --------------------------------------------------------------------------------

    def _top(self, top: Top) -> ZStream:
        stream, order = self._ordered(top.child, top.order)
        found = stream.top(
            self._name("top", top), (), order or [name_of(0)], top.limit, offset=top.offset
        )
        return found.select(*(name_of(at) for at in range(len(top.columns))))

    def _ordered(
        self, relation: Relation, keys: Sequence[SortKey], more: Sequence[Expression] = ()
    ) -> tuple[ZStream, list[Order]]:
        stream, names = self._keyed(relation, [*(one.by for one in keys), *more])
        order = [
            Order(name, not one.ascending, one.nulls_first)
            for name, one in zip(names, keys, strict=False)
        ]
        return stream, order

    def _window(self, window: Window) -> ZStream:
        function = window.functions[0]
        if len(window.functions) > 1 or function.function not in _RANKINGS:
            raise PipelineError(
                f"view {self.view!r} has the window function {function.function}, which cannot be "
                "maintained yet",
                remedy="use row_number(), rank() or dense_rank(), one for each window",
            )
        stream, order = self._ordered(window.child, window.order, window.partition)
        _, names = self._keyed(window.child, [*(one.by for one in window.order), *window.partition])
        by = list(dict.fromkeys(names[len(window.order) :]))
        ranking: Any = function.function
        ranked = stream.top(
            self._name("rank", window), by, order, None, ranking=ranking, number="number"
        )
        width = len(window.child.columns)
        columns = {name_of(at): name_of(at) for at in range(width)}
        refs = [*_refs(window.child.columns), Ref(width, SqlType("bigint"), False)]
        renamed = chosen(ranked, {**columns, name_of(width): "number"})
        number = Call("cast", (refs[-1],), INT, False, (("mode", "ansi"),))
        types = (*window.child.columns, Column("number", SqlType("bigint"), False))
        return _projected(renamed, [*refs[:-1], number], types)


def _refs(columns: Sequence[Column]) -> list[Ref]:
    return [Ref(at, one.type, one.nullable) for at, one in enumerate(columns)]


def _evaluated(expression: Expression, columns: Sequence[Column]) -> Evaluated:
    return Evaluated(expression, tuple(one.type for one in columns))


def _nullable(expression: Expression) -> Expression:
    if expression.nullable:
        return expression
    return Call("same", (expression,), expression.type, True)


def _field(at: int, of: Column | Expression) -> pa.Field:
    return pa.field(name_of(at), of.type.arrow, nullable=of.nullable)


def chosen(
    stream: ZStream, sources: Mapping[str, Any], types: Mapping[str, Any] | None = None
) -> ZStream:
    """Return a stream with other columns.

    Args:
        stream: the stream.
        sources: name → a column of the stream, or a function of its rows.
        types: name → type of each column that a function returns.
    """
    columns: dict[str, Any] = dict(sources)
    return stream.select(types=types, **columns)


def _projected(
    stream: ZStream, expressions: Sequence[Expression], columns: Sequence[Column]
) -> ZStream:
    """Return a stream with other columns."""
    sources: dict[str, str | Callable[[Rows], Any]] = {}
    types = {}
    for at, one in enumerate(expressions):
        if isinstance(one, Ref):
            sources[name_of(at)] = name_of(one.index)
        else:
            sources[name_of(at)] = _evaluated(one, columns)
            types[name_of(at)] = _field(at, one)
    return chosen(stream, sources, types)


def _typed(stream: ZStream, columns: Sequence[Column]) -> ZStream:
    """Return a stream whose columns may all be NULL where those of a union may be."""
    nullable = [
        one.nullable and not field.nullable
        for one, field in zip(columns, stream.schema, strict=True)
    ]
    if not any(nullable):
        return stream
    expressions: list[Expression] = []
    for ref, is_new in zip(_refs(columns), nullable, strict=True):
        expressions.append(Call("same", (ref,), ref.type, True) if is_new else ref)
    return _projected(stream, expressions, columns)


@dataclass(frozen=True)
class _Condition:
    """The further condition of a join, as a function of pairs of rows."""

    evaluated: Evaluated
    width: int

    def __call__(self, rows: Rows) -> pa.Array:
        names = {
            name_of(at): name_of(at) if at < self.width else f"r_{name_of(at - self.width)}"
            for at in range(len(self.evaluated.columns))
        }
        return self.evaluated(rows.select(names))


def _condition(join: Join) -> _Condition | None:
    """Return what else must hold for a pair; with it, keys that match NULL with everything."""
    width = len(join.left.columns)
    parts = [_matching(one, width) for one in join.keys if one.nulls == "match"]
    if join.condition is not None:
        parts.append(join.condition)
    whole = conjunction(tuple(parts))
    if whole is None:
        return None
    both = (*join.left.columns, *join.right.columns)
    return _Condition(_evaluated(whole, both), width)


def _matching(pair: KeyPair, width: int) -> Expression:
    from headrace.sql.ir.expressions import move

    right = move(pair.right, lambda at: at + width)
    same = Call("equal", (pair.left, right), BOOLEAN)
    return Call("or", (same, Call("is_null", (same,), BOOLEAN, False)), BOOLEAN, False)


def _has_one_row(relation: Relation) -> bool:
    """Return whether a relation is an aggregate of all rows, with projections above it."""
    while isinstance(relation, Project):
        relation = relation.child
    return isinstance(relation, Group) and not relation.keys


# -- aggregates -------------------------------------------------------------------------------


def _argument(aggregate: Aggregate) -> Expression | None:
    """Return what an aggregate looks at, which is NULL for rows that do not count."""
    if len(aggregate.args) > 1:
        raise PipelineError(
            f"a view cannot maintain {aggregate.function} of several columns yet",
            remedy="aggregate one column at a time",
        )
    value: Expression | None = aggregate.args[0] if aggregate.args else None
    if aggregate.condition is None:
        return value
    counted = Literal(True, BOOLEAN) if value is None else value
    args = (aggregate.condition, counted, Literal(None, counted.type))
    return Call("case", args, counted.type, True)


def _maintained(aggregate: Aggregate, column: str | None) -> Maintained:
    kind = aggregate.type.arrow
    match aggregate.function:
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
        case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop":
            return Variance(
                column,
                population=aggregate.function.endswith("pop"),
                root=aggregate.function.startswith("stddev"),
            )
        case _:
            raise PipelineError(
                f"a view cannot maintain the aggregate {aggregate.function} yet",
                remedy="use count, sum, avg, min, max, stddev or variance",
            )
