"""From the IR to operators on Z-sets, which keep a view up to date.

Every relation becomes a stream whose columns are called ``c0``, ``c1``, … by position. Projections,
filters and unions run inside the operators that read them. Joins, groups and the like become
computations, named after the view and what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.eventtime.watermark import ascending
from headrace.sql.aggregating import arguments_of, maintained
from headrace.sql.clock_functions import HoldsAt, MomentsOf
from headrace.sql.constants import ONE_ROW, OneRow
from headrace.sql.expressions import compile_expression
from headrace.sql.ir.canonical import digest
from headrace.sql.ir.expressions import Call, Expression, Literal, Ref, conjunction, move
from headrace.sql.ir.relations import (
    Column,
    Distinct,
    Expand,
    Explode,
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
from headrace.sql.ir.types import BOOLEAN, INT, SqlType
from headrace.sql.row_functions import (
    PATTERN,
    AboveZero,
    Always,
    Condition,
    Copies,
    Evaluated,
    Exploded,
    Literals,
    Matchable,
    NullMark,
    OnlyRow,
    PassesNotIn,
    Times,
    choices_of,
    matched_name,
    name_of,
)
from headrace.sql.rules.clock import clock_parts, has_clock, moments
from headrace.sql.rules.properties import has_one_row
from headrace.sql.rules.waterlines import Waterlines
from headrace.sql.windowing import (
    RANKINGS,
    first_ranks,
    follows,
    functions_of,
    places_of,
    read_by,
)
from headrace.zsets import Count, OfRows, Order, Rows, ZStream, table
from headrace.zsets.linear import Linear
from headrace.zsets.linear import Project as ProjectRows
from headrace.zsets.window import Stage

#: The column of rows that have none.
NOTHING = "nothing"
#: The most values of a side of NOT IN that may be NULL before pairs are compared: rows are copied
#: twice as often with each.
_MOST_NULLABLE = 4
_KINDS = {
    "inner": "inner",
    "left": "left",
    "full": "full",
    "semi": "semi",
    "anti": "anti",
    "existence": "mark",
}


@dataclass
class Lowering:
    """Builds the operators of the views of a pipeline. Equal relations are built once.

    Args:
        tables: the stream of each table, with its columns by their names.
        waterlines: what is known of the tables' watermarks.
        names: what computations are called that were named before, by what they do.
    """

    tables: Mapping[str, ZStream]
    waterlines: Waterlines = field(default_factory=Waterlines)
    one_row: ZStream | None = None
    view: str = ""
    names: dict[str, str] = field(default_factory=dict)
    _built: dict[str, ZStream] = field(default_factory=dict)
    _names_in: dict[str, dict[str, str]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def stream(self, relation: Relation) -> ZStream:
        """Return the stream of a relation."""
        return self._once(digest(relation), lambda: self._lower(relation))

    def named(self, relation: Relation) -> dict[str, str]:
        """Return the names of the computations of a relation that is built, by what they do."""
        return dict(self._names_in[digest(relation)])

    def _once(self, key: str, build: Callable[[], ZStream]) -> ZStream:
        """Return what is built under a key, and note the names of its computations."""
        if key not in self._built:
            around, self._names = self._names, {}
            try:
                self._built[key] = build()
                self._names_in[key] = self._names
            finally:
                self._names = around
        self._names |= self._names_in[key]
        return self._built[key]

    def _lower(self, relation: Relation) -> ZStream:  # noqa: PLR0912
        match relation:
            case Scan():
                return self._scan(relation)
            case Project():
                child = self.stream(relation.child)
                return _projected(child, relation.expressions, relation.child.columns)
            case Filter():
                return self._filter(relation)
            case Join():
                return self._join(relation)
            case Group():
                return self._group(relation)
            case Distinct():
                until = self.waterlines.until(relation.child, _refs(relation.columns))
                return self.stream(relation.child).distinct(
                    self._name("distinct", relation),
                    until={name_of(at): _after(us) for at, us in until.items()},
                )
            case Union():
                return self._union(relation.children, relation.columns)
            case Expand():
                child = self.stream(relation.child)
                parts = [
                    _typed(_projected(child, row, relation.child.columns), relation.columns)
                    for row in relation.projections
                ]
                return parts[0].union(*parts[1:])
            case Explode():
                return self._exploded(relation)
            case Replicate():
                return self._replicated(relation)
            case SingleRow():
                return self._single_row(relation)
            case Top():
                return self._top(relation)
            case Window():
                return self._window(relation)
            case Values():
                return self._values(relation)

    def _name(self, what: str, relation: Relation) -> str:
        """Return the name of a computation: what it was called before, or after the view."""
        key = f"{what}_{digest(relation)[:8]}"
        name = self.names.setdefault(key, f"{self.view}_{key}")
        self._names[key] = name
        return name

    # -- row by row ---------------------------------------------------------------------------

    def _scan(self, scan: Scan) -> ZStream:
        rows = self.tables[scan.table]
        names = [rows.schema.names[at] for at in scan.positions]
        return chosen(rows, {name_of(at): name for at, name in enumerate(names)})

    def _filter(self, relation: Filter) -> ZStream:
        """Return some rows. Of rows with a rank, those that can pass are all that is ranked."""
        if has_clock(relation.condition):
            return self._by_clock(relation)
        first = first_ranks(relation)
        if first is None:
            child = self.stream(relation.child)
        else:
            ranked, most = relation.child, first
            key = f"{digest(ranked)} first {most}"
            child = self._once(key, lambda: self._ranked_first(ranked, most))
        return child.filter(_evaluated(relation.condition, relation.child.columns))

    def _by_clock(self, relation: Filter) -> ZStream:
        """Return the rows for which a condition on the current time holds, as it goes on."""
        before, by_clock, after = clock_parts(relation.condition)
        child, columns = relation.child, relation.columns
        tested = conjunction(before)
        rows = self.stream(child if tested is None else Filter(child, tested))
        condition = conjunction(by_clock)
        assert condition is not None
        types = tuple(one.type for one in columns)
        holds = HoldsAt(condition, types)
        holds.compiled()  # what is refused is refused before anything runs
        found = rows.by_clock(
            self._name("by_clock", relation), holds, MomentsOf(moments(condition), types)
        )
        last = conjunction(after)
        return found if last is None else found.filter(_evaluated(last, columns))

    def _ranked_first(self, relation: Relation, first: int) -> ZStream:
        if isinstance(relation, Project):
            child = self._ranked_first(relation.child, first)
            return _projected(child, relation.expressions, relation.child.columns)
        assert isinstance(relation, Window)
        return self._ranks(relation, first)

    def _values(self, relation: Values) -> ZStream:
        schema = pa.schema([_field(at, one) for at, one in enumerate(relation.columns)])
        if not relation.columns:
            return self._one_row().flat_map(Copies(len(relation.rows)), self._one_row().schema)
        return self._one_row().flat_map(Literals(relation.rows, relation.columns), schema)

    def _one_row(self) -> ZStream:
        """Return the row that is there from the first step on, whatever is in the tables."""
        if self.one_row is None:
            if not self.tables:
                raise PipelineError(
                    f"view {self.view!r} has no table",
                    remedy="declare a table first: a view belongs to the pipeline of its tables",
                )
            pipeline = next(iter(self.tables.values())).pipeline
            self.one_row = table(ONE_ROW, pipeline.inject(ONE_ROW, OneRow(), watermark=ascending()))
        return self.one_row

    def _blank(self, types: Sequence[SqlType]) -> ZStream:
        """Return one row of NULLs."""
        return _projected(self._one_row(), [Literal(None, one) for one in types], ())

    def _union(self, children: Sequence[Relation], columns: Sequence[Column]) -> ZStream:
        parts = [_typed(self.stream(one), columns) for one in children]
        return parts[0].union(*parts[1:])

    def _replicated(self, relation: Replicate) -> ZStream:
        of = relation.child.columns
        every = tuple(_evaluated(one, of) for one in relation.expressions)
        schema = pa.schema([_field(at, one) for at, one in enumerate(relation.columns)])
        return self.stream(relation.child).flat_map(
            Times(_evaluated(relation.times, of), every), schema
        )

    def _exploded(self, relation: Explode) -> ZStream:
        of = relation.child.columns
        schema = pa.schema([_field(at, one) for at, one in enumerate(relation.columns)])
        exploded = Exploded(
            _evaluated(relation.array, of), len(of), relation.position, relation.outer
        )
        return self.stream(relation.child).flat_map(exploded, schema)

    # -- joins --------------------------------------------------------------------------------

    def _join(self, join: Join) -> ZStream:
        if _is_not_in(join):
            return self._not_in(join)
        if self._is_null_aware(join):
            return self._null_aware(join)
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
            until=self._until_of(join, hashed, ons, others),
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

    def _until_of(
        self, join: Join, hashed: Sequence[KeyPair], ons: Sequence[str], others: Sequence[str]
    ) -> tuple[dict[str, timedelta], dict[str, timedelta]]:
        """Return when the rows of a join's sides are let go, by the names of their columns."""
        until = self.waterlines.join_until(join)
        left = {name_of(at): _after(us) for at, us in until.left.items()}
        right = {name_of(at): _after(us) for at, us in until.right.items()}
        for pair, one, other in zip(hashed, ons, others, strict=True):
            found = until.keys.get(join.keys.index(pair))
            if found is not None:
                left[one], right[other] = _after(found[0]), _after(found[1])
        return left, right

    def _not_in(self, join: Join) -> ZStream:
        """Return the left rows whose value is not in a list that may have NULLs.

        Rows without an equal one are found by a join on the value. They pass if the list is empty, or
        if neither the value nor one of the list is NULL. For that, each list has two booleans, which
        seldom change.
        """
        *hashed, value = sorted(join.keys, key=lambda one: one.nulls == "match")
        left, ons = self._keyed(join.left, [*(one.left for one in hashed), value.left])
        right, others = self._keyed(join.right, [*(one.right for one in hashed), value.right])
        safe = [at for at, one in enumerate(hashed) if one.nulls == "equal"]
        pairs = list(zip(ons, others, strict=True))
        lone = left.join(self._name("without_equal", join), right, pairs, "anti", null_safe=safe)
        by = list(dict.fromkeys(others[:-1]))
        mark = {"null": pa.field("null", pa.bool_())}
        marked = right.select(*by, types=mark, null=NullMark(others[-1]))
        lists = marked.group(self._name("lists", join), by, rows=Count(), nulls=Count("null"))
        keys: dict[str, Any] = {f"k{at}": one for at, one in enumerate(by)}
        flags = chosen(
            lists,
            {**keys, "some": AboveZero("rows"), "has_null": AboveZero("nulls")},
            {"some": bool, "has_null": bool},
        )
        on = [(one, f"k{by.index(other)}") for one, other in pairs[:-1]]
        met = lone.join(self._name("not_in", join), flags, on, "left", null_safe=safe)
        passed = met.filter(PassesNotIn(ons[-1], "some", "has_null"))
        return chosen(passed, {name_of(at): name_of(at) for at in range(len(join.left.columns))})

    def _is_null_aware(self, join: Join) -> bool:
        """Return whether a join is a NOT IN of several values, or below an OR.

        If what is kept for it is bounded by times, pairs are compared, which needs no copies.
        """
        matching = [one for one in join.keys if one.nulls == "match"]
        may_be_null = [
            sum(_may_be_null(matching, side))
            for side in (lambda one: one.left, lambda one: one.right)
        ]
        until = self.waterlines.join_until(join)
        return (
            bool(matching)
            and join.kind in {"anti", "existence"}
            and max(may_be_null) <= _MOST_NULLABLE
            and not (until.left or until.right or until.keys)
        )

    def _null_aware(self, join: Join) -> ZStream:
        """Return the left rows without a match, or all with whether there is one.

        Matches are found by values in whose place NULL is written where it matches: see
        :class:`headrace.sql.row_functions.Matchable`.
        """
        hashed = [one for one in join.keys if one.nulls != "match"]
        matching = [one for one in join.keys if one.nulls == "match"]
        pairs = [*hashed, *matching]
        left, ons = self._keyed(join.left, [one.left for one in pairs])
        right, others = self._keyed(join.right, [one.right for one in pairs])
        known = len(hashed)
        ones = _matchable(
            left, ons[known:], _may_be_null(matching, lambda one: one.right), is_left=True
        )
        theirs = _matchable(
            right, others[known:], _may_be_null(matching, lambda one: one.left), is_left=False
        )
        added = [PATTERN, *(matched_name(at) for at in range(len(matching)))]
        on = [*zip(ons[:known], others[:known], strict=True), *((one, one) for one in added)]
        safe = [at for at, one in enumerate(pairs) if at >= known or one.nulls == "equal"]
        matched = ones.join(
            self._name("matches", join),
            theirs,
            on=on,
            how="semi",
            null_safe=[*safe, len(pairs)],
            condition=_further(join),
            right_names={one: f"r_{one}" for one in theirs.schema.names},
        )
        of_left = {name_of(at): name_of(at) for at in range(len(join.left.columns))}
        rows, found = chosen(left, of_left), chosen(matched, of_left)
        result = rows.join(
            self._name(f"{join.kind}_join", join),
            found,
            on=[(one, one) for one in of_left],
            how=_KINDS[join.kind],  # type: ignore[arg-type]
            null_safe=True,
            right_names={one: f"r_{one}" for one in of_left},
            mark="exists",
        )
        if join.kind == "anti":
            return result
        return chosen(result, {**of_left, name_of(len(of_left)): "exists"})

    def _keyed(
        self, relation: Relation, expressions: Sequence[Expression]
    ) -> tuple[ZStream, list[str]]:
        """Return a relation with columns for some expressions, and the names of these."""
        stream = self.stream(relation)
        every, names = _with_columns(relation.columns, expressions)
        if len(every) == len(relation.columns):
            return stream, names
        return _projected(stream, every, relation.columns), names

    def _single_row(self, relation: SingleRow) -> ZStream:
        if has_one_row(relation.child):
            return self.stream(relation.child)
        width = len(relation.columns)
        real = Call("same", (Literal(True, BOOLEAN),), BOOLEAN, True)
        kinds = [*(one.type for one in relation.columns), BOOLEAN]
        of = relation.child.columns
        expressions = [*(_nullable(one) for one in _refs(of)), real]
        child = _projected(self.stream(relation.child), expressions, of)
        aggregates: dict[str, Any] = {
            f"x{at}": OfRows(
                type=one.type.arrow,
                function=OnlyRow(name_of(at), name_of(width), one.type.arrow),
                columns=(name_of(at), name_of(width)),
            )
            for at, one in enumerate(relation.columns)
        }
        both = child.union(self._blank(kinds))
        found = both.group(self._name("only_row", relation), (), **aggregates)
        return chosen(found, {name_of(at): f"x{at}" for at in range(width)})

    # -- groups -------------------------------------------------------------------------------

    def _group(self, group: Group) -> ZStream:
        arguments = [arguments_of(one) for one in group.aggregates]
        if not group.keys:
            # count(*) counts this, since a further row keeps the group alive
            arguments = [of or (Literal(True, BOOLEAN),) for of in arguments]
        present = [one for of in arguments for one in of]
        expressions = tuple(dict.fromkeys((*group.keys, *present)))
        child = self._grouped(group, expressions)
        keys = [name_of(expressions.index(one)) for one in group.keys]
        if len(set(keys)) < len(keys):
            raise PipelineError(f"view {self.view!r} groups by one expression twice")
        results: dict[str, Any] = {
            f"x{at}": maintained(one, [name_of(expressions.index(part)) for part in of])
            for at, (one, of) in enumerate(zip(group.aggregates, arguments, strict=True))
        }
        until = self.waterlines.until(group.child, group.keys)
        grouped = child.group(
            self._name("group", group),
            keys,
            until={keys[at]: _after(us) for at, us in until.items()},
            **results,
        )
        columns = [*keys, *results]
        return chosen(grouped, {name_of(at): name for at, name in enumerate(columns)})

    def _grouped(self, group: Group, expressions: tuple[Expression, ...]) -> ZStream:
        """Return the rows that a group looks at.

        The group of all rows has a result even if no row is in it. So one row is added, with NULL in
        every column: it counts for nothing, but it is there.
        """
        of = group.child.columns
        child = self.stream(group.child)
        if group.keys:
            return _projected(child, expressions, of)
        rows = _projected(child, [_nullable(one) for one in expressions], of)
        return rows.union(self._blank([one.type for one in expressions]))

    # -- order --------------------------------------------------------------------------------

    def _top(self, top: Top) -> ZStream:
        stream, names = self._keyed(top.child, [one.by for one in top.order])
        order = [
            Order(name, not one.ascending, one.nulls_first)
            for name, one in zip(names, top.order, strict=True)
        ]
        found = stream.top(
            self._name("top", top),
            (),
            order or stream.schema.names[:1],
            top.limit,
            offset=top.offset,
        )
        return chosen(found, {name_of(at): name_of(at) for at in range(len(top.columns))})

    def _window(self, window: Window) -> ZStream:
        if len(window.functions) == 1 and window.functions[0].function in RANKINGS:
            return self._ranks(window, None)
        first, further = self._stages(window)
        stream, order, names = self._partitioned(first, read_by(first))
        by = list(dict.fromkeys(names[: len(first.partition)]))
        functions = functions_of(first, names[len(first.partition) :])
        until = self._until_of_partitions(first, names)
        stages = []
        before = first
        for one in further:
            stages.append(_stage(before, one))
            before = one
        found = stream.over(
            self._name("window", window), by, order, until=until, further=stages, **functions
        )
        return chosen(found, places_of(window))

    def _stages(self, window: Window) -> tuple[Window, list[Window]]:
        """Return the window to begin with, and those that follow in the same order of the same rows.

        A part that another view has already is not computed again.
        """
        first = window
        further: list[Window] = []
        while True:
            child: Relation = first.child
            by: tuple[Expression, ...] = tuple(_refs(child.columns))
            if isinstance(child, Project) and digest(child) not in self._built:
                by, child = child.expressions, child.child
            if not isinstance(child, Window) or digest(child) in self._built:
                return first, further
            if not follows(first, child, by):
                return first, further
            further.insert(0, first)
            first = child

    def _ranks(self, window: Window, first: int | None) -> ZStream:
        """Return rows with their rank; only the first of each partition, if these are enough."""
        stream, order, names = self._partitioned(window, ())
        ranking: Any = window.functions[0].function
        name = self._name("rank", window) + ("" if first is None else f"_{first}")
        by = list(dict.fromkeys(names))
        until = self._until_of_partitions(window, names)
        ranked = stream.top(name, by, order, first, ranking=ranking, number="number", until=until)
        width = len(window.child.columns)
        columns = {name_of(at): name_of(at) for at in range(width)}
        refs = [*_refs(window.child.columns), Ref(width, SqlType("bigint"), False)]
        renamed = chosen(ranked, {**columns, name_of(width): "number"})
        number = Call("cast", (refs[-1],), INT, False, (("mode", "ansi"),))
        types = (*window.child.columns, Column("number", SqlType("bigint"), False))
        return _projected(renamed, [*refs[:-1], number], types)

    def _until_of_partitions(self, window: Window, names: Sequence[str]) -> dict[str, timedelta]:
        until = self.waterlines.until(window.child, window.partition)
        return {names[at]: _after(us) for at, us in until.items()}

    def _partitioned(
        self, window: Window, more: Sequence[Expression]
    ) -> tuple[ZStream, list[Order], list[str]]:
        """Return the rows of a window, their order, and the columns of its partition and of more."""
        wanted = [*(one.by for one in window.order), *window.partition, *more]
        stream, names = self._keyed(window.child, wanted)
        order = [
            Order(name, not one.ascending, one.nulls_first)
            for name, one in zip(names, window.order, strict=False)
        ]
        return stream, order, names[len(window.order) :]


