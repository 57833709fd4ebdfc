"""Plans of Catalyst as relations of the IR."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import PipelineError
from headrace.sql.ir.expressions import (
    Expression,
    Literal,
    Ref,
    SortKey,
    conjunction,
    conjuncts,
    move,
    references,
)
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
from headrace.sql.ir.types import BOOLEAN
from headrace.sql.rules.clock import check_clock, has_clock
from headrace.sql.rules.different import at_once
from headrace.sql.translation.aggregates import Aggregates
from headrace.sql.translation.clock import clock_of
from headrace.sql.translation.expressions import (
    Scope,
    Struct,
    Value,
    check_are_there,
    flat,
    flat_names,
    literal,
    rebuilt,
)
from headrace.sql.translation.tree import Node, Planned
from headrace.sql.translation.windows import window_function

_KINDS = {
    "INNER": "inner",
    "CROSS": "inner",
    "LEFT OUTER": "left",
    "RIGHT OUTER": "right",
    "FULL OUTER": "full",
    "LEFT SEMI": "semi",
    "LEFT ANTI": "anti",
    "EXISTENCE": "existence",
}
#: Plans that keep their input's rows and columns: hints on how a batch is to be cut.
_TRANSPARENT = {"RepartitionByExpression", "Repartition", "RebalancePartitions", "LocalLimit"}


class Placed(NamedTuple):
    """A relation, and where Catalyst's attributes are in its rows."""

    relation: Relation
    attributes: dict[str, Value]


@dataclass(frozen=True)
class _Beside:
    """Rows of a relation, and behind their columns those of the rows of some subqueries."""

    child: Placed
    rows: Sequence[Placed]

    @property
    def _starts(self) -> list[int]:
        widths = (len(row.relation.columns) for row in self.rows)
        return [*itertools.accumulate(widths, initial=len(self.child.relation.columns))]

    @property
    def attributes(self) -> dict[str, Value]:
        """Where Catalyst's attributes are."""
        found = dict(self.child.attributes)
        for row, start in zip(self.rows, self._starts, strict=False):
            found |= {of: _moved(value, start) for of, value in row.attributes.items()}
        return found

    def rows_in(self, part: Expression) -> set[int]:
        """Return the rows of subqueries to which an expression refers."""
        starts = self._starts
        return {bisect_right(starts, at) - 1 for at in references(part) if at >= starts[0]}

    def with_row(self, parts: Iterable[Expression], at: int) -> tuple[Expression, ...]:
        """Return expressions that refer to one row, with its columns behind those of the child."""
        width, start = self._starts[0], self._starts[at]
        return tuple(
            move(one, lambda of: of if of < width else of - start + width) for one in parts
        )

    def all_joined(self, relation: Relation) -> Relation:
        """Return rows of the child with the rows of all subqueries."""
        for row in self.rows:
            columns = (*relation.columns, *row.relation.columns)
            relation = Join(relation, row.relation, "inner", (), None, columns)
        return relation


