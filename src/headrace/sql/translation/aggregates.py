"""Aggregates: what a GROUP BY computes, apart from what is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import PipelineError
from headrace.sql.ir.expressions import Aggregate, Expression, Literal, Ref, conjuncts
from headrace.sql.ir.relations import Column
from headrace.sql.translation.expressions import Scope, Struct, Value, flat, rebuilt
from headrace.sql.translation.functions import AGGREGATES
from headrace.sql.translation.tree import Node


@dataclass
class Aggregates:
    """The aggregates of one GROUP BY, each once.

    Args:
        scope: what their arguments refer to.
        keys: the grouping expressions. In the group's row the aggregates follow them.
    """

    scope: Scope
    keys: tuple[Expression, ...]
    found: list[Aggregate] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def collect(self, node: Node) -> None:
        """Find the aggregates in an expression over the groups."""
        if node.name == "AggregateExpression":
            self._place(node)
            return
        for child in node.children:
            self.collect(child)

    @property
    def columns(self) -> tuple[Column, ...]:
        """A column for each."""
        pairs = zip(self.names, self.found, strict=True)
        return tuple(Column(name, one.type, one.nullable) for name, one in pairs)

    def replacement(self, node: Node) -> Value | None:
        """Return the column of the group's row that an expression stands for, if it is one."""
        if node.name == "AggregateExpression":
            at = self._place(node)
            return Ref(at, self.found[at - len(self.keys)].type, node.nullable)
        if node.name in {"Literal", "AttributeReference", "Alias", "ScalarSubquery"}:
            return None
        if any(part.name in {"AggregateExpression", "ScalarSubquery"} for part in node.walk()):
            return None
        value = self.scope.value(node)
        if all(one in self.keys for one in flat(value)):
            return self.over_keys(value)
        return None

    def over_keys(self, value: Value) -> Value:
        """Return the columns of the group's row that have a grouping value."""
        places = [Ref(self.keys.index(one), one.type, one.nullable) for one in flat(value)]
        return rebuilt(value, places)

    def _place(self, node: Node) -> int:
        one = aggregate(node, self.scope)
        if one not in self.found:
            self.found.append(one)
            self.names.append(one.function)
        return len(self.keys) + self.found.index(one)


def aggregate(node: Node, scope: Scope, *, ordered: bool = False) -> Aggregate:
    """Return an aggregate.

    Args:
        node: an ``AggregateExpression``.
        scope: what its arguments refer to.
        ordered: whether the rows have an order, as those of a window frame have.

    Raises:
        PipelineError: if it cannot be maintained.
    """
    call = node.children[0]
    function = AGGREGATES.get(call.name)
    if function is None:
        raise PipelineError(f"a view cannot have the aggregate {call.name}", place=scope.sql)
    condition = node.fields["filter"]
    of = None if condition is None else scope.expression(condition)
    options: tuple[tuple[str, str], ...] = ()
    if "mode" in call.fields:
        options = (("mode", str(call.fields["mode"])),)
    if call.fields.get("mode") == "try":
        raise PipelineError(
            f"a view cannot have try_{function}() yet, which is NULL where {function}() is too large",
            place=scope.sql,
            remedy=f"use {function}() of a wider type, such as CAST(… AS DECIMAL(38, 0))",
        )
    if function in {"collect_list", "collect_set"} and ordered:
        raise PipelineError(
            f"a view cannot have {function}() with OVER yet",
            place=scope.sql,
            remedy="collect with GROUP BY, and join the result",
        )
    if function in {"first", "last"}:
        if ordered:
            options = (("ignore_nulls", str(call.fields["ignore_nulls"]).lower()),)
        elif _is_only_row(call, of):
            function = "max"
        else:
            raise PipelineError(
                f"the view has {function}(), which depends on the order in which rows arrived",
                place=scope.sql,
                remedy="use min_by() or max_by() with a column that orders the rows",
            )
    args = _arguments(function, node, scope)
    if function == "count":
        # count(1) counts rows: a constant is never NULL
        other = tuple(one for one in args if not (isinstance(one, Literal) and not one.nullable))
        args = other or (args[:1] if node.fields["distinct"] else ())
    return Aggregate(
        function,
        args,
        scope.type(call),
        call.nullable,
        node.fields["distinct"],
        of,
        options,
    )


def _arguments(function: str, node: Node, scope: Scope) -> tuple[Expression, ...]:
    """Return the arguments of an aggregate. A struct that is always there counts as a constant."""
    values = []
    for child in node.children[0].children:
        value = scope.value(child)
        if not isinstance(value, Struct):
            values.append(value)
        elif function != "count" or node.fields["distinct"] or child.nullable:
            raise PipelineError(
                f"a view cannot have {function}() of a struct",
                place=scope.sql,
                remedy="name the fields that you mean",
            )
    return tuple(values)


def _is_only_row(call: Node, condition: Expression | None) -> bool:
    """Return whether ``first`` is Catalyst's own.

    Several DISTINCT aggregates become an Expand. Of each group, one row then has the values of the
    aggregates without DISTINCT. It is found by its number, ``gid``, and read by ``first``.
    """
    if condition is None or not call.fields["ignore_nulls"]:
        return False
    parts = conjuncts(condition)
    return len(parts) == 1 and getattr(parts[0], "function", "") == "equal"
