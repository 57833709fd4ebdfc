"""Relations of the IR: tables, and what a query makes of them.

A node says what it computes, not how. Its rows are a bag: a row may be in it several times.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from headrace.sql.ir.expressions import (
    Aggregate,
    Expression,
    Literal,
    SortKey,
    WindowFunction,
)
from headrace.sql.ir.types import SqlType


class Column(msgspec.Struct, frozen=True):
    """A column of a relation. Its name is for people; the IR refers to it by position."""

    name: str
    type: SqlType
    nullable: bool = True


class Scan(msgspec.Struct, frozen=True, tag_field="node", tag="scan"):
    """A declared table, or those of its columns that a query reads.

    Attributes:
        positions: the positions of these columns in the table.
    """

    table: str
    positions: tuple[int, ...]
    columns: tuple[Column, ...]


class Values(msgspec.Struct, frozen=True, tag_field="node", tag="values"):
    """Rows that stand in the query."""

    rows: tuple[tuple[Literal, ...], ...]
    columns: tuple[Column, ...]


class Project(msgspec.Struct, frozen=True, tag_field="node", tag="project"):
    """New columns, computed row by row."""

    child: Relation
    expressions: tuple[Expression, ...]
    columns: tuple[Column, ...]


class Filter(msgspec.Struct, frozen=True, tag_field="node", tag="filter"):
    """The rows for which a condition is true."""

    child: Relation
    condition: Expression

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's columns."""
        return self.child.columns


class KeyPair(msgspec.Struct, frozen=True):
    """An equality between the sides of a join.

    Attributes:
        left: an expression over the left row.
        right: an expression over the right row.
        nulls: what holds if a side is NULL: ``differ`` (``=``: no match), ``equal`` (``<=>``: NULL
            matches NULL), or ``match`` (``NOT IN``: NULL matches everything).
    """

    left: Expression
    right: Expression
    nulls: str = "differ"


class Join(msgspec.Struct, frozen=True, tag_field="node", tag="join"):
    """Pairs of rows, or the rows of the left side that have or lack a partner.

    Attributes:
        kind: ``inner``, ``left`` or ``full``; ``semi`` and ``anti`` give rows of the left side;
            ``existence`` gives all of them, with a boolean.
        keys: equalities between the sides; none for a cross join.
        condition: what else must hold, over the left row followed by the right row.
    """

    left: Relation
    right: Relation
    kind: str
    keys: tuple[KeyPair, ...]
    condition: Expression | None
    columns: tuple[Column, ...]


class SingleRow(msgspec.Struct, frozen=True, tag_field="node", tag="single_row"):
    """A scalar subquery: the row of the child, or a row of NULLs if it has none.

    More than one row is an error.
    """

    child: Relation
    columns: tuple[Column, ...]


class Group(msgspec.Struct, frozen=True, tag_field="node", tag="group"):
    """One row for each group: its keys, then its aggregates.

    Without keys there is one group, and it has a row even if no row is in it.
    """

    child: Relation
    keys: tuple[Expression, ...]
    aggregates: tuple[Aggregate, ...]
    columns: tuple[Column, ...]


class Distinct(msgspec.Struct, frozen=True, tag_field="node", tag="distinct"):
    """Each row once."""

    child: Relation

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's columns."""
        return self.child.columns


class Union(msgspec.Struct, frozen=True, tag_field="node", tag="union"):
    """The rows of all children (``UNION ALL``)."""

    children: tuple[Relation, ...]
    columns: tuple[Column, ...]


class Expand(msgspec.Struct, frozen=True, tag_field="node", tag="expand"):
    """Several rows for each row: one for each list of expressions (``GROUPING SETS``)."""

    child: Relation
    projections: tuple[tuple[Expression, ...], ...]
    columns: tuple[Column, ...]


class Explode(msgspec.Struct, frozen=True, tag_field="node", tag="explode"):
    """A row for each element of an array: the child's columns, and behind them the element.

    Attributes:
        array: the array.
        position: whether the place of the element, from 0, is a column in front of it.
        outer: whether a row of an empty array, or of NULL, is there once, with NULL.
    """

    child: Relation
    array: Expression
    position: bool
    outer: bool
    columns: tuple[Column, ...]


class Replicate(msgspec.Struct, frozen=True, tag_field="node", tag="replicate"):
    """Each row as many times as an expression says (``EXCEPT ALL``, ``INTERSECT ALL``)."""

    child: Relation
    times: Expression
    expressions: tuple[Expression, ...]
    columns: tuple[Column, ...]


class Top(msgspec.Struct, frozen=True, tag_field="node", tag="top"):
    """The first rows of an order. Rows that the order leaves equal are ordered by all columns.

    Attributes:
        limit: how many rows; None for all.
        offset: how many rows are skipped before them.
    """

    child: Relation
    order: tuple[SortKey, ...]
    limit: int | None
    offset: int = 0

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's columns."""
        return self.child.columns


class Window(msgspec.Struct, frozen=True, tag_field="node", tag="window_rows"):
    """All rows, each with functions of its place in its partition."""

    child: Relation
    partition: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    functions: tuple[WindowFunction, ...]
    columns: tuple[Column, ...]


Relation: TypeAlias = (
    Scan
    | Values
    | Project
    | Filter
    | Join
    | SingleRow
    | Group
    | Distinct
    | Union
    | Expand
    | Explode
    | Replicate
    | Top
    | Window
)


class Query(msgspec.Struct, frozen=True, tag_field="node", tag="query"):
    """A view as it is planned and stored.

    Attributes:
        name: the view's name.
        sql: its text.
        relation: what it computes.
        order: the order in which a reader shows its rows. It is not maintained.
    """

    name: str
    sql: str
    relation: Relation
    order: tuple[SortKey, ...] = ()


def inputs(relation: Relation) -> tuple[Relation, ...]:
    """Return the relations that a relation reads."""
    match relation:
        case Scan() | Values():
            return ()
        case Join():
            return (relation.left, relation.right)
        case Union():
            return relation.children
        case _:
            return (relation.child,)
