"""A sink that calls a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.pipeline.sink import Delivery, Sink


class Calls(Sink):
    """Calls a function in the driver, once for each step that produced something.

    Args:
        function: takes the step and a ``pyarrow.Table``. If it has exactly one parameter without a
            default, it takes a :class:`~headrace.sinks.Delivery`, which also says where the rows
            come from.
        idempotent: whether a repeated step has no further effect, for people who read the pipeline.
            Set it if the function uses the step to recognise what it has seen. The function is
            called the same way in either case: after a crash the last steps come again, with the
            same numbers and rows.

    Example::

        def receive(step, rows):
            for row in rows.to_pylist():
                print(row["key"], row["value"])


        p.sink("totals", visits, hr.sinks.Calls(receive))
    """

    def __init__(
        self,
        function: Callable[[int, pa.Table], object] | Callable[[Delivery], object],
        *,
        idempotent: bool = False,
    ) -> None:
        self._function: Callable[..., object] = function
        self._takes_delivery = _parameters(function) == 1
        self.idempotent = idempotent

    def target(self) -> str:
        module = getattr(self._function, "__module__", "")
        name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return f"{module}.{name}()" if module else f"{name}()"

    def deliver(self, step: int, rows: pa.Table) -> None:
        self._function(step, rows)

    def receive(self, delivery: Delivery) -> None:
        if self._takes_delivery:
            self._function(delivery)
        else:
            self.deliver(delivery.id, delivery.rows)


def _parameters(function: Callable[..., Any]) -> int | None:
    """Return the number of a function's required positional parameters; None if it is not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(item.kind is item.VAR_POSITIONAL for item in parameters):
        return None
    needed = [
        item
        for item in parameters
        if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
        and item.default is item.empty
    ]
    return len(needed)