def _stage(before: Window, window: Window) -> Stage:
    """Return a window as a stage behind another one, in the same groups and order."""
    steps = [ProjectRows(places_of(before), {})]
    if isinstance(window.child, Project):
        steps.append(ProjectRows(*_sources(window.child.expressions, before.columns)))
    wanted = [*(one.by for one in window.order), *read_by(window)]
    expressions, names = _with_columns(window.child.columns, wanted)
    if len(expressions) > len(window.child.columns):
        steps.append(ProjectRows(*_sources(expressions, window.child.columns)))
    count = len(window.order)
    order = [
        Order(name, not one.ascending, one.nulls_first)
        for name, one in zip(names, window.order, strict=False)
    ]
    return Stage(Linear(tuple(steps)), order, functions_of(window, names[count:]))


def _after(micros: int) -> timedelta:
    return timedelta(microseconds=micros)


def _refs(columns: Sequence[Column]) -> list[Ref]:
    return [Ref(at, one.type, one.nullable) for at, one in enumerate(columns)]


def _evaluated(expression: Expression, columns: Sequence[Column]) -> Evaluated:
    """Return an expression as a function of rows.

    Raises:
        PipelineError: if it has a function that is not there for its types or constants.
    """
    compile_expression(expression)  # what is refused is refused before anything runs
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
    if not columns:  # rows that are only counted have one column, since they need one
        return stream.select(types={NOTHING: bool}, **{NOTHING: Always()})
    return stream.select(types=types, **columns)


