"""Delivery to sinks. Each sink has its own thread and queue, so a slow sink delays no other.

A delivery starts only while the driver is known to lead (:mod:`headrace.driver.leadership_proof`).
So what is still in the queues of a driver that another has replaced is never delivered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from headrace.coordinator.messages import Released
from headrace.coordinator.step_output import StepDelivery
from headrace.driver.leadership_proof import NotBegun, Proof
from headrace.driver.outputs import table_of
from headrace.driver.phase_timer import DELIVER, Stopwatch, delivery_to
from headrace.errors import SinkTimeout
from headrace.errors.printable import without_secrets
from headrace.errors.user_code import blamed
from headrace.ledger.ledger import Ledger
from headrace.pipeline import Pipeline, SinkNode
from headrace.pipeline.sink import Deliverer, Delivery, Sink
from headrace.storage.base import Store

log = logging.getLogger("headrace")

_REMEDY = (
    "fix the sink, or what it writes to, and start again: nothing is lost, and what it has not "
    "acknowledged is delivered again"
)
#: Stands for no limit: longer than anyone waits, and short enough for a lock.
_NO_LIMIT_S = 1e6


class _Ended(msgspec.Struct, frozen=True):
    """A delivery that is over: acknowledged, or failed."""

    released: Released
    error: BaseException | None = None


class UnderWay(msgspec.Struct, frozen=True):
    """A delivery that a sink is working on.

    Attributes:
        sink: the sink's name.
        step: the step that is delivered.
        since_s: its start by the monotonic clock.
    """

    sink: str
    step: int
    since_s: float


class _Queue:
    """The steps that a sink has still to receive, and the thread that delivers them.

    The thread is a daemon: a sink that never returns must not keep the process alive.
    """

    def __init__(self, name: str, deliver: Callable[[StepDelivery], None]) -> None:
        self._deliver = deliver
        self._waiting: deque[StepDelivery] = deque()
        self._closed = False
        self._changed = threading.Event()
        self._over = threading.Event()
        self._name = name
        self._begun = False

    def give(self, delivery: StepDelivery) -> None:
        """Add a step to the end of the queue."""
        self._waiting.append(delivery)
        self._changed.set()
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Deliver nothing more from the queue."""
        self._closed = True
        self._changed.set()

    def wait(self, within_s: float) -> bool:
        """Wait until the running delivery is over. Return whether it is."""
        return not self._begun or self._over.wait(within_s)

    def _run(self) -> None:
        try:
            while not self._closed:
                if self._waiting:
                    self._deliver(self._waiting.popleft())
                else:
                    self._changed.clear()
                    if not (self._waiting or self._closed):
                        self._changed.wait()
        finally:
            self._over.set()


