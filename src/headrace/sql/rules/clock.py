"""Conditions on the current time: when they may change for a row.

``at > now() - INTERVAL 5 MINUTES`` is a comparison of a value of the row with a *side* that goes with
the clock. Such a side is the current time, shifted, rounded down to a date or an hour, or subtracted from
something: functions that only grow with the time, or only fall. So the comparison changes at one time,
or at two if it asks for equality, and that time follows from the value.

Here this is found out without a row: a :class:`Moment` is a value and the steps back from it to a
time. :mod:`headrace.sql.clock_functions` computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.errors import PipelineError
from headrace.eventtime.timestamps import DAY_US
from headrace.sql.ir.canonical import may_fail
from headrace.sql.ir.expressions import Call, Expression, Literal, conjuncts, walk
from headrace.sql.ir.printing import shown_expression
from headrace.sql.ir.relations import (
    Column,
    Distinct,
    Explode,
    Filter,
    Group,
    Join,
    Project,
    Relation,
    Replicate,
    Top,
    Union,
    Window,
)
from headrace.sql.ir.traversal import expressions_of
from headrace.sql.ir.traversal import walk as walk_relations
from headrace.sql.ir.types import BIGINT, SqlType

#: The function that is the current time.
NOW: Final = "now"
SECOND_US: Final = 1_000_000


def current_time() -> Call:
    """Return the current time as an expression."""
    return Call(NOW, (), SqlType("timestamp"), False)


def has_clock(expression: Expression) -> bool:
    """Return whether an expression depends on the current time."""
    return any(isinstance(one, Call) and one.function == NOW for one in walk(expression))


# -- steps ------------------------------------------------------------------------------------
#
# Each is a function of whole numbers: microseconds, days, months or seconds. What changes when its
# result gets to a number changes when its argument gets to another one.


@dataclass(frozen=True)
class Shift:
    """``x + by``, or ``x - by``."""

    by: Expression
    sign: int = 1


@dataclass(frozen=True)
class Reflect:
    """``of - x``: it falls as the time goes on."""

    of: Expression


@dataclass(frozen=True)
class Floor:
    """``x`` divided by a number, rounded down."""

    by: int


@dataclass(frozen=True)
class Times:
    """``x`` times a number."""

    by: int


@dataclass(frozen=True)
class MonthsOfDays:
    """The month of a day, both counted from 1970."""


@dataclass(frozen=True)
class DaysOfMonths:
    """The first day of a month, both counted from 1970."""


@dataclass(frozen=True)
class AddMonths:
    """A day some months later: the same day of the month, or its last one."""

    months: int


Step: TypeAlias = Shift | Reflect | Floor | Times | MonthsOfDays | DaysOfMonths | AddMonths


@dataclass(frozen=True)
class Moment:
    """A time at which a condition may change for a row.

    Attributes:
        value: what the row has on the other side of the comparison.
        plus: what is added to it: a comparison changes at the value, or right behind it.
        steps: the functions between the current time and the side, the outermost first.
    """

    value: Expression
    plus: int
    steps: tuple[Step, ...]


_COMPARISONS: Final = {
    "less": (0,),
    "greater_or_equal": (0,),
    "less_or_equal": (1,),
    "greater": (1,),
    "equal": (0, 1),
    "equal_null_safe": (0, 1),
}
_MIRRORED: Final = {
    "less": "greater",
    "greater": "less",
    "less_or_equal": "greater_or_equal",
    "greater_or_equal": "less_or_equal",
}
_LOGIC: Final = frozenset(("and", "or", "not", "is_null", "is_not_null", "case", "coalesce"))


class Unsolvable(Exception):
    """A part of a condition of which it is not known when it changes.

    Args:
        part: the part.
        reason: why not.
    """

    def __init__(self, part: Expression, reason: str) -> None:
        super().__init__(reason)
        self.part, self.reason = part, reason


def moments(condition: Expression) -> tuple[Moment, ...]:
    """Return when a condition may change for a row.

    Raises:
        Unsolvable: if that is not known.
    """
    return tuple(dict.fromkeys(_moments(condition)))


def _moments(condition: Expression) -> Iterator[Moment]:
    if not has_clock(condition):
        return
    assert isinstance(condition, Call)
    if condition.function in _LOGIC:
        for one in condition.args:
            yield from _moments(one)
    elif condition.function in _COMPARISONS:
        yield from _of_comparison(condition.function, *condition.args, whole=condition)
    elif condition.function == "in":
        for other in condition.args[1:]:
            yield from _of_comparison("equal", condition.args[0], other, whole=condition)
    else:
        raise Unsolvable(condition, "it is no comparison")


def _of_comparison(
    function: str, one: Expression, other: Expression, *, whole: Expression
) -> Iterator[Moment]:
    if not has_clock(one):
        one, other, function = other, one, _MIRRORED.get(function, function)
    if has_clock(other):
        raise Unsolvable(whole, "both sides of the comparison depend on it")
    steps = tuple(_steps(one))
    for plus in _COMPARISONS[function]:
        yield Moment(other, plus, steps)


def _steps(side: Expression) -> Iterator[Step]:
    """Yield the functions between the current time and a side, the outermost first."""
    while isinstance(side, Call) and side.function != NOW:
        found = _peeled(side)
        if found is None:
            raise Unsolvable(side, "it neither only grows nor only falls as time goes on")
        steps, side = found
        yield from steps


Peeled: TypeAlias = tuple[tuple[Step, ...], Expression]
_SAME = frozenset(
    (
        *("same", "normalize", "reinterpret_time", "unix_micros", "micros_to_time"),
        *("unix_date", "date_from_unix"),
    )
)
_TIMES = frozenset(("timestamp", "timestamp_ntz"))
_FLOORS = {"unix_seconds": SECOND_US, "unix_millis": 1_000}
_PRODUCTS = {"seconds_to_time": SECOND_US, "millis_to_time": 1_000}
_UNITS: Mapping[str, int] = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": SECOND_US,
    "MINUTE": 60 * SECOND_US,
    "HOUR": 3_600 * SECOND_US,
    "DAY": DAY_US,
    "DD": DAY_US,
}
_MONTHS: Mapping[str, int] = {
    **dict.fromkeys(("MONTH", "MM", "MON"), 1),
    "QUARTER": 3,
    **dict.fromkeys(("YEAR", "YYYY", "YY"), 12),
}


def _peeled(side: Call) -> Peeled | None:
    """Return the steps of a function, and its argument that goes with the clock."""
    args = side.args
    match side.function:
        case function if function in _SAME:
            return (), args[0]
        case "cast":
            return _of_cast(side)
        case "negate":
            return (Reflect(_whole(0)),), args[0]
        case "add" | "add_interval" | "subtract" | "subtract_times" | "date_diff":
            return _of_sum(args, 1 if side.function.startswith("add") else -1)
        case "subtract_dates":
            found = _of_sum(args, -1)
            return None if found is None else ((Times(DAY_US), *found[0]), found[1])
        case "date_add" | "date_sub" if has_clock(args[0]):
            return _of_sum(args, 1 if side.function == "date_add" else -1)
        case "add_months" if args[0].type.name == "date" and isinstance(args[1], Literal):
            months = args[1].value
            return None if months is None else ((AddMonths(int(months)),), args[0])
        case "trunc_time":
            return _of_trunc(args[0], args[1], "timestamp")
        case "trunc_date":
            return _of_trunc(args[1], args[0], "date")
        case "year":
            steps = (Shift(_whole(1970)), Floor(12), MonthsOfDays(), *_to_days(args[0].type))
            return steps, args[0]
        case function if function in _FLOORS:
            return (Floor(_FLOORS[function]),), args[0]
        case function if function in _PRODUCTS and args[0].type.is_integer:
            return (Times(_PRODUCTS[function]),), args[0]
    return None


def _whole(number: int) -> Literal:
    return Literal(number, BIGINT)


def _of_cast(side: Call) -> Peeled | None:
    (inner,) = side.args
    before, after = inner.type, side.type
    if before.name in _TIMES and after.name in _TIMES:
        return (), inner
    if before.is_integer and after.is_integer:
        return (), inner
    if before.name in _TIMES and after.name == "date":
        return (Floor(DAY_US),), inner
    if before.name == "date" and after.name in _TIMES:
        return (Times(DAY_US),), inner
    if before.name == "timestamp" and after.name == "bigint":
        return (Floor(SECOND_US),), inner
    return None


def _of_sum(args: tuple[Expression, ...], sign: int) -> Peeled | None:
    one, other = args
    if any(part.type.is_float or part.type.is_decimal for part in args):
        return None
    if has_clock(one) and has_clock(other):
        return None
    if has_clock(one):
        return (Shift(other, sign),), one
    return (Shift(one) if sign > 0 else Reflect(one),), other


def _of_trunc(unit: Expression, of: Expression, kind: str) -> Peeled | None:
    name = str(unit.value).upper() if isinstance(unit, Literal) else ""
    whole_days: tuple[Step, ...] = (Times(DAY_US),) if kind == "timestamp" else ()
    if kind == "timestamp" and name in _UNITS:
        return (Times(_UNITS[name]), Floor(_UNITS[name])), of
    if name == "WEEK":  # (1970 began on a Thursday)
        week = (Shift(_whole(3), -1), Times(7), Floor(7), Shift(_whole(3)))
        return (*whole_days, *week, *_to_days(of.type)), of
    if name in _MONTHS:
        count = _MONTHS[name]
        months = (DaysOfMonths(), Times(count), Floor(count), MonthsOfDays())
        return (*whole_days, *months, *_to_days(of.type)), of
    return None


def _to_days(kind: SqlType) -> tuple[Step, ...]:
    return () if kind.name == "date" else (Floor(DAY_US),)


# -- relations --------------------------------------------------------------------------------


def check_clock(relation: Relation, sql: str) -> None:
    """Check that the current time stands only where a view can be kept up to date with it.

    Raises:
        PipelineError: naming the clause and the reason.
    """
    for one in walk_relations(relation):
        if isinstance(one, Filter):
            try:
                moments(one.condition)
            except Unsolvable as error:
                shown = shown_expression(error.part, one.columns)
                raise PipelineError(
                    f"a view cannot have the current time in {shown}: {error.reason}",
                    place=sql,
                    remedy="compare a column with the current time, from which an interval of days, "
                    "hours and the like is subtracted: at > now() - INTERVAL 5 MINUTES",
                ) from None
        elif any(has_clock(part) for part in expressions_of(one)):
            raise PipelineError(
                f"a view cannot have the current time in {_clause(one)}: its value changes without a "
                "change of any table, so every row would change in every step",
                place=sql,
                remedy="use it in a WHERE or HAVING that compares it with a column, such as "
                "at > now() - INTERVAL 5 MINUTES, or compute with it where the view is read",
            )


def _clause(relation: Relation) -> str:
    match relation:
        case Join():
            return f"the ON of a {relation.kind} join"
        case Group():
            return "GROUP BY or an aggregate"
        case Window():
            return "OVER"
        case Top():
            return "ORDER BY"
    return "a SELECT list"


def leaves_by_clock(condition: Expression) -> bool:
    """Return whether every row that passes a condition will not pass it some time later."""
    if not isinstance(condition, Call) or not has_clock(condition):
        return False
    match condition.function:
        case "and":
            return any(leaves_by_clock(one) for one in condition.args)
        case "or":
            return all(leaves_by_clock(one) for one in condition.args)
        case "equal" | "equal_null_safe" | "in":
            return True
        case function if function in _MIRRORED:
            one, other = condition.args
            if not has_clock(one):
                one, other, function = other, one, _MIRRORED[function]
            falls = sum(isinstance(step, Reflect) for step in _steps(one)) % 2 == 1
            return function.startswith("greater" if falls else "less")
    return False


def leaving(relation: Relation) -> Filter | None:
    """Return the filter by which all rows of a relation leave in time; None if some may stay."""
    match relation:
        case Filter():
            leaves = any(leaves_by_clock(one) for one in conjuncts(relation.condition))
            return relation if leaves else leaving(relation.child)
        case Project() | Distinct() | Window() | Explode() | Replicate() | Top():
            return leaving(relation.child)
        case Group() if relation.keys:
            return leaving(relation.child)
        case Join() if relation.kind in {"inner", "semi"}:
            return leaving(relation.left) or leaving(relation.right)
        case Join() if relation.kind != "full":
            return leaving(relation.left)
        case Union():
            found = [leaving(one) for one in relation.children]
            return found[0] if all(one is not None for one in found) else None
    return None


def clock_parts(
    condition: Expression,
) -> tuple[tuple[Expression, ...], tuple[Expression, ...], tuple[Expression, ...]]:
    """Divide a condition: what is tested before the clock is asked, what asks it, and what is after.

    A part that may be an error for a row stays behind those that guard it.
    """
    before: list[Expression] = []
    by_clock: list[Expression] = []
    after: list[Expression] = []
    for part in conjuncts(condition):
        if has_clock(part):
            by_clock.append(part)
        elif by_clock and may_fail(part):
            after.append(part)
        else:
            before.append(part)
    return tuple(before), tuple(by_clock), tuple(after)


def shown_parts(condition: Expression, columns: tuple[Column, ...]) -> str:
    """Return the parts of a condition that depend on the clock, as text."""
    parts = [one for one in conjuncts(condition) if has_clock(one)]
    return " AND ".join(shown_expression(one, columns) for one in parts)
