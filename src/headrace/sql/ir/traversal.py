"""Rebuilding relations: with other inputs, or with other expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from headrace.sql.ir.expressions import (
    Aggregate,
    Expression,
    SortKey,
    WindowFunction,
)
from headrace.sql.ir.relations import (
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
    Top,
    Union,
    Values,
    Window,
    inputs,
)

Change = Callable[[Expression], Expression]


def walk(relation: Relation) -> Iterator[Relation]:
    """Iterate over a relation and everything below it, from the top."""
    yield relation
    for one in inputs(relation):
        yield from walk(one)


def with_inputs(relation: Relation, change: Callable[[Relation], Relation]) -> Relation:
    """Return a relation whose inputs are replaced."""
    match relation:
        case Scan() | Values():
            return relation
        case Join():
            left, right = change(relation.left), change(relation.right)
            return msgspec.structs.replace(relation, left=left, right=right)
        case Union():
            children = tuple(change(one) for one in relation.children)
            return msgspec.structs.replace(relation, children=children)
        case _:
            return msgspec.structs.replace(relation, child=change(relation.child))


def with_expressions(relation: Relation, change: Change) -> Relation:
    """Return a relation whose own expressions are replaced; its inputs stay."""
    match relation:
        case Project():
            return _replaced(relation, expressions=_each(relation.expressions, change))
        case Filter():
            return Filter(relation.child, change(relation.condition))
        case Join():
            keys = tuple(KeyPair(change(k.left), change(k.right), k.nulls) for k in relation.keys)
            condition = None if relation.condition is None else change(relation.condition)
            return _replaced(relation, keys=keys, condition=condition)
        case Group():
            aggregates = tuple(_aggregate(one, change) for one in relation.aggregates)
            return _replaced(relation, keys=_each(relation.keys, change), aggregates=aggregates)
        case Expand():
            projections = tuple(_each(one, change) for one in relation.projections)
            return _replaced(relation, projections=projections)
        case Explode():
            return _replaced(relation, array=change(relation.array))
        case Replicate():
            expressions = _each(relation.expressions, change)
            return _replaced(relation, times=change(relation.times), expressions=expressions)
        case Top():
            return _replaced(relation, order=_order(relation.order, change))
        case Window():
            return _replaced(
                relation,
                partition=_each(relation.partition, change),
                order=_order(relation.order, change),
                functions=tuple(_function(one, change) for one in relation.functions),
            )
        case _:
            return relation


def expressions_of(relation: Relation) -> list[Expression]:
    """Return a relation's own expressions; those of its inputs are left out."""
    found: list[Expression] = []

    def note(one: Expression) -> Expression:
        found.append(one)
        return one

    with_expressions(relation, note)
    return found


def _replaced(relation: Relation, **fields: object) -> Relation:
    replaced: Relation = msgspec.structs.replace(relation, **fields)
    return replaced


def _each(expressions: tuple[Expression, ...], change: Change) -> tuple[Expression, ...]:
    return tuple(change(one) for one in expressions)


def _order(order: tuple[SortKey, ...], change: Change) -> tuple[SortKey, ...]:
    return tuple(SortKey(change(one.by), one.ascending, one.nulls_first) for one in order)


def _aggregate(aggregate: Aggregate, change: Change) -> Aggregate:
    condition = None if aggregate.condition is None else change(aggregate.condition)
    return msgspec.structs.replace(
        aggregate, args=_each(aggregate.args, change), condition=condition
    )


def _function(function: WindowFunction, change: Change) -> WindowFunction:
    inner = None if function.aggregate is None else _aggregate(function.aggregate, change)
    return msgspec.structs.replace(function, args=_each(function.args, change), aggregate=inner)
