"""Relations as of a time: the current time is a constant of them."""

from __future__ import annotations

from datetime import datetime

from headrace.eventtime.timestamps import to_micros
from headrace.sql.ir.expressions import Call, Expression, Literal, rewrite
from headrace.sql.ir.relations import Relation
from headrace.sql.ir.traversal import with_expressions, with_inputs
from headrace.sql.ir.types import SqlType


def as_of(relation: Relation, now: datetime) -> Relation:
    """Return a relation in which a time stands for the current one."""
    time = Literal(to_micros(now), SqlType("timestamp"))

    def at_that_time(one: Expression) -> Expression | None:
        return time if isinstance(one, Call) and one.function == "now" else None

    relation = with_inputs(relation, lambda one: as_of(one, now))
    return with_expressions(relation, lambda one: rewrite(one, at_that_time))
