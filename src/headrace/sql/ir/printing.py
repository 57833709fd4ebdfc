"""A relation as text, for people: what ``explain`` shows, and what tests compare."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.sql.ir.expressions import (
    Aggregate,
    Call,
    Expression,
    Literal,
    Ref,
    SortKey,
    WindowFunction,
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
    inputs,
)

_INFIX = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "div": "div",
    "remainder": "%",
    "equal": "=",
    "equal_null_safe": "<=>",
    "less": "<",
    "less_or_equal": "<=",
    "greater": ">",
    "greater_or_equal": ">=",
    "and": "AND",
    "or": "OR",
}
_NULLS = {"differ": "=", "equal": "<=>", "match": "= (NULL matches)"}


def printed(relation: Relation) -> str:
    """Return a relation as text: one line a node, inputs below it.

    Example::

        assert printed(Distinct(relation)).startswith("distinct")
    """
    return "\n".join(_lines(relation, 0))


def _lines(relation: Relation, depth: int) -> list[str]:
    lines = [f"{'  ' * depth}{describe(relation)}"]
    for one in inputs(relation):
        lines += _lines(one, depth + 1)
    return lines


def describe(relation: Relation) -> str:  # noqa: PLR0912
    """Return one line about a relation, without its inputs."""
    match relation:
        case Scan():
            return f"scan {relation.table} ({_names(relation.columns)})"
        case Values():
            return f"values ({_names(relation.columns)}), {len(relation.rows)} rows"
        case Project():
            shown = _named(relation.expressions, relation.columns, relation.child.columns)
            return f"project {shown}"
        case Filter():
            return f"filter {shown_expression(relation.condition, relation.child.columns)}"
        case Join():
            return _join(relation)
        case SingleRow():
            return "single row"
        case Group():
            return _group(relation)
        case Distinct():
            return "distinct"
        case Union():
            return "union"
        case Expand():
            return f"expand {len(relation.projections)} rows a row ({_names(relation.columns)})"
        case Explode():
            shown = shown_expression(relation.array, relation.child.columns)
            return f"{'outer ' * relation.outer}explode {shown}"
        case Replicate():
            times = shown_expression(relation.times, relation.child.columns)
            return f"replicate {times} times"
        case Top():
            limit = "all" if relation.limit is None else str(relation.limit)
            skipped = f" after {relation.offset}" if relation.offset else ""
            return f"top {limit}{skipped}{_by(relation.order, relation.child.columns)}"
        case Window():
            return _window(relation)


def _names(columns: Sequence[Column]) -> str:
    return ", ".join(one.name for one in columns)


def _named(
    expressions: Sequence[Expression], columns: Sequence[Column], of: Sequence[Column]
) -> str:
    parts = []
    for expression, column in zip(expressions, columns, strict=True):
        shown = shown_expression(expression, of)
        parts.append(shown if shown == column.name else f"{shown} AS {column.name}")
    return ", ".join(parts)


def _join(join: Join) -> str:
    both = (*join.left.columns, *join.right.columns)
    parts = [_pair(one, join) for one in join.keys]
    if join.condition is not None:
        parts.append(shown_expression(join.condition, both))
    name = "cross join" if not parts else f"{join.kind} join on"
    return f"{name} {' AND '.join(parts)}".strip()


def _pair(pair: KeyPair, join: Join) -> str:
    left = shown_expression(pair.left, join.left.columns)
    return f"{left} {_NULLS[pair.nulls]} {shown_expression(pair.right, join.right.columns)}"


def _group(group: Group) -> str:
    of = group.child.columns
    keys = ", ".join(shown_expression(one, of) for one in group.keys)
    aggregates = ", ".join(shown_aggregate(one, of) for one in group.aggregates)
    return f"group by {keys}: {aggregates}" if keys else f"group of all: {aggregates}"


def _window(window: Window) -> str:
    of = window.child.columns
    functions = ", ".join(_shown_function(one, of) for one in window.functions)
    parts = ", ".join(shown_expression(one, of) for one in window.partition)
    partition = f" partition by {parts}" if parts else ""
    return f"window {functions}{partition}{_by(window.order, of)}"


def _by(order: Sequence[SortKey], of: Sequence[Column]) -> str:
    if not order:
        return " by all columns"
    keys = []
    for one in order:
        way = "" if one.ascending else " desc"
        usual = one.ascending == one.nulls_first
        nulls = "" if usual else f" nulls {'first' if one.nulls_first else 'last'}"
        keys.append(f"{shown_expression(one.by, of)}{way}{nulls}")
    return f" by {', '.join(keys)}"


def _shown_function(function: WindowFunction, of: Sequence[Column]) -> str:
    if function.aggregate is not None:
        shown = shown_aggregate(function.aggregate, of)
    else:
        shown = f"{function.function}({', '.join(shown_expression(a, of) for a in function.args)})"
    if function.frame is None:
        return shown
    bounds = [
        "unbounded" if one is None else str(one)
        for one in (function.frame.lower, function.frame.upper)
    ]
    return f"{shown} over {function.frame.unit} {bounds[0]}..{bounds[1]}"


def shown_aggregate(aggregate: Aggregate, of: Sequence[Column]) -> str:
    """Return an aggregate as text."""
    args = ", ".join(shown_expression(one, of) for one in aggregate.args) or "*"
    distinct = "distinct " if aggregate.distinct else ""
    where = ""
    if aggregate.condition is not None:
        where = f" where {shown_expression(aggregate.condition, of)}"
    return f"{aggregate.function}({distinct}{args}){where}"


def shown_expression(expression: Expression, of: Sequence[Column]) -> str:
    """Return an expression as text.

    Args:
        expression: the expression.
        of: the columns to which it refers.
    """
    match expression:
        case Ref():
            return of[expression.index].name or f"#{expression.index}"
        case Literal():
            return _literal(expression)
        case Call():
            return _call(expression, [shown_expression(one, of) for one in expression.args])


def _call(call: Call, args: Sequence[str]) -> str:
    if call.function in _INFIX and len(args) == 2:
        return f"({args[0]} {_INFIX[call.function]} {args[1]})"
    if call.function == "cast":
        return f"cast({args[0]} as {call.type})"
    if call.function in {"is_null", "is_not_null"}:
        return f"{args[0]} {call.function.replace('_', ' ')}"
    return f"{call.function}({', '.join(args)})"


def _literal(literal: Literal) -> str:
    if literal.value is None:
        return "NULL"
    if literal.type.name == "string":
        return f"'{literal.value}'"
    if literal.type.is_decimal:
        scale = literal.type.scale
        digits = str(literal.value).lstrip("-").rjust(scale + 1, "0")
        sign = "-" if str(literal.value).startswith("-") else ""
        return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"
    if literal.type.is_numeric or literal.type.name == "boolean":
        return str(literal.value).lower()
    return f"{literal.type} {literal.value}"