@dataclass(frozen=True)
class Translation:
    """One query on its way from Catalyst's plan to the IR.

    Args:
        sql: the query, for errors.
        tables: the declared columns of each table.
    """

    sql: str
    tables: dict[str, tuple[Column, ...]]

    def query(self, planned: Planned) -> tuple[Relation, tuple[SortKey, ...]]:
        """Return the relation of a whole query, and the order of its rows where it is read.

        The order refers to the query's columns. Sort keys that are none of them are left out, and so
        are those that depend on the current time.
        """
        plan = planned.plan
        if plan.name != "Sort":
            placed = self._output(self.placed(plan), planned.output)
            check_clock(placed, self.sql)
            return placed, ()
        placed = self._output(self.placed(plan.children[0]), planned.output)
        check_clock(placed, self.sql)
        found = dict(zip((of for _, of in planned.output), refs(placed.columns), strict=True))
        order = self._sort_keys(plan.fields["order"], Scope(found, self.sql))
        return placed, tuple(one for one in order if not has_clock(one.by))

    def _output(self, placed: Placed, output: Sequence[tuple[str, str]]) -> Relation:
        """Return a relation with just the columns that a plan puts out, in order and named."""
        values = [(name, placed.attributes[of]) for name, of in output]
        expressions = tuple(one for _, value in values for one in flat(value))
        names = tuple(one for name, value in values for one in flat_names(name, value))
        columns = tuple(
            Column(name, one.type, one.nullable)
            for name, one in zip(names, expressions, strict=True)
        )
        relation = placed.relation
        is_same = list(expressions) == refs(relation.columns)
        if is_same and tuple(one.name for one in relation.columns) == names:
            return relation
        return Project(relation, expressions, columns)

    def placed(self, node: Node) -> Placed:
        """Return the relation of a plan."""
        if node.name in _TRANSPARENT or node.name == "Sort":
            return self.placed(node.children[0])
        if node.name in {"GlobalLimit", "Offset"}:
            return self._limited(node, None, 0)
        translate = getattr(self, f"_{node.name.lower()}", None)
        if translate is None:
            raise PipelineError(f"a view cannot have the clause {node.name}", place=self.sql)
        placed: Placed = translate(node)
        return placed

    # -- leaves -------------------------------------------------------------------------------

    def _logicalrdd(self, node: Node) -> Placed:
        # a column is called hr:table:position; a table may have any name
        names = [one.fields["name"].rsplit(":", 1) for one in node.fields["output"]]
        table = names[0][0].partition(":")[2] if names else ""
        positions = tuple(int(at) for _, at in names)
        columns = tuple(self.tables[table][at] for at in positions)
        return _at_ids(Scan(table, positions, columns), node.fields["output"])

    def _localrelation(self, node: Node) -> Placed:
        columns = self._columns(node.fields["output"])
        rows = tuple(
            tuple(literal(v, c.type, self.sql) for v, c in zip(row, columns, strict=True))
            for row in node.fields["rows"]
        )
        return _at_ids(Values(rows, columns), node.fields["output"])

    def _onerowrelation(self, node: Node) -> Placed:
        return Placed(Values(((),), ()), {})

    def _columns(self, attributes: Iterable[Node]) -> tuple[Column, ...]:
        scope = Scope({}, self.sql)
        return tuple(Column(a.fields["name"], scope.type(a), a.nullable) for a in attributes)

    # -- row by row ---------------------------------------------------------------------------

    def _project(self, node: Node) -> Placed:
        (below,) = node.children
        read = node.fields["list"]
        found = self._filter(below, read) if below.name == "Filter" else self.placed(below)
        child = self._with_subqueries(found, read)
        return self._projected(child, read, self._scope(child))

    def _projected(self, child: Placed, named: Sequence[Node], scope: Scope) -> Placed:
        values = [scope.value(one) for one in named]
        names = [one.fields.get("name", "") for one in named]
        columns = tuple(
            Column(name, expression.type, expression.nullable)
            for of, value in zip(names, values, strict=True)
            for name, expression in zip(flat_names(of, value), flat(value), strict=True)
        )
        expressions = tuple(one for value in values for one in flat(value))
        relation: Relation = Project(child.relation, expressions, columns)
        if list(expressions) == refs(child.relation.columns):
            relation = child.relation  # it only gives names
        places = refs(columns)
        return Placed(
            relation,
            {n.fields["id"]: rebuilt(v, places) for n, v in zip(named, values, strict=True)},
        )

    def _filter(self, node: Node, read: Sequence[Node] | None = None) -> Placed:
        """Return the rows for which a condition is true.

        What is compared with the row of a subquery becomes a join: so a change of that row touches
        only the rows for which the answer changes, or which have its value.

        Args:
            node: the filter.
            read: the expressions that read its rows, if they are known.
        """
        condition = node.fields["condition"]
        child = self.placed(node.children[0])
        rows = self._subqueries(child, [condition])
        if rows and read is not None:
            child = _with_attributes(child, [*read, condition])
        beside = _Beside(child, rows)
        parts = conjuncts(Scope(beside.attributes, self.sql).expression(condition))
        own = [one for one in parts if not beside.rows_in(one) and not has_clock(one)]
        found = _filtered(child.relation, own)
        rest = [one for one in parts if one not in own]
        for at, row in enumerate(rows):
            met = [one for one in rest if beside.rows_in(one) == {at} and not has_clock(one)]
            rest = [one for one in rest if one not in met]
            if met:
                columns = child.relation.columns
                keys, others = _keys(beside.with_row(met, at), len(columns))
                found = Join(found, row.relation, "semi", keys, conjunction(others), columns)
        if rest:
            found = beside.all_joined(found)
        return _narrowed(Placed(_filtered(found, rest), child.attributes), child)

    def _expand(self, node: Node) -> Placed:
        child = self.placed(node.children[0])
        scope = self._scope(child)
        values = [[scope.value(one) for one in row] for row in node.fields["projections"]]
        projections = tuple(tuple(one for v in row for one in flat(v)) for row in values)
        names = _names_of(node.fields["output"], values[0])
        columns = tuple(
            Column(name, ones[0].type, any(one.nullable for one in ones))
            for name, *ones in zip(names, *projections, strict=True)
        )
        places = refs(columns)
        attributes = _at(node.fields["output"], values[0], places)
        return Placed(Expand(child.relation, projections, columns), attributes)

    def _generate(self, node: Node) -> Placed:
        generator = node.fields["generator"]
        if generator.name in {"Explode", "PosExplode"}:
            return self._exploded(node, generator)
        if generator.name != "ReplicateRows":
            raise PipelineError(
                f"a view cannot have {generator.name.upper()} yet",
                place=self.sql,
                remedy="make the rows in the stream, before it becomes a table",
            )
        child = self.placed(node.children[0])
        scope = self._scope(child)
        times, *of_rows = generator.children
        values = [scope.value(one) for one in of_rows]
        kept = [one for value in values for one in flat(value)]
        names = _names_of(node.fields["output"], values)
        columns = tuple(
            Column(name, one.type, one.nullable) for name, one in zip(names, kept, strict=True)
        )
        every = (*child.relation.columns, *columns)
        expressions = (*refs(child.relation.columns), *kept)
        relation = Replicate(child.relation, scope.expression(times), expressions, every)
        new = _at(node.fields["output"], values, refs(every)[len(child.relation.columns) :])
        return Placed(relation, {**child.attributes, **new})

    def _exploded(self, node: Node, generator: Node) -> Placed:
        child = self._with_subqueries(self.placed(node.children[0]), [generator])
        array = self._scope(child).expression(generator.children[0])
        outer = node.fields["outer"]
        new = tuple(
            Column(one.name, one.type, one.nullable or outer)
            for one in self._columns(node.fields["output"])
        )
        columns = (*child.relation.columns, *new)
        relation = Explode(child.relation, array, len(new) > 1, outer, columns)
        places = refs(columns)[len(child.relation.columns) :]
        found = {
            one.fields["id"]: at for one, at in zip(node.fields["output"], places, strict=True)
        }
        return Placed(relation, {**child.attributes, **found})

    # -- sets ---------------------------------------------------------------------------------

    def _union(self, node: Node) -> Placed:
        children = [self.placed(child) for child in node.children]
        outputs = node.fields["inputs"]
        relations = tuple(self._output(c, o) for c, o in zip(children, outputs, strict=True))
        columns = tuple(
            Column(attribute.name, attribute.type, any(r.columns[at].nullable for r in relations))
            for at, attribute in enumerate(relations[0].columns)
        )
        values = [children[0].attributes[of] for _, of in outputs[0]]
        return Placed(Union(relations, columns), _at(node.fields["output"], values, refs(columns)))

    def _aggregate(self, node: Node) -> Placed:
        keys, named = node.fields["keys"], node.fields["list"]
        inner = [
            *keys,
            *(a for one in named for a in one.walk() if a.name == "AggregateExpression"),
        ]
        within = [part for one in inner for part in one.walk()]
        child = self._with_subqueries(self.placed(node.children[0]), within)
        scope = self._scope(child)
        values = [scope.value(one) for one in keys]
        if node.children[0].name != "Expand":  # (GROUPING SETS number what is NULL in them)
            structs = [k for k, of in zip(keys, values, strict=True) if isinstance(of, Struct)]
            check_are_there(structs, "group by", self.sql)
        flat_keys = tuple(dict.fromkeys(one for value in values for one in flat(value)))
        aggregates = Aggregates(scope, flat_keys)
        # a first look finds all aggregates, so that their columns are known
        outer = [part for one in named for part in _outside_aggregates(one)]
        for one in named:
            aggregates.collect(one)
        grouped = self._grouped(child, flat_keys, aggregates)
        attributes: dict[str, Value] = {}
        for key, value in zip(keys, values, strict=True):
            if key.name == "AttributeReference":
                attributes[key.fields["id"]] = aggregates.over_keys(value)
        found = self._with_subqueries(Placed(grouped, attributes), outer)
        return self._projected(
            found, named, Scope(found.attributes, self.sql, aggregates.replacement)
        )

    def _grouped(
        self, child: Placed, keys: tuple[Expression, ...], aggregates: Aggregates
    ) -> Relation:
        key_columns = tuple(
            Column(_name_of(key, child.relation), key.type, key.nullable) for key in keys
        )
        if keys and not aggregates.found:
            return Distinct(Project(child.relation, keys, key_columns))
        columns = (*key_columns, *aggregates.columns)
        return at_once(Group(child.relation, keys, tuple(aggregates.found), columns))

    # -- joins --------------------------------------------------------------------------------

    def _join(self, node: Node) -> Placed:
        left, right = (self.placed(child) for child in node.children)
        kind = node.fields["kind"]
        exists = node.fields["exists"]
        condition = node.fields["condition"]
        if condition is not None:
            left = self._with_subqueries(left, [condition])
        name = _KINDS.get(kind)
        if name is None:
            raise PipelineError(f"a view cannot have a join of the kind {kind}", place=self.sql)
        if name == "right":
            return self._join_of(right, left, "left", condition, swapped=True)
        joined = self._join_of(left, right, name, condition)
        if exists is not None:
            place = joined.relation.columns[-1]
            at = len(joined.relation.columns) - 1
            joined.attributes[exists.fields["id"]] = Ref(at, place.type, False)
        return joined

    def _join_of(
        self, left: Placed, right: Placed, kind: str, condition: Node | None, swapped: bool = False
    ) -> Placed:
        width = len(left.relation.columns)
        moved = {name: _moved(value, width) for name, value in right.attributes.items()}
        scope = Scope({**left.attributes, **moved}, self.sql)
        parts = conjuncts(scope.expression(condition)) if condition is not None else ()
        # (rows of a pair come and go with the clock, not the pairs that there are)
        by_clock = [one for one in parts if kind == "inner" and has_clock(one)]
        keys, rest = _keys(tuple(one for one in parts if one not in by_clock), width)
        nulled = {"left": (False, True), "full": (True, True)}.get(kind, (False, False))
        columns = _nullable(left.relation.columns, nulled[0])
        attributes = {n: _as_nullable(v, nulled[0]) for n, v in left.attributes.items()}
        if kind == "existence":
            columns = (*columns, Column("exists", BOOLEAN, False))
        elif kind not in {"semi", "anti"}:
            columns = (*columns, *_nullable(right.relation.columns, nulled[1]))
            attributes |= {n: _as_nullable(v, nulled[1]) for n, v in moved.items()}
        relation: Relation = Join(
            left.relation, right.relation, kind, keys, conjunction(rest), columns
        )
        if (holds := conjunction(tuple(by_clock))) is not None:
            relation = Filter(relation, holds)
        if not swapped:
            return Placed(relation, attributes)
        # A right join is a left join with its sides exchanged; the columns go back to their places.
        order = [*range(width, len(columns)), *range(width)]
        places = refs(columns)
        relation = Project(
            relation, tuple(places[at] for at in order), tuple(columns[at] for at in order)
        )
        back = {at: to for to, at in enumerate(order)}
        return Placed(relation, {n: _reordered(v, back) for n, v in attributes.items()})

    def _with_subqueries(self, child: Placed, expressions: Iterable[Node]) -> Placed:
        """Return a relation with a column for each scalar subquery in some expressions."""
        beside = _Beside(child, self._subqueries(child, expressions))
        return Placed(beside.all_joined(child.relation), beside.attributes)

    def _subqueries(self, child: Placed, expressions: Iterable[Node]) -> list[Placed]:
        """Return the rows of the scalar subqueries in some expressions that no column holds yet."""
        found: dict[str, Placed] = {}
        parts = (part for one in expressions for part in one.walk())
        for node in parts:
            if node.name != "ScalarSubquery" or clock_of(node) is not None:
                continue
            id = node.fields["id"]
            if id in child.attributes or id in found:
                continue
            if node.fields["outer"]:
                raise PipelineError(
                    "a subquery refers to the outer query in a way that Spark does not turn into a join",
                    place=self.sql,
                )
            inner = self.placed(node.fields["plan"])
            ((_, of),) = node.fields["output"]
            relation = self._output(inner, node.fields["output"])
            row = SingleRow(relation, _nullable(relation.columns, True))
            found[id] = Placed(row, {id: rebuilt(inner.attributes[of], refs(row.columns))})
        return [*found.values()]

    # -- order --------------------------------------------------------------------------------

    def _limited(self, node: Node, limit: int | None, offset: int) -> Placed:
        """Return the first rows of a plan, in the order of the sort below."""
        match node.name:
            case "GlobalLimit":
                given = max(self._number(node.fields["limit"]) - offset, 0)
                limit = given if limit is None else min(limit, given)
                return self._limited(node.children[0], limit, offset)
            case "LocalLimit":
                return self._limited(node.children[0], limit, offset)
            case "Offset":
                skipped = self._number(node.fields["offset"])
                return self._limited(node.children[0], limit, offset + skipped)
            case "Project" if _is_sorted(node.children[0]):
                # The order may need columns that this projection drops.
                child = self._limited(node.children[0], limit, offset)
                child = self._with_subqueries(child, node.fields["list"])
                return self._projected(child, node.fields["list"], self._scope(child))
            case "Sort":
                child = self.placed(node.children[0])
                order = self._order(node, child)
            case _:
                child, order = self.placed(node), ()
        return Placed(Top(child.relation, order, limit, offset), child.attributes)

    def _number(self, node: Node) -> int:
        value = self._scope(Placed(Values((), ()), {})).expression(node)
        if not isinstance(value, Literal) or not isinstance(value.value, int):
            raise PipelineError("LIMIT and OFFSET take a number", place=self.sql)
        return value.value

    def _order(self, node: Node, child: Placed) -> tuple[SortKey, ...]:
        return self._sort_keys(node.fields["order"], self._scope(child))

    def _sort_keys(self, keys: Iterable[Node], scope: Scope) -> tuple[SortKey, ...]:
        return tuple(one for key in keys for one in self._sort_key(key, scope))

    def _sort_key(self, key: Node, scope: Scope) -> Iterable[SortKey]:
        value, ascending = scope.value(key.children[0]), key.fields["ascending"]
        if not isinstance(value, Struct):
            return [SortKey(value, ascending, key.fields["nulls_first"])]
        check_are_there(key.children, "order by", self.sql)
        # NULLS FIRST and LAST are about the struct: in it, a NULL is the least value
        return [SortKey(one, ascending, ascending) for one in flat(value)]

    def _window(self, node: Node) -> Placed:
        child = self.placed(node.children[0])
        scope = self._scope(child)
        by = [(one, scope.value(one)) for one in node.fields["partition"]]
        structs = [one for one, value in by if isinstance(value, Struct)]
        check_are_there(structs, "partition by", self.sql)
        partition = tuple(one for _, value in by for one in flat(value))
        order = self._sort_keys(node.fields["order"], scope)
        functions = tuple(window_function(one, scope) for one in node.fields["functions"])
        new = tuple(
            Column(one.fields["name"], function.type, function.nullable)
            for one, function in zip(node.fields["functions"], functions, strict=True)
        )
        columns = (*child.relation.columns, *new)
        places = refs(columns)[len(child.relation.columns) :]
        found = {
            one.fields["id"]: at for one, at in zip(node.fields["functions"], places, strict=True)
        }
        relation = Window(child.relation, partition, order, functions, columns)
        return Placed(relation, {**child.attributes, **found})

    def _scope(self, placed: Placed) -> Scope:
        return Scope(placed.attributes, self.sql)


