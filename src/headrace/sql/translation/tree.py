"""A plan of Catalyst as plain Python data: what :mod:`headrace.sql.catalyst` reads from the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Node:
    """A node of a plan, or an expression.

    Attributes:
        name: the name of Catalyst's class, such as ``Join`` or ``CaseWhen``.
        children: its inputs, or its arguments.
        type: for an expression, its data type, as JSON that has been parsed.
        nullable: for an expression, whether it may be NULL.
        fields: what else Catalyst says of a node of this class.
    """

    name: str
    children: tuple[Node, ...] = ()
    type: Any = None
    nullable: bool = True
    fields: dict[str, Any] = field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        """Iterate over this expression and everything in it; plans of subqueries are left out."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Planned:
    """What Catalyst has made of a query.

    Attributes:
        sql: the text.
        plan: the optimized plan.
        output: the name and the id of each column that it puts out.
    """

    sql: str
    plan: Node
    output: tuple[tuple[str, str], ...]
