"""The current time in a query: how it gets past Spark's planner, which would make a constant of it.

In the text each function of the current time is replaced by a subquery on a table of one row, which the
planner knows nothing of. In the plan, that subquery is the current time again.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.sql.ir.expressions import Call, Expression
from headrace.sql.ir.relations import Column
from headrace.sql.ir.types import SqlType
from headrace.sql.rules.clock import current_time
from headrace.sql.translation.tree import Node

#: Catalyst's classes of the current time that are replaced.
CLASSES: Final = frozenset(("CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp"))

_NOW, _TODAY, _LOCAL = "headrace_now", "headrace_today", "headrace_local"
_TYPES = {
    _NOW: SqlType("timestamp"),
    _TODAY: SqlType("date"),
    _LOCAL: SqlType("timestamp_ntz"),
}
_TABLES = {
    "now": _NOW,
    "current_timestamp": _NOW,
    "current_date": _TODAY,
    "curdate": _TODAY,
    "localtimestamp": _LOCAL,
}
_CLOCK = re.compile(
    r"""
    [rR]'[^']*' | [rR]"[^"]*"                                # texts without escapes
    | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*`        # texts, and names in quotes
    | --[^\n]* | /\*.*?\*/                                   # comments
    | (?<![\w.])(?:
        (?P<bare>current_timestamp|current_date)\b(?:\s*\(\s*\))?
        | (?P<call>now|curdate|localtimestamp)\s*\(\s*\)
    )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)

#: The tables that stand for the clock, with their columns.
CLOCK_TABLES: Final = {name: [Column("at", kind, False)] for name, kind in _TYPES.items()}


def clocked(sql: str) -> str:
    """Return a query in which subqueries stand for the current time.

    Example::

        assert clocked("SELECT now(), 'now()'") == (
            "SELECT (SELECT at FROM headrace_now), 'now()'"
        )
    """

    def replaced(found: re.Match[str]) -> str:
        name = found["bare"] or found["call"]
        return found[0] if name is None else f"(SELECT at FROM {_TABLES[name.lower()]})"

    return _CLOCK.sub(replaced, sql)


def clock_of(node: Node) -> Expression | None:
    """Return the current time, if a subquery stands for it."""
    if node.name != "ScalarSubquery":
        return None
    plan: Node = node.fields["plan"]
    while len(plan.children) == 1:
        (plan,) = plan.children
    names = [one.fields["name"].split(":") for one in plan.fields.get("output", ())]
    if plan.name != "LogicalRDD" or len(names) != 1 or names[0][1] not in _TYPES:
        return None
    kind, now = _TYPES[names[0][1]], current_time()
    if kind == now.type:
        return now
    return Call("cast", (now,), kind, False, (("mode", "ansi"),))
