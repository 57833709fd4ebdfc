"""A store whose calls take a unit of simulated time, and readings that run some of them at a time.

So a test counts how many calls a task waits for one after another. Nothing is measured, and nothing sleeps.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from headrace.migration.reading import AHEAD_AT_ONCE, READS_AT_ONCE
from headrace.pipeline import Pipeline
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.inline import InlineRunner
from headrace.storage.base import Store
from headrace.storage.memory import MemoryStore
from headrace.storage.reading import Reading
from headrace.tasks.state_cache import SoftState
from headrace.tasks.task import TaskResult


class Clock:
    """Simulated time, in calls of a store."""

    def __init__(self) -> None:
        self.now = 0


class Distant(Store):
    """A store that is far away: each call takes a unit of time.

    Args:
        store: the store.
        clock: goes on with each call.

    Attributes:
        calls: the (time, name) of each call, where it began.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.calls: list[tuple[int, str]] = []

    @property
    def location(self) -> str:
        return self._store.location

    def _take(self, name: str) -> None:
        self.calls.append((self._clock.now, name))
        self._clock.now += 1

    def create(self, name: str, data: bytes) -> None:
        self._take(f"create {name}")
        self._store.create(name, data)

    def write(self, name: str, data: bytes) -> None:
        self._take(f"write {name}")
        self._store.write(name, data)

    def write_all(self, files: dict[str, bytes]) -> None:
        if files:
            self._take(f"write {', '.join(files)}")
        self._store.write_all(files)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._take(f"read {name}")
        return self._store.read(name, offset, length)

    def list(self, prefix: str) -> list[str]:
        self._take(f"list {prefix}")
        return self._store.list(prefix)

    def delete(self, name: str) -> None:
        self._take(f"delete {name}")
        self._store.delete(name)


class _Begun(Future[Any]):
    """Work that was begun, and is done at a time of the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self.ends = clock, 0

    def done(self) -> bool:
        return self._clock.now >= self.ends

    def cancel(self) -> bool:
        return False  # it has begun

    def result(self, timeout: float | None = None) -> Any:
        self._clock.now = max(self._clock.now, self.ends)
        return super().result(timeout)


class Parallel(Reading):
    """Runs some reads at a time, by a clock. Different pieces of work share them.

    Args:
        clock: the clock.
        at_once: how many reads run at a time.
    """

    def __init__(self, clock: Clock, at_once: int = READS_AT_ONCE) -> None:
        self._clock = clock
        self._lanes = [0] * at_once  # when each is free
        self._lanes_beside = [0] * AHEAD_AT_ONCE

    def each(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        return self._each(self._lanes, do, items)

    def each_beside(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        return self._each(self._lanes_beside, do, items)

    def _each(
        self, lanes: list[int], do: Callable[[Any], Any], items: Iterable[Any]
    ) -> Iterable[Any]:
        began = ends = self._clock.now
        found = []
        for item in items:
            self._clock.now = max(began, heapq.heappop(lanes))
            found.append(do(item))
            heapq.heappush(lanes, self._clock.now)
            ends = max(ends, self._clock.now)
        self._clock.now = ends
        return found

    def beside(self, work: Callable[[], Any]) -> Future[Any]:
        return self.soon(work)

    def soon(self, work: Callable[[], Any]) -> Future[Any]:
        begun, now = _Begun(self._clock), self._clock.now
        try:
            begun.set_result(work())
        except Exception as error:
            begun.set_exception(error)
        begun.ends, self._clock.now = self._clock.now, now
        return begun


class DistantRunner(InlineRunner):
    """A process for each worker, as on Spark, and a store that is far away. Tasks of a layer run at a time.

    Args:
        workers: how many there may be.
        at_once: how many reads of a process run at a time.

    Attributes:
        waited: for each step, how many calls its workers have waited for one after another, at most.
        calls: for each step, the calls of all workers.
    """

    def __init__(self, workers: int, at_once: int = READS_AT_ONCE) -> None:
        super().__init__()
        self.clock = Clock()
        self._soft = [SoftState(Parallel(self.clock, at_once)) for _ in range(workers)]
        self.waited: dict[int, int] = {}
        self.calls: dict[int, list[tuple[int, str]]] = {}

    def start(self, pipeline: Pipeline, store: Store, workers: int) -> None:
        self.store = Distant(store, self.clock)
        super().start(pipeline, self.store, workers)

    def _run(self, plan: StepPlan) -> list[TaskReport]:
        self.store.calls.clear()
        began, of = self.clock.now, self._workers
        results = [of[0].read(plan, n, self._attempt()) for n in range(plan.readers)]
        reports = [result.report for result in results]
        for layer in range(1, of[0].pipeline.layers + 1):
            results = self._layer(plan, layer, results)
            reports += [result.report for result in results]
        self.waited[plan.step] = self.clock.now - began
        self.calls[plan.step] = [(at - began, name) for at, name in self.store.calls]
        self.clock.now += 1  # (the commit)
        return reports

    def _layer(self, plan: StepPlan, layer: int, before: list[TaskResult]) -> list[TaskResult]:
        began, ends, results = self.clock.now, [], []
        for n in range(plan.layout.workers):
            self.clock.now = began
            arrived = self._arrived(before, n)
            results.append(self._workers[n].apply(plan, layer, n, self._attempt(), arrived))
            ends.append(self.clock.now)
        self.clock.now = max(ends)
        return results


__all__ = ["Clock", "Distant", "DistantRunner", "MemoryStore", "Parallel"]
