"""The interface of a sink: a place to which each step's productions are delivered."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import PipelineError


class Delivery(msgspec.Struct, frozen=True):
    """What a sink receives of one step.

    Attributes:
        id: identifies these rows. It ascends from delivery to delivery. It stays the same if they
            are delivered again, also by another driver, and no other rows of the stream ever have
            it.
        step: the step that commits them. This is the id, with one exception: a driver had to run a
            step again that an earlier driver had already shown to a weak sink.
        rows: the columns ``key`` (or ``key0``, ``key1``, … for a tuple), ``timestamp``, and the
            value's columns under their names outside (``rename=``). Rows are in the order of (key
            hash, key, emission). If the value has a column of the same name, ours gets underscores
            in front.
        positions: by injector, the (start, end) of the input that the step read. Injectors from
            which it read nothing are missing. The rows may also result from earlier input that was
            kept in state.
        weak: whether this delivery comes before the step's commit.
        epoch: the epoch of the driver that delivers; each driver has a higher one. A driver that is
            inside a delivery when another driver takes over may still write. A sink can refuse that
            if it can compare epochs in the transaction that writes: a delivery with a lower epoch
            than it has seen is stale.
        previous: the id of the delivery before this one, which the sink has acknowledged; -1 if
            there was none, or if that is not known. A sink whose outputs are kept can check that
            it is still there, and refuse the gap otherwise, as ``Files`` does.

    Example::

        def receive(delivery: hr.sinks.Delivery) -> None:
            print(delivery.id, delivery.rows.num_rows, "rows from", delivery.positions)


        p.sink("totals", visits, hr.sinks.Calls(receive))
    """

    id: int
    step: int
    rows: pa.Table
    positions: dict[str, tuple[Any, Any]]
    weak: bool = False
    epoch: int = 0
    previous: int = -1


class Deliverer(msgspec.Struct, frozen=True):
    """The run that delivers to a sink. A sink can tell by it whether what it finds is its own.

    Attributes:
        lineage: identifies the storage: the same for all runs on it. A new storage in the same
            place, and a copy, have another one.
        location: where the storage is, for people; without passwords.
        pipeline, sink: the names of the pipeline and of the sink.
        delivered: this sink has acknowledged all deliveries up to this id; -1 for none.
        pending: the ids of committed deliveries that it has not acknowledged, and of the one that
            comes next. It may have received them.
        newest: the id of the newest delivery that it has acknowledged; -1 if none is known. It is
            at most ``delivered``: steps without rows are not delivered.

    Example::

        class Archive(hr.sinks.Sink):
            def begin(self, deliverer):
                print(f"sink {deliverer.sink} goes on after delivery {deliverer.delivered}")

            def deliver(self, step, rows):
                print(rows.num_rows)


        p.sink("archive", visits, Archive())
    """

    lineage: str
    location: str
    pipeline: str
    sink: str
    delivered: int = -1
    pending: frozenset[int] = frozenset()
    newest: int = -1


class Sink:
    """Base class of all sinks.

    Your own defines :meth:`deliver`, or :meth:`receive` to get more details.

    The driver calls it for one step at a time, in ascending order. On Spark each sink has a thread
    of its own. Other sinks and later steps do not wait for it until the outbox is full
    (``Settings.outbox_steps``, ``outbox_bytes``). An exception stops the pipeline, and the step is
    delivered again at the next start.

    A strong sink (the default) receives a step after its commit. A crash between a delivery and the
    note of it repeats the last delivery. If delivering a step twice has the effect of delivering it
    once, the pipeline is exactly-once end to end. A weak sink receives a step before its commit;
    the same holds for it.

    Example::

        class OneFileEach(hr.sinks.Sink):
            def deliver(self, step, rows):
                path = Path(f"{step}.json")  # a step that comes again writes the same file again
                path.write_text(json.dumps(rows.column("value").to_pylist()))


        p.sink("totals", visits, OneFileEach())
    """

    #: Whether delivering a step again has no further effect. For readers of the code: Headrace does
    #: not use it.
    idempotent: bool = False

    def check(self, columns: pa.Schema) -> None:
        """Refuse columns that the sink cannot deliver. Called when the pipeline is built.

        Args:
            columns: the columns that :meth:`deliver` will get, under the names that they will have.

        Raises:
            PipelineError: to refuse.
        """

    def occupies(self) -> str:
        """Return the place that only this sink may write to, or "" for no such place.

        Two sinks of a pipeline with the same place are refused when the pipeline is built.
        """
        return ""

    def target(self) -> str:
        """Return where the sink writes to, for people, without secrets; "" if that is not known.

        Observers show it where the sink is slow. By default it is the place of :meth:`occupies`.
        """
        return self.occupies()

    def begin(self, deliverer: Deliverer) -> None:
        """Get ready for the deliveries of a run. Called before its first delivery; by default empty.

        It may be called again for the same run, after its topology has changed.

        Raises:
            SinkConflict: to refuse, because what the sink writes to belongs to another run.
        """

    def deliver(self, step: int, rows: pa.Table) -> None:
        """Deliver a step's productions.

        Args:
            step: the delivery's id. The same rows always have it.
            rows: see :class:`Delivery`.
        """
        raise PipelineError(
            f"{type(self).__name__} is a sink that delivers nothing",
            remedy="define deliver(self, step, rows), or receive(self, delivery)",
        )

    def receive(self, delivery: Delivery) -> None:
        """Deliver a step's productions, with details about them.

        Calls :meth:`deliver` by default.
        """
        self.deliver(delivery.id, delivery.rows)

    def close(self) -> None:
        """Release the resources of the sink."""
