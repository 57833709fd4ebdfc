"""Which columns are never NULL, also where Spark's planner says that they may be.

Spark takes ``x % 10`` and ``date_trunc('HOUR', at)`` for nullable, and so the ends of windows, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.sql.ir.expressions import Call, Expression, Literal, Ref
from headrace.sql.ir.relations import (
    Distinct,
    Expand,
    Explode,
    Filter,
    Group,
    Join,
    Project,
    Relation,
    Union,
    Window,
)

#: Functions that are NULL only if one of their arguments is.
_STRICT = frozenset(
    (
        *("same", "normalize", "reinterpret_time", "add", "subtract", "multiply", "add_interval"),
        *("date_add", "date_sub", "less", "less_or_equal", "greater", "greater_or_equal", "equal"),
    )
)
_DIVISIONS = frozenset(("remainder", "pmod", "div"))
_TIMES = frozenset(("timestamp", "timestamp_ntz", "date"))
_UNITS = frozenset(
    (
        *("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "DD", "WEEK"),
        *("MONTH", "MON", "MM", "QUARTER", "YEAR", "YYYY", "YY"),
    )
)


def columns_never_null(relation: Relation) -> list[bool]:
    """Return for each column of a relation whether it is certain that it is never NULL."""
    declared = [not one.nullable for one in relation.columns]
    return [one or other for one, other in zip(declared, _found(relation), strict=True)]


def _found(relation: Relation) -> list[bool]:
    match relation:
        case Project():
            return _of(relation.child, relation.expressions)
        case Filter() | Distinct():
            return columns_never_null(relation.child)
        case Group():
            keys = _of(relation.child, relation.keys)
            return [*keys, *[False] * (len(relation.columns) - len(keys))]
        case Window() | Explode():
            kept = columns_never_null(relation.child)
            return [*kept, *[False] * (len(relation.columns) - len(kept))]
        case Expand():
            return _all([_of(relation.child, one) for one in relation.projections])
        case Union():
            return _all([columns_never_null(one) for one in relation.children])
        case Join():
            return _of_join(relation)
    return [False] * len(relation.columns)


def _of_join(join: Join) -> list[bool]:
    left, right = columns_never_null(join.left), columns_never_null(join.right)
    if join.kind in {"right", "full"}:
        left = [False] * len(left)
    if join.kind in {"left", "full"}:
        right = [False] * len(right)
    if join.kind in {"semi", "anti", "existence"}:
        right = [False] * (len(join.columns) - len(left))
    return [*left, *right]


def _of(child: Relation, expressions: Sequence[Expression]) -> list[bool]:
    never = columns_never_null(child)
    return [never_null(one, never) for one in expressions]


def _all(rows: Sequence[Sequence[bool]]) -> list[bool]:
    return [all(of) for of in zip(*rows, strict=True)]


def never_null(expression: Expression, columns: Sequence[bool]) -> bool:
    """Return whether an expression is never NULL.

    Args:
        expression: the expression.
        columns: for each column that it may read whether that is never NULL.
    """
    match expression:
        case Ref():
            return not expression.nullable or columns[expression.index]
        case Literal():
            return expression.value is not None
        case Call():
            return not expression.nullable or _call_never_null(expression, columns)
    return False


def _call_never_null(call: Call, columns: Sequence[bool]) -> bool:
    args = call.args
    match call.function:
        case "case":  # (without ELSE, that is a literal NULL)
            values = [*args[1::2], args[-1]]
            return all(never_null(one, columns) for one in values)
        case "trunc_time":
            return _is_unit(args[0]) and never_null(args[1], columns)
        case "trunc_date":
            return _is_unit(args[1]) and never_null(args[0], columns)
        case "cast":
            whole = args[0].type.is_integer and call.type.is_integer
            times = args[0].type.name in _TIMES and call.type.name in _TIMES
            return (whole or times) and never_null(args[0], columns)
        case function if function in _DIVISIONS:
            divisor = args[1]
            is_number = isinstance(divisor, Literal) and bool(divisor.value)
            return is_number and never_null(args[0], columns)
        case function if function in _STRICT:
            return all(never_null(one, columns) for one in args)
    return False


def _is_unit(expression: Expression) -> bool:
    return isinstance(expression, Literal) and str(expression.value).upper() in _UNITS
