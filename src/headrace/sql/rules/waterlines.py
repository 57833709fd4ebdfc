"""Waterlines: below which time no row of a relation changes any more.

A table with a watermark column gets no row behind the watermark, less the lateness that it allows. So of
some columns of a relation it is known: no row whose value is further behind the watermark than a
*slack* will be inserted or deleted any more. From this follows which state can be let go, and which
rows of a result are final.

All times are in microseconds. A slack may be below zero: a window's end is after all of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.sql.ir.expressions import Expression
from headrace.sql.ir.relations import (
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
    Top,
    Union,
    Window,
)
from headrace.sql.rules.clock import has_clock
from headrace.sql.rules.nulls import columns_never_null
from headrace.sql.rules.properties import is_append_only
from headrace.sql.rules.spans import Apart, distances, span

#: Column of a relation → slack.
Slacks = dict[int, int]
_TIMES = frozenset(("timestamp", "timestamp_ntz", "date", "bigint"))


@dataclass(frozen=True)
class Watermark:
    """The watermark column of a table whose rows are only inserted.

    Attributes:
        column: its position in the table.
        lateness_us: how far a row may be behind the watermark.
    """

    column: int
    lateness_us: int = 0


@dataclass(frozen=True)
class JoinUntil:
    """When the rows of a join's sides are let go: column → time behind its value.

    Attributes:
        keys: for the pairs of ``keys`` by position: the times for the left and for the right side.
        left, right: for columns of the sides.
    """

    keys: dict[int, tuple[int, int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    right: dict[int, int] = field(default_factory=dict)


class Waterlines:
    """What is known of relations over some tables.

    Args:
        watermarks: the watermark of each table that has one.
        append_only: the names of all tables whose rows are only inserted.
    """

    def __init__(
        self, watermarks: Mapping[str, Watermark] | None = None, append_only: Sequence[str] = ()
    ) -> None:
        self.watermarks = dict(watermarks or {})
        self.append_only = {*self.watermarks, *append_only}
        self._known: dict[int, tuple[Relation, Slacks]] = {}

    def of(self, relation: Relation) -> Slacks:
        """Return the slack of each column of a relation that has one."""
        if id(relation) not in self._known:
            self._known[id(relation)] = (relation, self._found(relation))
        return self._known[id(relation)][1]

    def of_expressions(self, relation: Relation, expressions: Sequence[Expression]) -> Slacks:
        """Return the slacks of expressions over a relation, by position."""
        slacks = self.of(relation)
        found = {}
        for at, one in enumerate(expressions):
            where = span(one)
            if where is not None and where.base in slacks and one.type.name in _TIMES:
                found[at] = slacks[where.base] - int(where.low)
        return found

    def until(self, relation: Relation, expressions: Sequence[Expression]) -> dict[int, int]:
        """Return when rows of equal expressions are let go: position → time behind the value.

        It is one of the expressions, or none.
        """
        nullable = [one.nullable for one in expressions]
        return _best(self.of_expressions(relation, expressions), nullable)

    def final(self, relation: Relation) -> dict[int, int]:
        """Return when rows are final: column → time behind the value. Empty if they never are."""
        nullable = [not never for never in columns_never_null(relation)]
        found = _best(self.of(relation), nullable)
        return {at: after for at, after in found.items() if not nullable[at]}

    # -- the kinds of relation ----------------------------------------------------------------

    def _found(self, relation: Relation) -> Slacks:
        match relation:
            case Scan():
                return self._of_scan(relation)
            case Project():
                return self.of_expressions(relation.child, relation.expressions)
            case Filter() if has_clock(relation.condition):
                return {}  # a row goes when the clock says so, however old it is
            case Filter():
                return _nearer(self.of(relation.child), relation.condition)
            case Distinct() | Explode():
                return self.of(relation.child)
            case Union():
                return _common([self.of(one) for one in relation.children])
            case Expand():
                rows = [self.of_expressions(relation.child, one) for one in relation.projections]
                return _common(rows)
            case Replicate():
                kept = relation.expressions[: len(relation.child.columns)]
                return self.of_expressions(relation.child, kept)
            case Group():
                return self.of_expressions(relation.child, relation.keys)
            case Window():
                return self._of_partitions(relation)
            case Join():
                return self._of_join(relation)
            case Top():
                return {}
        return {}

    def _of_scan(self, scan: Scan) -> Slacks:
        watermark = self.watermarks.get(scan.table)
        if watermark is None or watermark.column not in scan.positions:
            return {}
        return {scan.positions.index(watermark.column): watermark.lateness_us}

    def _of_partitions(self, window: Window) -> Slacks:
        """Return the slacks of columns by which a window is divided: others change with any row."""
        found: Slacks = {}
        slacks = self.of(window.child)
        for one in window.partition:
            where = span(one)
            if where is not None and where.base in slacks:
                slack = slacks[where.base] + int(where.high - where.low)
                found[where.base] = min(slack, found.get(where.base, slack))
        return found

    # -- joins --------------------------------------------------------------------------------

    def _of_join(self, join: Join) -> Slacks:
        """Return the slacks of columns that are near one of the other side.

        A new row meets old ones of the other side, so a side's own waterline says nothing.
        """
        left, right = self.of(join.left), self.of(join.right)
        width = len(join.left.columns)
        both = {**left, **{width + at: slack for at, slack in right.items()}}
        found: Slacks = {}
        for apart in _apart(join):
            one, other = apart.column, apart.other
            if one in both and other in both:
                slack = max(both[one], both[other] - int(apart.least))
                found[one] = min(slack, found.get(one, slack))
        if join.kind in {"semi", "anti", "existence"}:
            found = {at: slack for at, slack in found.items() if at < width}
        return found

    def join_until(self, join: Join) -> JoinUntil:
        """Return when the rows of a join's sides are let go."""
        found = JoinUntil()
        lefts = self.of_expressions(join.left, [one.left for one in join.keys])
        rights = self.of_expressions(join.right, [one.right for one in join.keys])
        for at, pair in enumerate(join.keys):
            if at in lefts and at in rights and pair.nulls != "match":
                after = max(lefts[at], rights[at]) + 1
                found.keys[at] = (after, after)
        if not found.keys:
            self._add_intervals(join, found)
        return found

    def _add_intervals(self, join: Join, found: JoinUntil) -> None:
        """Add when rows go that are near rows of the other side: ``a.at <= b.at + INTERVAL …``."""
        width = len(join.left.columns)
        sides = (_Side(self, join.left, 0), _Side(self, join.right, width))
        least: dict[tuple[int, int], int] = {}
        for apart in _apart(join):
            pair = (apart.column, apart.other)
            least[pair] = max(int(apart.least), least.get(pair, int(apart.least)))
        if join.kind == "inner":
            for (one, other), low in least.items():
                own, theirs = sides if one < width else sides[::-1]
                _keep_least(own.until(found), one - own.first, own.met(theirs, one, other, low))
            return
        for (one, other), low in least.items():
            if one < width and (other, one) in least:
                high = -least[other, one]
                left = sides[0].met(sides[1], one, other, low)
                right = sides[1].met(sides[0], other, one, -high)
                if left is None or right is None:
                    continue
                # a row that decides whether others have a partner stays until these are settled
                settled = (left, right)
                right = max(right, high + settled[0])
                if join.kind == "full":
                    left = max(left, settled[1] - low)
                _keep_least(found.left, one, left)
                _keep_least(found.right, other - width, right)