class Deliveries:
    """Gives sinks the output of steps, in the order of the calls.

    Args:
        pipeline: the pipeline that has the sinks.
        store: where staged productions are.
        stopwatch: measures how long sinks take.
        proof: checks whether the driver still leads.
        concurrent: whether sinks have threads; otherwise :meth:`give` returns after the delivery.
        timeout_s: how long a delivery may take; None for no limit.

    Attributes:
        delivered: set whenever a delivery is over.
        received: by sink, the step up to which :meth:`released` has returned acknowledgements.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        store: Store,
        stopwatch: Stopwatch,
        proof: Proof,
        *,
        concurrent: bool,
        timeout_s: float | None = None,
    ) -> None:
        self.delivered = threading.Event()
        self.received: dict[str, int] = {}
        self._sinks = pipeline.sinks
        self._store = store
        self._stopwatch = stopwatch
        self._proof = proof
        self._timeout_s = timeout_s
        self._queues = (
            {name: self._queue(node) for name, node in self._sinks.items()} if concurrent else {}
        )
        self._failed: set[str] = set()
        self._pipeline = pipeline.name
        self._begun: set[str] = set()
        self._newest: dict[str, int] = {}  # by sink, the id of the delivery that it received last
        self._abandoned = False
        self._closed = False
        self._lock = threading.Lock()  # so that no delivery starts after close()
        self._under_way: dict[str, UnderWay] = {}
        self._ended: deque[_Ended] = deque()

    def _queue(self, node: SinkNode) -> _Queue:
        return _Queue(f"headrace-sink-{node.name}", lambda delivery: self._deliver(node, delivery))

    def give(self, sinks: Iterable[str], delivery: StepDelivery) -> None:
        """Let sinks receive a step, after all that they were given before."""
        for name in sinks:
            if self._queues:
                self._queues[name].give(delivery)
            else:
                self._deliver(self._sinks[name], delivery)

    def released(self) -> list[Released]:
        """Return the deliveries that were acknowledged since the last call.

        Raises:
            HeadraceError: what a sink raised. That sink receives nothing more, so its order is
                kept.
            Fenced: if another driver leads. Then nothing more was delivered.
            SinkTimeout: if a delivery takes too long.
        """
        found = []
        while self._ended:
            ended = self._ended.popleft()
            if ended.error is not None:
                raise ended.error
            released = ended.released
            self.received[released.sink] = max(self.received.get(released.sink, -1), released.step)
            found.append(released)
        self._check_times()
        return found

    def lagging(self, until: Mapping[str, int]) -> list[str]:
        """Return the sinks that are not known to have received everything up to a step.

        Args:
            until: the step, by sink.
        """
        return [sink for sink, step in until.items() if self.received.get(sink, -1) < step]

    @property
    def under_way(self) -> list[UnderWay]:
        """The deliveries that sinks are working on."""
        return list(self._under_way.values())

    def next_timeout_s(self) -> float:
        """Return the seconds until the first running delivery will have taken too long."""
        if self._timeout_s is None:
            return float("inf")
        since = min((one.since_s for one in self.under_way), default=None)
        return float("inf") if since is None else since + self._timeout_s - time.monotonic()

    def _check_times(self) -> None:
        if self._timeout_s is None:
            return
        for one in self.under_way:
            took_s = time.monotonic() - one.since_s
            if took_s >= self._timeout_s:
                raise sink_timeout(one, took_s)

    def close(self) -> None:
        """Wait for the running deliveries. What is still queued is delivered after the next start.

        A sink that takes too long is left alone. Its thread ends with the process.
        """
        with self._lock:
            self._closed = True
        for queue in self._queues.values():
            queue.close()
        for name, queue in self._queues.items():
            one = self._under_way.get(name)
            if one is not None and not queue.wait(self._left_s(one)):
                log.warning(
                    "sink %r has not returned from the delivery of step %d, and is left alone",
                    name,
                    one.step,
                )

    def abandon(self) -> None:
        """Start no more deliveries, and let :meth:`close` wait for none. Safe from any thread."""
        self._abandoned = True
        with self._lock:
            self._closed = True

    def _left_s(self, one: UnderWay) -> float:
        if self._abandoned:
            return 0.0
        if self._timeout_s is None:
            return _NO_LIMIT_S
        return max(0.0, one.since_s + self._timeout_s - time.monotonic())

    def _deliver(self, node: SinkNode, delivery: StepDelivery) -> None:
        if node.name in self._failed:
            return
        error: BaseException | None = None
        try:
            with self._stopwatch.phase(DELIVER), self._stopwatch.phase(delivery_to(node.name)):
                self._receive(node, delivery)
        except NotBegun:
            return
        except BaseException as raised:  # raised again by released()
            error = raised
            self._failed.add(node.name)
        finally:
            self._under_way.pop(node.name, None)
        newest = self._newest.get(node.name, -1)
        self._ended.append(_Ended(Released(node.name, delivery.step, newest), error))
        self.delivered.set()

    def _receive(self, node: SinkNode, delivery: StepDelivery) -> None:
        rows = table_of(delivery.output, node.stream, self._store)
        if rows is None:
            return
        origin, step = delivery.origin, delivery.step
        epoch = self._proof.require(lambda: self._closed)
        with self._lock:
            if self._closed:
                raise NotBegun
            self._under_way[node.name] = UnderWay(node.name, step, time.monotonic())
        with blamed(_place(node.name, step), _REMEDY):
            self._begin(node, origin.id)
            given = Delivery(
                origin.id,
                step,
                rows,
                origin.positions,
                weak=not delivery.committed,
                epoch=epoch,
                previous=self._newest[node.name],
            )
            node.sink.receive(given)
        self._newest[node.name] = given.id

    def _begin(self, node: SinkNode, next_id: int) -> None:
        """Let a sink get ready before its first delivery, if it wants to: that reads the storage."""
        if node.name in self._begun:
            return
        head = self._proof.head
        newest = -1 if head is None else head.newest_deliveries.get(node.name, -1)
        self._newest[node.name] = newest
        if type(node.sink).begin is not Sink.begin:
            node.sink.begin(self._deliverer(node.name, next_id))
        self._begun.add(node.name)

    def _deliverer(self, sink: str, next_id: int) -> Deliverer:
        """Return this run, as it begins to deliver to a sink."""
        head = self._proof.head
        steps = [] if head is None else list(head.unreleased)
        pending = {next_id} if head is None else {next_id, *(head.origin_of(n).id for n in steps)}
        delivered = -1 if head is None else head.delivered.get(sink, -1)
        return Deliverer(
            Ledger(self._store).lineage(),
            without_secrets(self._store.location),
            self._pipeline,
            sink,
            delivered,
            frozenset(pending),
            self._newest[sink],
        )


def _place(sink: str, step: int) -> str:
    return f"sink {sink!r}, step {step}"


def sink_timeout(one: UnderWay, took_s: float) -> SinkTimeout:
    """Return the error for a sink that does not return."""
    return SinkTimeout(
        f"sink {one.sink!r} has not returned from a delivery for {took_s:.0f} s",
        place=_place(one.sink, one.step),
        remedy="the step is committed, and is delivered again at the next start: see to what the sink "
        "writes to, or let it take longer (Settings.sink_timeout_us)",
    )
