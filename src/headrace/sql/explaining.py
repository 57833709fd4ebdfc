"""What ``explain`` shows of a view: its relations, and the state with which each is maintained."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from headrace.sql.ir.printing import describe, shown_expression
from headrace.sql.ir.relations import (
    Distinct,
    Filter,
    Group,
    Join,
    Query,
    Relation,
    Scan,
    Window,
    inputs,
)
from headrace.sql.rules.clock import leaving, shown_parts
from headrace.sql.rules.properties import is_append_only, state_of
from headrace.sql.rules.sharing import shared
from headrace.sql.rules.waterlines import JoinUntil, Waterlines


def explained(
    query: Query,
    waterlines: Waterlines | None = None,
    final: str = "",
    keep_rows: Collection[str] | None = None,
) -> str:
    """Return a view as text: one line a relation, inputs below it.

    Args:
        query: the view.
        waterlines: what is known of the tables' watermarks.
        final: when its rows are final, if they wait for that.
        keep_rows: the tables that keep their rows; None if that is not known.
    """
    graph = shared([query])
    times = len(graph.nodes)
    layers = graph.layers(graph.views[query.name])
    head = f"view {query.name}: {times} relations, {layers} of them with state on the longest path"
    if final:
        head += f"; rows wait until they are final, {final}"
    lines = [head, *_lines(query.relation, 1, waterlines or Waterlines())]
    tables = sorted(set(_tables(query.relation)))
    if tables and keep_rows is not None:
        lines.append(f"  added while the pipeline runs, {_beginning(tables, keep_rows)}")
    return "\n".join(lines)


def _beginning(tables: Sequence[str], keep_rows: Collection[str]) -> str:
    """Return what a view begins with that is added later."""
    without = [name for name in tables if name not in keep_rows]
    if without:
        return f"it cannot begin with the rows of {', '.join(without)}: nothing keeps them"
    return f"it begins with the rows of {', '.join(tables)}"


def _tables(relation: Relation) -> Iterator[str]:
    """Yield the tables that a relation reads."""
    if isinstance(relation, Scan):
        yield relation.table
    for one in inputs(relation):
        yield from _tables(one)


def _lines(relation: Relation, depth: int, waterlines: Waterlines) -> list[str]:
    # (A group keeps rows for max() even if none is ever deleted.)
    state = state_of(relation)
    notes = ""
    if state.kept != "none":
        notes = f"  -- keeps {state}; {_bounded_by(relation, waterlines) or state.size}"
        if is_append_only(relation, waterlines.append_only):
            notes += "; its rows are never withdrawn"
    lines = [f"{'  ' * depth}{describe(relation)}{notes}"]
    for one in inputs(relation):
        lines += _lines(one, depth + 1, waterlines)
    return lines


def _bounded_by(relation: Relation, waterlines: Waterlines) -> str:
    """Return by what the state of a relation is bounded; empty if it grows."""
    match relation:
        case Filter():
            shown = shown_parts(relation.condition, relation.columns)
            return f"bounded: a row is let go when no time can change {shown} any more"
        case Group():
            until = waterlines.until(relation.child, relation.keys)
            names = [shown_expression(one, relation.child.columns) for one in relation.keys]
        case Window():
            until = waterlines.until(relation.child, relation.partition)
            names = [shown_expression(one, relation.child.columns) for one in relation.partition]
        case Distinct():
            found = waterlines.of(relation.child)
            until = {at: slack + 1 for at, slack in list(found.items())[:1]}
            names = [one.name for one in relation.columns]
        case Join():
            return _of_join(relation, waterlines.join_until(relation))
        case _:
            return _by_clock(relation)
    ends = [f"{shown_after(after)} {names[at]}" for at, after in until.items()]
    return f"bounded: let go {', or '.join(ends)}" if ends else _by_clock(relation)


def _by_clock(relation: Relation) -> str:
    """Return by which condition on the current time the rows of a relation leave; empty if by none."""
    (child,) = inputs(relation)
    gone = leaving(child)
    if gone is None:
        return ""
    return f"bounded: rows leave by the clock, as {shown_parts(gone.condition, gone.columns)} says"


def _of_join(join: Join, until: JoinUntil) -> str:
    lefts, rights = join.left.columns, join.right.columns
    left = [f"{shown_after(us)} {lefts[at].name}" for at, us in until.left.items()]
    right = [f"{shown_after(us)} {rights[at].name}" for at, us in until.right.items()]
    for at, (one, other) in until.keys.items():
        left.append(f"{shown_after(one)} {shown_expression(join.keys[at].left, lefts)}")
        right.append(f"{shown_after(other)} {shown_expression(join.keys[at].right, rights)}")
    for ends, side in ((left, join.left), (right, join.right)):
        gone = leaving(side)
        if gone is not None and not ends:
            ends.append(f"by the clock, as {shown_parts(gone.condition, gone.columns)} says")
    if not left and not right:
        return ""
    parts = [
        f"the {name} side {'is let go ' + ', or '.join(of) if of else 'grows with its rows'}"
        for name, of in (("left", left), ("right", right))
    ]
    return f"{'bounded: ' if left and right else ''}{'; '.join(parts)}"


_UNITS = (
    (86_400_000_000, "d"),
    (3_600_000_000, "h"),
    (60_000_000, "m"),
    (1_000_000, "s"),
    (1_000, "ms"),
    (1, "us"),
)


def shown_after(micros: int) -> str:
    """Return when the watermark gets to a time that is so long behind another: ``10s after``."""
    # (One microsecond behind a time is when the watermark has passed it.)
    if micros in (0, 1):
        return "when the watermark has reached" if not micros else "when the watermark has passed"
    whole = micros - 1 if micros > 0 and (micros - 1) % 1_000 == 0 else micros
    shown, rest = "", abs(whole)
    for size, unit in _UNITS:
        if rest >= size:
            shown += f"{rest // size}{unit}"
            rest %= size
    return f"when the watermark is {shown} {'behind' if micros < 0 else 'past'}"
