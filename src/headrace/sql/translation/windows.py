"""Window functions of Catalyst as those of the IR."""

from __future__ import annotations

from headrace.errors import PipelineError
from headrace.sql.ir.expressions import Call, Expression, Frame, Literal, WindowFunction
from headrace.sql.ir.types import SqlType
from headrace.sql.translation.aggregates import aggregate
from headrace.sql.translation.expressions import Scope
from headrace.sql.translation.functions import WINDOW
from headrace.sql.translation.tree import Node

#: The microseconds of a day.
_DAY = 86_400_000_000


def window_function(node: Node, scope: Scope) -> WindowFunction:
    """Return a window function.

    Args:
        node: an ``Alias`` of a ``WindowExpression``.
        scope: what its arguments refer to.
    """
    expression = node.children[0]
    if expression.name != "WindowExpression":
        raise PipelineError("a window has something that is no window function", place=scope.sql)
    call, definition = expression.children
    frame = _frame(definition, scope)
    kind = scope.type(expression)
    if call.name == "AggregateExpression":
        inner = aggregate(call, scope, ordered=True)
        return WindowFunction("aggregate", (), kind, expression.nullable, inner, frame)
    function = WINDOW.get(call.name)
    if function is None:
        raise PipelineError(f"a view cannot have the window function {call.name}", place=scope.sql)
    # Ranks have the order of the window as arguments; only the order itself matters.
    is_rank = function in {"rank", "dense_rank", "percent_rank", "cume_dist", "row_number"}
    args = () if is_rank else tuple(scope.expression(one) for one in call.children)
    options: tuple[tuple[str, str], ...] = ()
    if call.fields.get("ignore_nulls"):
        options = (("ignore_nulls", "true"),)
    return WindowFunction(function, args, kind, expression.nullable, None, frame, options)


def _frame(definition: Node, scope: Scope) -> Frame:
    *parts, frame = definition.children
    unit = "rows" if frame.fields["unit"].startswith("Row") else "range"
    kinds = [scope.type(one.children[0]) for one in parts if one.name == "SortOrder"]
    lower, upper = (_bound(one, kinds, scope) for one in frame.children)
    return Frame(unit, lower, upper)


def _bound(node: Node, order: list[SqlType], scope: Scope) -> int | None:
    """Return the distance of a bound; of a range, in the unit of what the rows are ordered by."""
    if node.name.startswith("Unbounded"):
        return None
    if node.name.startswith("CurrentRow"):
        return 0
    value = scope.expression(node)
    if not value.type.is_integer and value.type.name != "day_time":
        raise PipelineError(
            f"a view cannot have a window frame with a distance of the type {value.type}",
            place=scope.sql,
            remedy="order by an integer, a date or a timestamp, and give a distance in whole numbers, "
            "or an INTERVAL of days or less",
        )
    distance = _constant(value)
    if distance is None:
        raise PipelineError("the bounds of a window frame must be constants", place=scope.sql)
    is_by_date = value.type.name == "day_time" and [one.name for one in order] == ["date"]
    return distance // _DAY if is_by_date else distance


def _constant(value: Expression) -> int | None:
    # the optimizer has folded constants; a bound before the current row may still be a negation
    if isinstance(value, Call) and value.function == "negate":
        inner = _constant(value.args[0])
        return None if inner is None else -inner
    if not isinstance(value, Literal) or value.value is None:
        return None
    return int(value.value)
