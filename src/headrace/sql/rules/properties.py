"""What can be said of a relation before it runs: the state it needs, and whether it only grows."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from headrace.sql.ir.expressions import Aggregate, Expression
from headrace.sql.ir.printing import shown_aggregate, shown_expression
from headrace.sql.ir.relations import (
    Column,
    Distinct,
    Expand,
    Explode,
    Filter,
    Group,
    Join,
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
from headrace.sql.rules.clock import has_clock

#: Aggregates of which a group keeps a few numbers, whatever is inserted and deleted.
_LINEAR = frozenset(
    ("count", "sum", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop", "bit_xor")
)


@dataclass(frozen=True)
class State:
    """The state with which a relation is maintained.

    Attributes:
        kept: ``none``, ``groups`` (a few numbers a group), ``rows`` (all rows of the input) or
            ``both sides`` (of a join).
        key: by what it is kept, as text.
        reason: what of the relation needs it.
    """

    kept: str
    key: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if self.kept == "none":
            return "no state"
        key = f" by {self.key}" if self.key else " under one key"
        return f"{self.kept}{key}, for {self.reason}"

    @property
    def size(self) -> str:
        """What bounds it, or with what it grows."""
        match self.kept:
            case "none":
                return "no state"
            case "groups":
                return "grows with the number of groups" if self.key else "bounded: one row"
            case _:
                return "grows with the rows that are there"


def state_of(relation: Relation, append_only: Set[str] = frozenset()) -> State:
    """Return the state with which a relation is maintained.

    Args:
        relation: the relation. Only the node itself is looked at, not its inputs.
        append_only: the names of tables whose rows are never deleted or changed.
    """
    match relation:
        case Filter() if has_clock(relation.condition):
            return State("rows", "all columns", "a condition on the current time")
        case Scan() | Values() | Project() | Filter() | Union():
            return State("none")
        case Expand() | Explode() | Replicate():
            return State("none")
        case Join():
            return _of_join(relation)
        case SingleRow() if has_one_row(relation.child):
            return State("none")
        case SingleRow():
            return State("rows", "", "a scalar subquery")
        case Group():
            return _of_group(relation, is_append_only(relation.child, append_only))
        case Distinct():
            return State("groups", _names(relation.child.columns), "DISTINCT")
        case Top():
            return State("rows", "", "ORDER BY with LIMIT")
        case Window():
            key = ", ".join(_shown(one, relation.child.columns) for one in relation.partition)
            return State("rows", key, "window functions")


def _of_join(join: Join) -> State:
    key = ", ".join(
        _shown(one.left, join.left.columns) for one in join.keys if one.nulls != "match"
    )
    return State("both sides", key, f"{join.kind} join")


def _of_group(group: Group, append_only: bool) -> State:
    key = ", ".join(_shown(one, group.child.columns) for one in group.keys)
    needing = [one for one in group.aggregates if not _is_small(one, append_only)]
    if not needing:
        return State("groups", key, "GROUP BY" if group.keys else "the total")
    shown = ", ".join(shown_aggregate(one, group.child.columns) for one in needing)
    return State("rows", key, shown)


def _is_small(aggregate: Aggregate, append_only: bool) -> bool:
    """Return whether a group keeps a few numbers for an aggregate."""
    if aggregate.distinct:
        return False
    if aggregate.function in {"min", "max", "min_by", "max_by", "bit_and", "bit_or"}:
        return append_only
    # Sums of floats depend on the order, and do not come back when a row is deleted.
    is_float = any(one.type.is_float for one in aggregate.args)
    return aggregate.function in _LINEAR and (not is_float or aggregate.function == "count")


def has_one_row(relation: Relation) -> bool:
    """Return whether a relation is an aggregate of all rows, with projections above it."""
    while isinstance(relation, Project):
        relation = relation.child
    return isinstance(relation, Group) and not relation.keys


def is_append_only(relation: Relation, tables: Set[str]) -> bool:
    """Return whether rows of a relation are never deleted or changed.

    Args:
        relation: the relation, with all that it reads.
        tables: the names of tables of which that is known.
    """
    match relation:
        case Scan():
            return relation.table in tables
        case Values():
            return True
        case Group() | SingleRow() | Top() | Window():
            return False
        case Filter() if has_clock(relation.condition):
            return False
        case Join() if relation.kind not in {"inner", "semi"}:
            return False
        case _:
            return all(is_append_only(one, tables) for one in inputs(relation))


def _shown(expression: Expression, columns: tuple[Column, ...]) -> str:
    return shown_expression(expression, columns)


def _names(columns: tuple[Column, ...]) -> str:
    return ", ".join(one.name for one in columns)
