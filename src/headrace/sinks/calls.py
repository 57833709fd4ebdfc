"""A sink that calls a function."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from headrace.sinks.base import Sink


class Calls(Sink):
    """Calls ``function(step, batch)`` in the driver, once a committed step that produced something.

    Args:
        function: takes the step and a ``pyarrow.Table``.
        idempotent: whether a repeated step has no further effect; say so if the function uses the
            step to recognise what it has seen. Otherwise delivery is at least once: after a crash the
            last steps come again, with the same numbers and the same rows.
    """

    def __init__(
        self, function: Callable[[int, pa.Table], object], *, idempotent: bool = False
    ) -> None:
        self._function = function
        self.idempotent = idempotent

    def deliver(self, step: int, rows: pa.Table) -> None:
        self._function(step, rows)