def refs(columns: Sequence[Column], start: int = 0) -> list[Ref]:
    """Return references to columns, in order."""
    return [Ref(start + at, one.type, one.nullable) for at, one in enumerate(columns)]


def _at_ids(relation: Relation, output: Sequence[Node]) -> Placed:
    places = refs(relation.columns)
    return Placed(relation, {one.fields["id"]: at for one, at in zip(output, places, strict=True)})


def _names_of(output: Sequence[Node], values: Sequence[Value]) -> list[str]:
    """Return the names of the columns of attributes that have some values."""
    pairs = zip(output, values, strict=True)
    return [name for one, value in pairs for name in flat_names(one.fields["name"], value)]


def _at(output: Sequence[Node], like: Sequence[Value], places: list[Ref]) -> dict[str, Value]:
    """Return where attributes are that have the form of some values, one behind the other."""
    pairs = zip(output, like, strict=True)
    return {one.fields["id"]: rebuilt(value, places) for one, value in pairs}


def _narrowed(placed: Placed, to: Placed) -> Placed:
    """Return a relation without the columns that subqueries have added behind its own."""
    wanted = to.relation.columns
    if len(placed.relation.columns) == len(wanted):
        return placed
    relation = Project(placed.relation, tuple(refs(wanted)), wanted)
    return Placed(relation, to.attributes)


