"""What ``explain`` shows of a view: its relations, and the state with which each is maintained."""

from __future__ import annotations

from collections.abc import Set

from headrace.sql.ir.printing import describe
from headrace.sql.ir.relations import Query, Relation, inputs
from headrace.sql.rules.properties import is_append_only, state_of
from headrace.sql.rules.sharing import shared


def explained(query: Query, append_only: Set[str] = frozenset()) -> str:
    """Return a view as text: one line a relation, inputs below it.

    Args:
        query: the view.
        append_only: the names of tables whose rows are never deleted or changed.
    """
    graph = shared([query])
    times = len(graph.nodes)
    layers = graph.layers(graph.views[query.name])
    head = f"view {query.name}: {times} relations, {layers} of them with state on the longest path"
    return "\n".join([head, *_lines(query.relation, 1, append_only)])


def _lines(relation: Relation, depth: int, append_only: Set[str]) -> list[str]:
    state = state_of(relation, append_only)
    notes = "" if state.kept == "none" else f"  -- keeps {state}; {state.size}"
    if is_append_only(relation, append_only) and state.kept != "none":
        notes += "; its rows are never withdrawn"
    lines = [f"{'  ' * depth}{describe(relation)}{notes}"]
    for one in inputs(relation):
        lines += _lines(one, depth + 1, append_only)
    return lines
