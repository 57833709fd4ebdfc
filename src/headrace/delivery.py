"""Delivery: each sink has a thread and a queue of its own, so that a slow one holds up no other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from headrace.coordinator.messages import Released
from headrace.productions import Productions
from headrace.sinks.base import Delivery
from headrace.stopwatch import DELIVER, Stopwatch
from headrace.storage.base import Store
from headrace.topology import Pipeline, SinkNode


class _Ended(msgspec.Struct, frozen=True):
    """A delivery that is over: acknowledged, or failed."""

    released: Released
    error: BaseException | None = None


class Deliveries:
    """Gives sinks what steps have produced, in the order in which it is told to.

    Args:
        pipeline: whose sinks.
        store: where staged productions are.
        stopwatch: is told what sinks take.
        concurrent: whether sinks have threads; otherwise :meth:`give` returns when all is delivered.

    Attributes:
        news: set whenever a delivery is over.
    """

    def __init__(
        self, pipeline: Pipeline, store: Store, stopwatch: Stopwatch, *, concurrent: bool
    ) -> None:
        self.news = threading.Event()
        self._sinks = pipeline.sinks
        self._store = store
        self._stopwatch = stopwatch
        self._threads = (
            {name: ThreadPoolExecutor(1, f"headrace-sink-{name}") for name in self._sinks}
            if concurrent
            else {}
        )
        self._failed: set[str] = set()
        self._ended: deque[_Ended] = deque()

    def give(self, sinks: Iterable[str], productions: Productions) -> None:
        """Let sinks receive a step, after what they were given before."""
        for name in sinks:
            if self._threads:
                self._threads[name].submit(self._deliver, self._sinks[name], productions)
            else:
                self._deliver(self._sinks[name], productions)

    def released(self) -> list[Released]:
        """Return what was acknowledged since the last call.

        Raises:
            BaseException: what a sink raised. It receives nothing more, so that its order is kept.
        """
        found = []
        while self._ended:
            ended = self._ended.popleft()
            if ended.error is not None:
                raise ended.error
            found.append(ended.released)
        return found

    def close(self) -> None:
        """Wait for the deliveries that are under way; those in queues are for the next start."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)

    def _deliver(self, node: SinkNode, productions: Productions) -> None:
        if node.name in self._failed:
            return
        error: BaseException | None = None
        try:
            with self._stopwatch.phase(DELIVER):
                self._receive(node, productions)
        except BaseException as raised:  # raised again where somebody can act on it
            error = raised
            self._failed.add(node.name)
        self._ended.append(_Ended(Released(node.name, productions.step), error))
        self.news.set()

    def _receive(self, node: SinkNode, productions: Productions) -> None:
        rows = productions.table(node.stream, self._store)
        if rows is None:
            return
        origin = productions.origin
        early = not productions.committed
        node.sink.receive(Delivery(origin.id, productions.step, rows, origin.positions, weak=early))