def _with_attributes(placed: Placed, read: Iterable[Node]) -> Placed:
    """Return a relation with only the columns that some expressions read."""
    ids = {
        part.fields["id"]
        for one in read
        for part in one.walk()
        if part.name in {"AttributeReference", "ScalarSubquery"}
    }
    kept = {of: value for of, value in placed.attributes.items() if of in ids}
    columns = placed.relation.columns
    wanted = sorted({one.index for value in kept.values() for one in _refs_of(value)})
    if not wanted or len(wanted) == len(columns):
        return placed
    places = refs(columns)
    relation = Project(
        placed.relation, tuple(places[at] for at in wanted), tuple(columns[at] for at in wanted)
    )
    back = {at: to for to, at in enumerate(wanted)}
    return Placed(relation, {of: _reordered(value, back) for of, value in kept.items()})


def _filtered(relation: Relation, parts: Sequence[Expression]) -> Relation:
    condition = conjunction(tuple(parts))
    return relation if condition is None else Filter(relation, condition)


def _outside_aggregates(node: Node) -> Iterable[Node]:
    if node.name == "AggregateExpression":
        return
    yield node
    for child in node.children:
        yield from _outside_aggregates(child)


def _is_sorted(node: Node) -> bool:
    """Return whether a plan has an order, below projections and limits."""
    while node.name in {"Project", "GlobalLimit", "LocalLimit", "Offset"}:
        node = node.children[0]
    return node.name == "Sort"


