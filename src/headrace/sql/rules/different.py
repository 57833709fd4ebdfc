"""Several DISTINCT aggregates of one GROUP BY, taken back to what was asked for.

Catalyst has no such thing: it makes several rows of each, one for every list of arguments, which are
made different by one GROUP BY and counted by another. That pays where rows are sorted. Where groups
are kept up to date, it keeps every row several times, and a group of groups looks at all of them
again. Here the two groups become the one of the query, whose aggregates keep the different values.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from headrace.sql.ir.expressions import (
    Aggregate,
    Call,
    Expression,
    Literal,
    Ref,
    conjunction,
    conjuncts,
    substitute,
)
from headrace.sql.ir.relations import Distinct, Expand, Group, Project, Relation
from headrace.sql.rules.numbered_rows import in_order


def at_once(group: Group) -> Group:
    """Return a group without the one below it, if that only makes arguments different.

    A group of all rows stays as Catalyst has planned it, so that its values can be on several workers.
    """
    inner = _group_of(group.child)
    if inner is None or not isinstance(inner.child, Expand):
        return group
    number = _number_of_row(inner, inner.child)
    if number is None:
        return group
    if not group.keys:
        return in_order(group, inner, inner.child, number)
    rewritten = _Rewritten(group, inner, inner.child, number)
    keys = [rewritten.key(one) for one in group.keys]
    aggregates = [rewritten.aggregate(one) for one in group.aggregates]
    if None in keys or None in aggregates:
        return group
    return msgspec.structs.replace(
        group,
        child=inner.child.child,
        keys=tuple(one for one in keys if one is not None),
        aggregates=tuple(one for one in aggregates if one is not None),
    )


def _group_of(relation: Relation) -> Group | None:
    """Return a relation as a group, if it is one. DISTINCT is one without aggregates."""
    if isinstance(relation, Distinct) and isinstance(relation.child, Project):
        keys = relation.child
        return Group(keys.child, keys.expressions, (), keys.columns)
    return relation if isinstance(relation, Group) else None


def _number_of_row(inner: Group, expand: Expand) -> int | None:
    """Return which key tells the rows apart that one row becomes, if there is one."""
    for at, key in enumerate(inner.keys):
        if isinstance(key, Ref):
            given = [row[key.index] for row in expand.projections]
            known = {one.value for one in given if isinstance(one, Literal)}
            is_number = all(isinstance(one, Literal) and type(one.value) is int for one in given)
            if is_number and len(known) == len(given):
                return at
    return None


@dataclass(frozen=True)
class _Rewritten:
    """Parts of the upper group, over the rows below both.

    Args:
        group, inner, expand: the two groups, and what makes several rows of each.
        number: the key of the lower group that tells these apart.
    """

    group: Group
    inner: Group
    expand: Expand
    number: int

    def key(self, key: Expression) -> Expression | None:
        """Return a key, if it is the same in all rows that one row becomes."""
        of_rows = {self._of_row(key, row) for row in self.expand.projections}
        return of_rows.pop() if len(of_rows) == 1 else None

    def aggregate(self, outer: Aggregate) -> Aggregate | None:
        """Return an aggregate, if it looks at one of the rows that each row becomes."""
        if outer.condition is None or outer.distinct:
            return None
        numbers, flags = [], []
        for part in conjuncts(outer.condition):
            number = self._number(part)
            if number is None:
                flags.append(part)
            else:
                numbers.append(number)
        if len(numbers) != 1:
            return None
        given = [one for one in self.expand.projections if self._has_number(one, numbers[0])]
        if len(given) != 1:
            return None
        (row,) = given
        return self._of_only_row(outer, flags, row) or self._of_different(outer, flags, row)

    def _of_only_row(
        self, outer: Aggregate, flags: list[Expression], row: tuple[Expression, ...]
    ) -> Aggregate | None:
        """Return the aggregate of the lower group, if the upper one only reads it."""
        place = self._place_of_aggregate(*outer.args) if len(outer.args) == 1 else None
        if outer.function != "max" or flags or place is None or self._arguments(row):
            return None
        found = self.inner.aggregates[place]
        if found.distinct:
            return None
        return self._over_row(found, row, outer)

    def _over_row(self, of: Aggregate, row: tuple[Expression, ...], outer: Aggregate) -> Aggregate:
        condition = None if of.condition is None else substitute(of.condition, row)
        args = tuple(substitute(one, row) for one in of.args)
        return msgspec.structs.replace(of, args=args, condition=condition, nullable=outer.nullable)

    def _of_different(
        self, outer: Aggregate, flags: list[Expression], row: tuple[Expression, ...]
    ) -> Aggregate | None:
        """Return a DISTINCT aggregate of the values that the lower group makes different."""
        args = [self._of_row(one, row) for one in outer.args]
        conditions = [self._flag(one, row) for one in flags]
        if None in args or None in conditions or {*args} != self._arguments(row) or not args:
            return None
        return msgspec.structs.replace(
            outer,
            args=tuple(one for one in args if one is not None),
            condition=conjunction(tuple(one for one in conditions if one is not None)),
            distinct=True,
        )

    def _arguments(self, row: tuple[Expression, ...]) -> set[Expression | None]:
        """Return the keys of the lower group that one of its rows has beside those of the upper."""
        keys = {self._of_row(one, row) for one in self.group.keys}
        found: set[Expression | None] = set()
        for at, key in enumerate(self.inner.keys):
            of_row = substitute(key, row)
            is_null = isinstance(of_row, Literal) and of_row.value is None
            if at != self.number and not is_null and of_row not in keys:
                found.add(of_row)
        return found

    def _flag(self, flag: Expression, row: tuple[Expression, ...]) -> Expression | None:
        """Return a condition of rows that is true if one of equal rows fulfils it."""
        place = self._place_of_aggregate(flag)
        if place is None:
            return None
        of = self.inner.aggregates[place]
        if of.function != "max" or of.condition is not None or of.distinct:
            return None
        return substitute(of.args[0], row)

    def _of_row(self, expression: Expression, row: tuple[Expression, ...]) -> Expression | None:
        """Return what a key of the lower group is in one of the rows that a row becomes."""
        if not isinstance(expression, Ref) or expression.index >= len(self.inner.keys):
            return None
        return substitute(self.inner.keys[expression.index], row)

    def _place_of_aggregate(self, expression: Expression) -> int | None:
        if not isinstance(expression, Ref) or expression.index < len(self.inner.keys):
            return None
        return expression.index - len(self.inner.keys)

    def _number(self, part: Expression) -> Literal | None:
        """Return the number of the row to which a condition limits an aggregate."""
        if not isinstance(part, Call) or part.function != "equal":
            return None
        one, other = part.args
        if isinstance(one, Literal):
            one, other = other, one
        is_number = isinstance(one, Ref) and one.index == self.number
        return other if is_number and isinstance(other, Literal) else None

    def _has_number(self, row: tuple[Expression, ...], number: Literal) -> bool:
        own = substitute(self.inner.keys[self.number], row)
        return isinstance(own, Literal) and own.value == number.value