def _with_columns(
    columns: Sequence[Column], expressions: Sequence[Expression]
) -> tuple[list[Expression], list[str]]:
    """Return columns and what else some expressions need, and the names of the expressions."""
    extra: list[Expression] = []
    names = []
    for one in expressions:
        if isinstance(one, Ref):
            names.append(name_of(one.index))
            continue
        if one not in extra:
            extra.append(one)
        names.append(name_of(len(columns) + extra.index(one)))
    return [*_refs(columns), *extra], names


def _projected(
    stream: ZStream, expressions: Sequence[Expression], columns: Sequence[Column]
) -> ZStream:
    """Return a stream with other columns."""
    sources, types = _sources(expressions, columns)
    return chosen(stream, sources, types)


def _sources(
    expressions: Sequence[Expression], columns: Sequence[Column]
) -> tuple[dict[str, str | Callable[[Rows], Any]], dict[str, pa.Field]]:
    """Return where new columns come from, and the types of those that are computed."""
    sources: dict[str, str | Callable[[Rows], Any]] = {}
    types: dict[str, pa.Field] = {}
    for at, one in enumerate(expressions):
        if isinstance(one, Ref):
            sources[name_of(at)] = name_of(one.index)
        else:
            sources[name_of(at)] = _evaluated(one, columns)
            types[name_of(at)] = _field(at, one)
    return sources, types