def _name_of(key: Expression, relation: Relation) -> str:
    return relation.columns[key.index].name if isinstance(key, Ref) else "key"


def _nullable(columns: tuple[Column, ...], nullable: bool) -> tuple[Column, ...]:
    return tuple(Column(one.name, one.type, True) for one in columns) if nullable else columns


def _refs_of(value: Value) -> list[Ref]:
    found = [one for one in flat(value) if isinstance(one, Ref)]
    assert len(found) == len(flat(value))
    return found


def _changed(value: Value, change: dict[int, int] | int, nullable: bool) -> Value:
    places = []
    for one in _refs_of(value):
        at = one.index + change if isinstance(change, int) else change[one.index]
        places.append(Ref(at, one.type, one.nullable or nullable))
    return rebuilt(value, places)


def _moved(value: Value, by: int) -> Value:
    return _changed(value, by, False)


def _as_nullable(value: Value, nullable: bool) -> Value:
    return _changed(value, 0, nullable)


def _reordered(value: Value, places: dict[int, int]) -> Value:
    return _changed(value, places, False)


def _keys(
    parts: tuple[Expression, ...], width: int
) -> tuple[tuple[KeyPair, ...], tuple[Expression, ...]]:
    """Divide the conditions of a join into equalities between its sides, and the others."""
    found = [(part, _key_pair(part, width)) for part in parts]
    keys = tuple(pair for _, pair in found if pair is not None)
    return keys, tuple(part for part, pair in found if pair is None)


def _key_pair(part: Expression, width: int) -> KeyPair | None:
    if isinstance(part, (Ref, Literal)):
        return None
    if part.function in {"equal", "equal_null_safe"}:
        nulls = "differ" if part.function == "equal" else "equal"
        return _sides(part.args[0], part.args[1], width, nulls)
    if part.function == "or" and len(part.args) == 2:
        # NOT IN: a = b OR (a = b) IS NULL
        for one, other in (part.args, part.args[::-1]):
            is_test = not isinstance(other, (Ref, Literal)) and other.function == "is_null"
            if is_test and other.args == (one,) and _function(one) == "equal":  # type: ignore[union-attr]
                return _sides(one.args[0], one.args[1], width, "match")  # type: ignore[union-attr]
    return None


def _function(one: Expression) -> str:
    return "" if isinstance(one, (Ref, Literal)) else one.function


def _sides(one: Expression, other: Expression, width: int, nulls: str) -> KeyPair | None:
    first, second = references(one), references(other)
    if not first or not second:
        return None
    if max(first) < width <= min(second):
        return KeyPair(one, move(other, lambda at: at - width), nulls)
    if max(second) < width <= min(first):
        return KeyPair(other, move(one, lambda at: at - width), nulls)
    return None
