"""Window functions of Catalyst as those of the IR."""

from __future__ import annotations

from headrace.errors import PipelineError
from headrace.sql.ir.expressions import Frame, Literal, WindowFunction
from headrace.sql.translation.aggregates import aggregate
from headrace.sql.translation.expressions import Scope
from headrace.sql.translation.functions import WINDOW
from headrace.sql.translation.tree import Node


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
    frame = _frame(definition.children[-1], scope)
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


def _frame(node: Node, scope: Scope) -> Frame:
    unit = "rows" if node.fields["unit"].startswith("Row") else "range"
    lower, upper = node.children
    return Frame(unit, _bound(lower, scope), _bound(upper, scope))


def _bound(node: Node, scope: Scope) -> int | None:
    if node.name.startswith("Unbounded"):
        return None
    if node.name.startswith("CurrentRow"):
        return 0
    value = scope.expression(node)
    if isinstance(value, Literal) and value.value is not None:
        return int(value.value)
    # the optimizer has folded constants; a bound before the current row may still be a negation
    if not isinstance(value, Literal) and getattr(value, "function", "") == "negate":
        inner = value.args[0]  # type: ignore[union-attr]
        if isinstance(inner, Literal) and inner.value is not None:
            return -int(inner.value)
    raise PipelineError("the bounds of a window frame must be constants", place=scope.sql)