def _typed(stream: ZStream, columns: Sequence[Column]) -> ZStream:
    """Return a stream whose columns may all be NULL where those of a union may be."""
    if not columns:  # (what rows without columns have instead may differ)
        return chosen(stream, {})
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


def _is_not_in(join: Join) -> bool:
    """Return whether a join is a NOT IN of one value, with nothing further to hold."""
    matching = [one for one in join.keys if one.nulls == "match"]
    return join.kind == "anti" and join.condition is None and len(matching) == 1


def _may_be_null(pairs: Sequence[KeyPair], side: Callable[[KeyPair], Expression]) -> list[bool]:
    return [side(one).nullable for one in pairs]


def _matchable(
    stream: ZStream, columns: Sequence[str], other_may_be_null: Sequence[bool], *, is_left: bool
) -> ZStream:
    """Return rows with what stands for some values where NULL matches everything."""
    fields = [*stream.schema, pa.field(PATTERN, pa.int64(), nullable=False)]
    fields += [
        pa.field(matched_name(at), stream.schema.field(name).type)
        for at, name in enumerate(columns)
    ]
    function = Matchable(tuple(columns), choices_of(other_may_be_null), is_left)
    return stream.flat_map(function, pa.schema(fields))


def _further(join: Join) -> Condition | None:
    """Return what must hold for a pair besides its equalities."""
    if join.condition is None:
        return None
    both = (*join.left.columns, *join.right.columns)
    return Condition(_evaluated(join.condition, both), len(join.left.columns))


def _condition(join: Join) -> Condition | None:
    """Return what else must hold for a pair; with it, keys that match NULL with everything."""
    width = len(join.left.columns)
    parts = [_matching(one, width) for one in join.keys if one.nulls == "match"]
    if join.condition is not None:
        parts.append(join.condition)
    whole = conjunction(tuple(parts))
    if whole is None:
        return None
    both = (*join.left.columns, *join.right.columns)
    return Condition(_evaluated(whole, both), width)


def _matching(pair: KeyPair, width: int) -> Expression:
    right = move(pair.right, lambda at: at + width)
    same = Call("equal", (pair.left, right), BOOLEAN)
    return Call("or", (same, Call("is_null", (same,), BOOLEAN, False)), BOOLEAN, False)
