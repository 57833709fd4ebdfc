"""The rows that Catalyst makes of one row for several DISTINCT aggregates, in an order of their own.

Catalyst numbers them, and orders their columns, by numbers that it gives to columns as they come. So
the same text has another plan where other queries were planned before. Here both follow from what the
rows are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from headrace.sql.ir.canonical import canonical_expression
from headrace.sql.ir.expressions import (
    Aggregate,
    Call,
    Expression,
    Literal,
    Ref,
    references,
    rewrite,
)
from headrace.sql.ir.relations import Distinct, Expand, Group, Project, Relation

_encode = msgspec.json.Encoder(order="deterministic").encode


def in_order(group: Group, inner: Group, expand: Expand, number: int) -> Group:
    """Return a group over rows that are numbered, and whose columns are ordered, by what they are.

    Args:
        group: the group of all rows.
        inner: the one below it, which makes values different.
        expand: what makes several rows of each.
        number: the key of the lower group that tells these apart.
    """
    key = inner.keys[number]
    if not isinstance(key, Ref) or not all(isinstance(one, Ref) for one in inner.keys):
        return group
    rows = _numbered(expand.projections, key.index)
    if any(_reads(one, key.index) for of in inner.aggregates for one in _parts(of)):
        return group
    if not all(_only_names(one, number, rows) for of in group.aggregates for one in _parts(of)):
        return group
    columns = _order([[row[at] for row in rows.values()] for at in range(len(expand.columns))])
    child = Expand(
        expand.child,
        tuple(tuple(row[at] for at in columns) for row in rows.values()),
        tuple(expand.columns[at] for at in columns),
    )
    of_columns = {at: place for place, at in enumerate(columns)}
    keys = [_moved(one, of_columns) for one in inner.keys]
    order = sorted(range(len(keys)), key=lambda at: _encode(keys[at]))
    below = _below(inner, child, [keys[at] for at in order], order, of_columns)
    numbers = {before: after for after, before in enumerate(rows)}
    to = _Over({at: place for place, at in enumerate(order)}, number, numbers)
    aggregates = tuple(to.aggregate(one) for one in group.aggregates)
    return msgspec.structs.replace(group, child=below, aggregates=aggregates)


def _parts(of: Aggregate) -> list[Expression]:
    return [*of.args, *([] if of.condition is None else [of.condition])]


def _reads(expression: Expression, at: int) -> bool:
    return at in references(expression)


def _only_names(expression: Expression, number: int, known: Collection[int]) -> bool:
    """Return whether an expression does no more with the numbers of rows than to name some."""
    if not _reads(expression, number):
        return True
    if not isinstance(expression, Call):
        return False
    named = _named(expression, number)
    if named is not None:
        return named in known
    return all(_only_names(one, number, known) for one in expression.args)


def _named(expression: Call, number: int) -> int | None:
    """Return the number that a comparison names, if it is one."""
    if expression.function != "equal" or not any(_is_at(of, number) for of in expression.args):
        return None
    values = [of.value for of in expression.args if isinstance(of, Literal)]
    return values[0] if len(values) == 1 and type(values[0]) is int else None


def _is_at(expression: Expression, at: int) -> bool:
    return isinstance(expression, Ref) and expression.index == at


def _numbered(
    projections: Iterable[tuple[Expression, ...]], at: int
) -> dict[int, tuple[Expression, ...]]:
    """Return rows in order, with new numbers, by their number before.

    Args:
        projections: the rows.
        at: the column of the number.
    """
    ordered = sorted(projections, key=lambda row: sorted(map(_shown, (*row[:at], *row[at + 1 :]))))
    found = {}
    for number, row in enumerate(ordered):
        before = row[at]
        assert isinstance(before, Literal)
        assert isinstance(before.value, int)
        new = msgspec.structs.replace(before, value=number)
        found[before.value] = (*row[:at], new, *row[at + 1 :])
    return found


def _order(columns: Sequence[Sequence[Expression]]) -> list[int]:
    return sorted(range(len(columns)), key=lambda at: [_shown(one) for one in columns[at]])


def _below(
    inner: Group,
    child: Expand,
    keys: Sequence[Expression],
    order: Sequence[int],
    of_columns: Mapping[int, int],
) -> Relation:
    """Return the lower group with its keys in another order."""
    columns = tuple(inner.columns[at] for at in order)
    if not inner.aggregates:
        return Distinct(Project(child, tuple(keys), columns))
    return msgspec.structs.replace(
        inner,
        child=child,
        keys=tuple(keys),
        aggregates=tuple(_Over(of_columns).aggregate(one) for one in inner.aggregates),
        columns=(*columns, *inner.columns[len(keys) :]),
    )


class _Over:
    """Moves aggregates to columns that have other places.

    Args:
        places: position before → position after; others stay.
        number: the column, as it was before, whose values have changed.
        numbers: value of it before → value after.
    """

    def __init__(
        self, places: Mapping[int, int], number: int = -1, numbers: Mapping[int, int] | None = None
    ) -> None:
        self._places, self._numbers = places, numbers or {}
        self._number = places.get(number, -1)

    def aggregate(self, of: Aggregate) -> Aggregate:
        """Return an aggregate over the columns as they are now."""
        condition = None if of.condition is None else self._expression(of.condition)
        args = tuple(self._expression(one) for one in of.args)
        return msgspec.structs.replace(of, args=args, condition=condition)

    def _expression(self, expression: Expression) -> Expression:
        return rewrite(_moved(expression, self._places), self._with_number)

    def _with_number(self, one: Expression) -> Expression | None:
        if not isinstance(one, Call) or _named(one, self._number) is None:
            return None
        args = tuple(self._renumbered(of) for of in one.args)
        return msgspec.structs.replace(one, args=args)

    def _renumbered(self, of: Expression) -> Expression:
        if not isinstance(of, Literal) or not isinstance(of.value, int):
            return of
        return msgspec.structs.replace(of, value=self._numbers[of.value])


def _moved(expression: Expression, places: Mapping[int, int]) -> Expression:
    def moved(one: Expression) -> Expression | None:
        if not isinstance(one, Ref):
            return None
        return msgspec.structs.replace(one, index=places.get(one.index, one.index))

    return rewrite(expression, moved)


def _shown(expression: Expression) -> bytes:
    return _encode(canonical_expression(expression))
