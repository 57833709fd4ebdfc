"""Expressions of the IR: what is computed from the columns of one row, or of one group.

They are plain data. A column is named by its position in the row, so that two queries that compute
the same have the same IR, whatever they call their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from headrace.sql.ir.types import SqlType


class Ref(msgspec.Struct, frozen=True, tag_field="node", tag="ref"):
    """A column of the row, by position. In a join, the right side's columns follow the left's."""

    index: int
    type: SqlType
    nullable: bool = True


class Literal(msgspec.Struct, frozen=True, tag_field="node", tag="literal"):
    """A constant.

    Attributes:
        value: None for NULL; the unscaled integer of a decimal; days or microseconds of a time;
            months of a year-month interval; the shortest text that reads back as the float;
            hexadecimal digits of bytes.
    """

    value: bool | int | str | None
    type: SqlType

    @property
    def nullable(self) -> bool:
        """Whether it is NULL."""
        return self.value is None


class Call(msgspec.Struct, frozen=True, tag_field="node", tag="call"):
    """A function of its arguments.

    Attributes:
        function: its name in the table of functions, such as ``add`` or ``like``.
        options: further settings that are no columns, such as ``("mode", "ansi")``.
    """

    function: str
    args: tuple[Expression, ...]
    type: SqlType
    nullable: bool = True
    options: tuple[tuple[str, str], ...] = ()

    def option(self, name: str, default: str = "") -> str:
        """Return one setting."""
        return dict(self.options).get(name, default)


class Aggregate(msgspec.Struct, frozen=True, tag_field="node", tag="aggregate"):
    """A function of the rows of a group.

    Attributes:
        condition: only rows for which it is true take part (``FILTER``).
        distinct: whether equal arguments count once.
    """

    function: str
    args: tuple[Expression, ...]
    type: SqlType
    nullable: bool = True
    distinct: bool = False
    condition: Expression | None = None
    options: tuple[tuple[str, str], ...] = ()


class SortKey(msgspec.Struct, frozen=True, tag_field="node", tag="sort"):
    """One expression of an order."""

    by: Expression
    ascending: bool = True
    nulls_first: bool = True


class Frame(msgspec.Struct, frozen=True, tag_field="node", tag="frame"):
    """The rows around a row that a window function looks at.

    Attributes:
        unit: ``rows`` or ``range``.
        lower: rows (or distance) from the current one, negative if before; None if unbounded.
        upper: likewise.
    """

    unit: str
    lower: int | None
    upper: int | None


class WindowFunction(msgspec.Struct, frozen=True, tag_field="node", tag="window"):
    """A function of a row's place in its ordered partition, or an aggregate of a frame.

    Attributes:
        function: ``row_number``, ``rank``, ``lag``, …, or ``aggregate``.
        aggregate: what is aggregated over the frame.
    """

    function: str
    args: tuple[Expression, ...]
    type: SqlType
    nullable: bool = True
    aggregate: Aggregate | None = None
    frame: Frame | None = None
    options: tuple[tuple[str, str], ...] = ()


Expression: TypeAlias = Ref | Literal | Call


def children(expression: Expression) -> tuple[Expression, ...]:
    """Return the arguments of an expression."""
    return expression.args if isinstance(expression, Call) else ()


def walk(expression: Expression) -> Iterator[Expression]:
    """Iterate over an expression and everything in it, from the top."""
    yield expression
    for child in children(expression):
        yield from walk(child)


def references(expression: Expression) -> frozenset[int]:
    """Return the positions of the columns that an expression reads."""
    return frozenset(one.index for one in walk(expression) if isinstance(one, Ref))


def rewrite(
    expression: Expression, change: Callable[[Expression], Expression | None]
) -> Expression:
    """Return an expression in which parts are replaced, from the leaves up.

    Args:
        expression: the expression.
        change: returns what a part becomes; None leaves it.
    """
    if isinstance(expression, Call):
        args = tuple(rewrite(one, change) for one in expression.args)
        if args != expression.args:
            expression = msgspec.structs.replace(expression, args=args)
    changed = change(expression)
    return expression if changed is None else changed


def move(expression: Expression, to: Callable[[int], int]) -> Expression:
    """Return an expression that reads its columns at other positions."""

    def moved(one: Expression) -> Expression | None:
        return Ref(to(one.index), one.type, one.nullable) if isinstance(one, Ref) else None

    return rewrite(expression, moved)


def substitute(expression: Expression, by: tuple[Expression, ...]) -> Expression:
    """Return an expression in which each column is replaced by what computes it."""
    return rewrite(expression, lambda one: by[one.index] if isinstance(one, Ref) else None)


def conjuncts(condition: Expression) -> tuple[Expression, ...]:
    """Return the conditions that a condition joins by AND."""
    if isinstance(condition, Call) and condition.function == "and":
        return tuple(part for one in condition.args for part in conjuncts(one))
    return (condition,)


def conjunction(conditions: tuple[Expression, ...]) -> Expression | None:
    """Return conditions joined by AND; None if there are none."""
    if not conditions:
        return None
    joined, *rest = conditions
    for one in rest:
        joined = Call("and", (joined, one), SqlType("boolean"), joined.nullable or one.nullable)
    return joined
