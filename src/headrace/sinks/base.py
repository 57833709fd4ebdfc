"""What a sink is: a place that each committed step's productions are delivered to, once a step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa


class Sink(ABC):
    """Base of all sinks.

    ``deliver`` is called after the commit of the step, in the driver, steps in ascending order and one
    at a time; on Spark in a thread of its own, while the next step may be running already. At most
    two committed steps are undelivered. A crash between delivery and the note of it repeats the
    last steps: a sink whose ``deliver`` of the same step twice has the effect of once makes the
    pipeline exactly-once end to end.
    """

    #: Whether delivering a step again has no further effect.
    idempotent: bool = False

    @abstractmethod
    def deliver(self, step: int, rows: pa.Table) -> None:
        """Deliver a step's productions.

        Args:
            step: the step that produced them; the same rows bear the same step for ever.
            rows: columns ``key`` (or ``key0``, ``key1``, … for a tuple), ``timestamp`` and the
                value's columns, in the order of (key hash, key, emission).
        """

    def close(self) -> None:
        """Let go of what the sink holds."""
