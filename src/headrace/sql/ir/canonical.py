"""The form of a relation in which two that compute the same are equal.

Columns are positions already, so names are all that is left out; and conditions joined by AND, sides of
a comparison, and the like are put in one order.
"""

from __future__ import annotations

import hashlib

import msgspec

from headrace.sql.ir.expressions import Call, Expression, conjunction, conjuncts, rewrite
from headrace.sql.ir.relations import Column, Filter, Join, Relation
from headrace.sql.ir.traversal import with_expressions, with_inputs

#: Functions whose two arguments may be exchanged, and what they become then.
_EXCHANGED = {
    **{name: name for name in ("add", "multiply", "equal", "equal_null_safe", "bit_and", "bit_or")},
    "less": "greater",
    "greater": "less",
    "less_or_equal": "greater_or_equal",
    "greater_or_equal": "less_or_equal",
}


def canonical(relation: Relation) -> Relation:
    """Return a relation in canonical form. It computes the same rows."""
    relation = with_inputs(relation, canonical)
    relation = with_expressions(relation, canonical_expression)
    if isinstance(relation, Filter):
        condition = _sorted_conjunction(relation.condition)
        relation = Filter(relation.child, condition)
    if isinstance(relation, Join) and relation.condition is not None:
        condition = _sorted_conjunction(relation.condition)
        relation = msgspec.structs.replace(relation, condition=condition)
    if "columns" in relation.__struct_fields__:
        columns = tuple(Column("", one.type, one.nullable) for one in relation.columns)
        relation = msgspec.structs.replace(relation, columns=columns)
    return relation


def canonical_expression(expression: Expression) -> Expression:
    """Return an expression in canonical form. It has the same value, and fails for the same rows."""
    return rewrite(expression, _ordered)


def _ordered(one: Expression) -> Expression | None:
    if not isinstance(one, Call) or one.function not in _EXCHANGED or len(one.args) != 2:
        return None
    if _bytes(one.args[0]) <= _bytes(one.args[1]):
        return None
    return msgspec.structs.replace(
        one, function=_EXCHANGED[one.function], args=(one.args[1], one.args[0])
    )


def _sorted_conjunction(condition: Expression) -> Expression:
    """Return conditions in one order, unless one of them guards another from an error."""
    parts = conjuncts(condition)
    if any(may_fail(part) for part in parts):
        return condition
    joined = conjunction(tuple(sorted(dict.fromkeys(parts), key=_bytes)))
    return condition if joined is None else joined


#: Functions that have a value for every row. Only among these may conditions be exchanged.
_SAFE = frozenset(
    (
        *("equal", "equal_null_safe", "less", "less_or_equal", "greater", "greater_or_equal"),
        *("in", "is_null", "is_not_null", "not", "and", "or", "like", "starts_with", "ends_with"),
        *(
            "contains",
            "is_nan",
            "substring",
            "year",
            "month",
            "day",
            "case",
            "coalesce",
            "same",
            "now",
        ),
    )
)


def may_fail(expression: Expression) -> bool:
    """Return whether an expression may be an error for some row."""
    if not isinstance(expression, Call):
        return False
    return expression.function not in _SAFE or any(may_fail(one) for one in expression.args)


def _bytes(value: Expression) -> bytes:
    return msgspec.json.encode(value)


def digest(relation: Relation) -> str:
    """Return a name for what a relation computes: equal for equal canonical forms."""
    return hashlib.sha256(msgspec.json.encode(canonical(relation))).hexdigest()[:16]