class _Side:
    """One side of a join, and what is known of its columns.

    Args:
        lines: what is known of relations.
        relation: the side.
        first: the position of its first column in the join.
    """

    def __init__(self, lines: Waterlines, relation: Relation, first: int) -> None:
        self.first = first
        self.slacks = lines.of(relation)
        self.inserted = is_append_only(relation, lines.append_only)
        self.times = {at for at, one in enumerate(relation.columns) if one.type.name in _TIMES}

    def until(self, found: JoinUntil) -> dict[int, int]:
        return found.right if self.first else found.left

    def met(self, other: _Side, column: int, theirs: int, least: int) -> int | None:
        """Return how long behind its value a row is kept that is at least some time after others.

        Until then a row of the other side may come that it meets, or it may be deleted. None if
        that never ends.
        """
        at, of = column - self.first, theirs - other.first
        if of not in other.slacks or at not in self.times:
            return None
        slack = other.slacks[of] - least
        if not self.inserted:
            if at not in self.slacks:
                return None
            slack = max(slack, self.slacks[at])
        return slack + 1


def _keep_least(until: dict[int, int], at: int, after: int | None) -> None:
    """Note a time for a column, unless another column has one that is known before."""
    if after is None or (until and at not in until):
        return
    until[at] = min(after, until.get(at, after))


def _apart(join: Join) -> list[Apart]:
    """Return how far columns of the two sides of a join are apart. The right side's follow."""
    width = len(join.left.columns)
    found = []
    for pair in join.keys:
        one, other = span(pair.left), span(pair.right)
        if pair.nulls == "match" or one is None or other is None:
            continue
        if one.base is None or other.base is None:
            continue
        theirs = width + other.base
        found.append(Apart(one.base, theirs, other.low - one.high))
        found.append(Apart(theirs, one.base, one.low - other.high))
    crossing = [of for of in distances(join.condition) if (of.column < width) != (of.other < width)]
    return [*found, *crossing]


def _nearer(slacks: Slacks, condition: Expression) -> Slacks:
    """Return slacks with what a condition says: a column behind one that has a waterline has one."""
    found = dict(slacks)
    for _ in range(2):  # (a column may be near one that is near one)
        for of in distances(condition):
            if of.other in found:
                slack = found[of.other] - int(of.least)
                found[of.column] = min(slack, found.get(of.column, slack))
    return found


def _common(parts: Sequence[Slacks]) -> Slacks:
    shared = set(parts[0]).intersection(*parts[1:]) if parts else set()
    return {at: max(part[at] for part in parts) for at in sorted(shared)}


def _best(slacks: Slacks, nullable: Sequence[bool]) -> dict[int, int]:
    """Return one column, and how long behind its value a row is certain not to change any more.

    It is one that is never NULL, if there is one, and of these the one that is nearest to it.
    """
    if not slacks:
        return {}
    at = min(slacks, key=lambda at: (nullable[at], abs(slacks[at] + 1), at))
    return {at: slacks[at] + 1}
