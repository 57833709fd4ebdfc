"""Window functions of the IR as those of Z-sets."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import PipelineError
from headrace.sql.aggregating import arguments_of, maintained
from headrace.sql.ir.expressions import (
    Call,
    Expression,
    Frame,
    Literal,
    Ref,
    WindowFunction,
    conjuncts,
    substitute,
)
from headrace.sql.ir.relations import Filter, Project, Relation, Window
from headrace.sql.row_functions import name_of
from headrace.zsets import Frame as FrameOfRows
from headrace.zsets import Over

#: What numbers the rows of a partition, and can stop at a number.
RANKINGS = frozenset(("row_number", "rank", "dense_rank"))
#: Aggregates that do not depend on the order of rows, but for sums of floats.
_EXACT = frozenset(("count", "sum", "avg", "min", "max"))
_PLACES = RANKINGS | {"percent_rank", "cume_dist"}


def columns_of(function: WindowFunction) -> tuple[Expression, ...]:
    """Return what a window function reads of each row."""
    if function.aggregate is not None:
        return arguments_of(function.aggregate)
    match function.function:
        case "lag" | "lead":
            value, _, default = function.args
            return (value,) if _is_null(default) else (value, default)
        case "nth_value":
            return function.args[:1]
        case _:
            return ()


def read_by(window: Window) -> list[Expression]:
    """Return what the functions of a window read of each row, one after the other."""
    return [one for function in window.functions for one in columns_of(function)]


def functions_of(window: Window, columns: Sequence[str]) -> dict[str, Over]:
    """Return the functions of a window as they are maintained.

    Args:
        window: the window.
        columns: the columns with what they read, as :func:`read_by` says.
    """
    names = iter(columns)
    return {
        f"w{at}": over(one, [next(names) for _ in columns_of(one)])
        for at, one in enumerate(window.functions)
    }


def places_of(window: Window) -> dict[str, str]:
    """Return the column of each of a window's columns in the rows that are maintained."""
    width = len(window.child.columns)
    places = {name_of(at): name_of(at) for at in range(width)}
    return {**places, **{name_of(width + at): f"w{at}" for at in range(len(window.functions))}}


def follows(window: Window, below: Window, by: tuple[Expression, ...]) -> bool:
    """Return whether a window can be computed of another one's rows as these stand in order.

    Args:
        window: the window.
        below: the one below it.
        by: what is between them: an expression for each column that the upper one reads.
    """
    partition = tuple(substitute(one, by) for one in window.partition)
    order = tuple((substitute(one.by, by), one.ascending, one.nulls_first) for one in window.order)
    return (
        not _only_ranks(below)
        and partition == below.partition
        and order == tuple((one.by, one.ascending, one.nulls_first) for one in below.order)
        and all(_takes_equals_together(one) for one in window.functions)
    )


def _only_ranks(window: Window) -> bool:
    return len(window.functions) == 1 and window.functions[0].function in RANKINGS


def _takes_equals_together(function: WindowFunction) -> bool:
    """Return whether rows that are equal in the order may be in any order for a function."""
    of = function.aggregate
    if of is None:
        return function.function in _PLACES - {"row_number"}
    is_range = function.frame is None or function.frame.unit == "range"
    return is_range and of.function in _EXACT and not any(one.type.is_float for one in of.args)


def over(function: WindowFunction, columns: Sequence[str]) -> Over:
    """Return a window function as it is maintained.

    Args:
        function: the function.
        columns: the columns with what it reads, as :func:`columns_of` says.

    Raises:
        PipelineError: if it cannot be maintained.
    """
    kind = function.type.arrow
    frame = _frame(function.frame)
    skips = dict(function.options).get("ignore_nulls") == "true"
    name = function.function
    if function.aggregate is not None:
        inner = function.aggregate
        if inner.function in {"first", "last"}:
            skips = dict(inner.options).get("ignore_nulls") == "true"
            return Over(inner.function, columns[0], ignore_nulls=skips, frame=frame, type=kind)
        return Over(maintained(inner, columns), frame=frame, type=kind)
    if name in _PLACES:
        return Over(name, type=kind)
    if name == "ntile":
        return Over(name, number=_whole(function.args[0], name), type=kind)
    if name in {"lag", "lead"}:
        default = columns[1] if len(columns) > 1 else None
        number = _whole(function.args[1], name)
        return Over(name, columns[0], number, default, skips, type=kind)
    if name == "nth_value":
        number = _whole(function.args[1], name)
        return Over("nth", columns[0], number, ignore_nulls=skips, frame=frame, type=kind)
    raise PipelineError(f"a view cannot maintain the window function {name} yet")


def _frame(frame: Frame | None) -> FrameOfRows:
    if frame is None:
        return FrameOfRows()
    return FrameOfRows(frame.lower, frame.upper, "rows" if frame.unit == "rows" else "range")


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.value is None


def _whole(expression: Expression, of: str) -> int:
    """Return a number that stands in the query."""
    if isinstance(expression, Call) and expression.function in {"negate", "cast"}:
        inner = _whole(expression.args[0], of)
        return -inner if expression.function == "negate" else inner
    if isinstance(expression, Literal) and isinstance(expression.value, int):
        return expression.value
    raise PipelineError(
        f"{of}() takes a number that stands in the query",
        remedy="write it as a constant",
    )


def first_ranks(condition: Filter) -> int | None:
    """Return how many of the first rows of each partition can pass a filter, by their rank.

    None if the filter is not behind a window that does nothing but rank, or has no such bound.
    """
    place = _rank_column(condition.child)
    if place is None:
        return None
    bounds = [_bound(part, place) for part in conjuncts(condition.condition)]
    known = [one for one in bounds if one is not None]
    return max(min(known), 0) if known else None


def _rank_column(relation: Relation) -> int | None:
    """Return the place of a rank among the columns of a relation."""
    if isinstance(relation, Window):
        names = [one.function for one in relation.functions]
        is_rank = len(names) == 1 and names[0] in RANKINGS
        return len(relation.columns) - 1 if is_rank else None
    if isinstance(relation, Project):
        place = _rank_column(relation.child)
        for at, one in enumerate(relation.expressions):
            if place is not None and isinstance(one, Ref) and one.index == place:
                return at
    return None


def _bound(part: Expression, place: int) -> int | None:
    """Return the greatest rank of which a condition can be true."""
    if not isinstance(part, Call) or len(part.args) != 2:
        return None
    one, other = part.args
    function = part.function
    if isinstance(one, Literal):
        one, other = other, one
        function = {"greater": "less", "greater_or_equal": "less_or_equal"}.get(
            function, function if function == "equal" else ""
        )
    if not (isinstance(one, Ref) and one.index == place and isinstance(other, Literal)):
        return None
    if not isinstance(other.value, int) or isinstance(other.value, bool):
        return None
    return {"less": other.value - 1, "less_or_equal": other.value, "equal": other.value}.get(
        function
    )
