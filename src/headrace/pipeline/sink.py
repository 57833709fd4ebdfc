"""What a sink is: a place that each step's productions are delivered to."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import PipelineError


class Delivery(msgspec.Struct, frozen=True):
    """What a sink receives of a step.

    Attributes:
        id: names these rows for ever. It ascends from delivery to delivery, and stays the same when they
            are delivered again, by whatever driver; no other rows of the stream ever bear it.
        step: the step that commits them. It is the id, unless a driver had to run a step again that
            another one had begun to show to a weak sink.
        rows: columns ``key`` (or ``key0``, ``key1``, … for a tuple), ``timestamp`` and the value's
            columns by their names outside (``rename=``), in the order of (key hash, key, emission). A
            column of ours whose name the value has, too, gets underscores in front.
        positions: by injector, the (start, end) of the input that the step read. An injector from which
            it read nothing is missing. Of the step: the rows may also come of what was read before,
            and was kept in state.
        weak: whether this comes before the step's commit.
        epoch: the number of the driver that delivers; it goes up with each. A driver that is inside a
            delivery when another one takes over may still write. A sink that can compare numbers in the
            same transaction can refuse that: what comes with a lower epoch than it has seen is stale.
    """

    id: int
    step: int
    rows: pa.Table
    positions: dict[str, tuple[Any, Any]]
    weak: bool = False
    epoch: int = 0


class Sink:
    """Base of all sinks. One of your own defines :meth:`deliver`, or :meth:`receive` to be told more.

    Called in the driver, steps in ascending order and one at a time. On Spark each sink has a thread
    of its own: others, and the steps that follow, do not wait for it until the outbox is full
    (``Settings.outbox_steps``, ``outbox_bytes``). What it raises stops the pipeline, and the step comes
    again at the next start.

    A strong sink (the default) receives a step after its commit. A crash between delivery and the
    note of it repeats what was delivered last: a sink whose ``deliver`` of the same step twice has the
    effect of once makes the pipeline exactly-once end to end. A weak one receives it before the
    commit; the same is true of it.
    """

    #: Whether delivering a step again has no further effect; for who reads the drawing.
    idempotent: bool = False

    def check(self, columns: pa.Schema) -> None:
        """Refuse what this sink could not deliver. Called where the pipeline is drawn.

        Args:
            columns: those that :meth:`deliver` will get, by the names that they will have.

        Raises:
            PipelineError: to refuse.
        """

    def occupies(self) -> str:
        """Return where it writes under names that no other sink of the pipeline may write; "" for nowhere.

        Two sinks of a pipeline that give the same are refused where the pipeline is drawn.
        """
        return ""

    def deliver(self, step: int, rows: pa.Table) -> None:
        """Deliver a step's productions.

        Args:
            step: the delivery's id; the same rows bear it for ever.
            rows: see :class:`Delivery`.
        """
        raise PipelineError(
            f"{type(self).__name__} is a sink that delivers nothing",
            remedy="define deliver(self, step, rows), or receive(self, delivery)",
        )

    def receive(self, delivery: Delivery) -> None:
        """Deliver a step's productions, told where they come from; by default :meth:`deliver`."""
        self.deliver(delivery.id, delivery.rows)

    def close(self) -> None:
        """Let go of what the sink holds."""
