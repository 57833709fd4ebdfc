"""How far an expression can be from a column: what is known of times without computing them.

The value of ``date_trunc('hour', at)`` is at most an hour before ``at``, and the end of a window at most
its length behind. All distances are in microseconds; dates count as the beginning of their day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.eventtime.timestamps import DAY_US
from headrace.sql.ir.expressions import Call, Expression, Literal, Ref, conjuncts

#: The longest stretch that a unit of date_trunc has.
_LONGEST = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": DAY_US,
    "DD": DAY_US,
    "WEEK": 7 * DAY_US,
    **dict.fromkeys(("MONTH", "MON", "MM"), 31 * DAY_US),
    "QUARTER": 92 * DAY_US,
    **dict.fromkeys(("YEAR", "YYYY", "YY"), 366 * DAY_US),
}
_SAME = frozenset(("same", "normalize", "reinterpret_time"))
_TIMES = frozenset(("timestamp", "timestamp_ntz"))
_COMPARED = {
    "less": (1, -1),
    "less_or_equal": (0, -1),
    "greater": (1, 1),
    "greater_or_equal": (0, 1),
}


@dataclass(frozen=True)
class Span:
    """The values that an expression can have.

    Attributes:
        base: the column from which ``low`` and ``high`` count; None if they are values.
        low, high: the least and the greatest distance, both possible; infinite if there is none.
    """

    base: int | None
    low: float
    high: float


Known = Mapping[Expression, Span]


def span(expression: Expression, known: Known | None = None) -> Span | None:
    """Return how far an expression is from a column, wherever it is not NULL; None if that is open.

    Args:
        expression: the expression.
        known: what is known of parts of it, such as from the condition of a CASE.
    """
    known = known or {}
    if expression in known:
        return known[expression]
    match expression:
        case Ref():
            return Span(expression.index, 0, 0)
        case Literal():
            return _of_literal(expression)
        case Call():
            return _of_call(expression, known)


def _of_literal(literal: Literal) -> Span | None:
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    name = literal.type.name
    if name == "date":
        value *= DAY_US
    elif not (literal.type.is_integer or name == "day_time" or name in _TIMES):
        return None
    return Span(None, value, value)


def _of_call(call: Call, known: Known) -> Span | None:
    function = call.function
    if function in _SAME:
        return span(call.args[0], known)
    if function == "cast":
        return _of_cast(call, known)
    if function == "case":
        return _of_case(call, known)
    if function == "trunc_time":
        return _floored(span(call.args[1], known), _LONGEST.get(_unit(call.args[0])))
    if function == "trunc_date":
        return _floored(span(call.args[0], known), _LONGEST.get(_unit(call.args[1])))
    parts = [span(one, known) for one in call.args]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    one, other = parts[0], parts[1]
    if function in {"date_add", "date_sub"}:
        other = Span(other.base, other.low * DAY_US, other.high * DAY_US)
        if other.base is not None:
            return None
    match function:
        case "add" | "add_interval" | "date_add":
            return _sum(one, other)
        case "subtract" | "date_sub":
            return _difference(one, other)
        case "multiply" if one.base is None and other.base is None:
            found = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
            return Span(None, min(found), max(found))
        case "remainder" | "pmod" if other.base is None and other.low == other.high > 0:
            lowest = 0 if function == "pmod" else 1 - other.low
            return Span(None, lowest, other.low - 1)
    return None


def _unit(expression: Expression) -> str:
    return str(expression.value).upper() if isinstance(expression, Literal) else ""


def _floored(of: Span | None, longest: int | None) -> Span | None:
    return None if of is None or longest is None else Span(of.base, of.low - longest + 1, of.high)


def _of_cast(call: Call, known: Known) -> Span | None:
    (inner,) = call.args
    before, after = inner.type, call.type
    found = span(inner, known)
    if before.is_integer and after.is_integer:
        return found
    if after.name in _TIMES and (before.name in _TIMES or before.name == "date"):
        return found
    if after.name == "date" and before.name in _TIMES:
        return _floored(found, DAY_US)
    return None


def _of_case(call: Call, known: Known) -> Span | None:
    """Return what all branches have in common. Of each it is known which conditions hold."""
    *pairs, other = call.args
    found: list[Span | None] = []
    known = dict(known)
    for condition, value in zip(pairs[::2], pairs[1::2], strict=True):
        if not _is_null(value):
            found.append(span(value, {**known, **_bounds(condition, known, holds=True)}))
        known |= _bounds(condition, known, holds=False)
    if not _is_null(other):
        found.append(span(other, known))
    spans = [one for one in found if one is not None]
    if not found or len(spans) < len(found) or len({one.base for one in spans}) > 1:
        return None
    return Span(spans[0].base, min(s.low for s in spans), max(s.high for s in spans))


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is None


def _bounds(condition: Expression, known: Known, *, holds: bool) -> dict[Expression, Span]:
    """Return what a comparison with a constant says of what it compares."""
    if not isinstance(condition, Call) or condition.function not in _COMPARED:
        return {}
    one, other = condition.args
    strict, sign = _COMPARED[condition.function]
    if isinstance(one, Literal):
        one, other, sign = other, one, -sign
    limit, before = span(other, known), span(one, known)
    if limit is None or limit.base is not None or before is None or before.base is not None:
        return {}
    if not holds:
        strict, sign = 1 - strict, -sign
    low, high = before.low, before.high
    if sign < 0:
        high = min(high, limit.high - strict)
    else:
        low = max(low, limit.low + strict)
    return {one: Span(None, low, high)} if low <= high else {}


def _sum(one: Span, other: Span) -> Span | None:
    if one.base is not None and other.base is not None:
        return None
    base = one.base if other.base is None else other.base
    return Span(base, one.low + other.low, one.high + other.high)


def _difference(one: Span, other: Span) -> Span | None:
    if other.base is not None and other.base != one.base:
        return None
    base = None if other.base is not None else one.base
    return Span(base, one.low - other.high, one.high - other.low)


@dataclass(frozen=True)
class Apart:
    """That a column is at least some distance behind another one.

    Attributes:
        column, other: the columns: ``column - other >= least``.
        least: the distance in microseconds.
    """

    column: int
    other: int
    least: float


def distances(condition: Expression | None) -> Iterator[Apart]:
    """Yield what a condition says of how far columns are apart, for rows for which it is true."""
    if condition is None:
        return
    for part in conjuncts(condition):
        if not isinstance(part, Call) or len(part.args) != 2:
            continue
        one, other = part.args
        if part.function == "equal":
            yield from _at_least(one, other, 0)
            yield from _at_least(other, one, 0)
        elif part.function in _COMPARED:
            strict, sign = _COMPARED[part.function]
            yield from _at_least(*((one, other) if sign > 0 else (other, one)), strict)


def _at_least(greater: Expression, lesser: Expression, more: int) -> Iterator[Apart]:
    one, other = span(greater), span(lesser)
    if one is None or other is None or one.base is None or other.base is None:
        return
    least = more + other.low - one.high
    if one.base != other.base and math.isfinite(least):
        yield Apart(one.base, other.base, least)
