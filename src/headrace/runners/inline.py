"""The inline runner: all tasks run in this process, one after another.

It calls the same functions that run on Spark, with real parcels. It shuffles the order in which
parcels arrive, under a seed. A result that depended on this order would differ between seeds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from headrace.errors import Cancelled, HeadraceError
from headrace.pipeline import Pipeline
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.base import Runner
from headrace.runners.ending import TaskWatch
from headrace.runners.memory import process_memory
from headrace.runners.spark.code_shipping import check_sendable
from headrace.storage.base import Store
from headrace.storage.memory import MemoryStore
from headrace.tasks.state_cache import SoftState
from headrace.tasks.task import TaskResult
from headrace.tasks.worker import Worker


class InlineRunner(Runner):
    """Runs attempts in this process.

    Args:
        seed: seeds the order in which parcels arrive.
        processes: how many Python processes to simulate. Tasks alternate between as many soft
            states.
        timer: the clock that tasks use for their reports, in seconds.
        watched: whether a thread watches for cancellation and for tasks that take too long.
        ends_process: whether the process may be ended if nothing else can end a task.
    """

    def __init__(
        self,
        seed: int = 0,
        processes: int = 1,
        timer: Callable[[], float] = time.perf_counter,
        *,
        watched: bool = True,
        ends_process: bool = False,
    ) -> None:
        self._timer = timer
        self._rng = random.Random(seed)
        self._soft = [SoftState() for _ in range(processes)]
        self._soft_files = MemoryStore()  # everything is on one host
        self._attempts = 0
        self._watch = TaskWatch(ends_process=ends_process) if watched else None
        self._workers: list[Worker] = []
        self._topologies = 0

    def start(self, pipeline: Pipeline, store: Store, workers: int) -> None:
        check_sendable(pipeline)
        self._workers = self._made(pipeline, pipeline.name, store)

    def prepare(self, pipeline: Pipeline) -> Callable[[], None]:
        check_sendable(pipeline)
        store = self._workers[0].store

        def switch() -> None:
            self._topologies += 1
            code = f"{pipeline.name}, topology {self._topologies}"
            self._workers = self._made(pipeline, code, store)
            for soft in self._soft:
                soft.drop_older(store.location, code)

        return switch

    def _made(self, pipeline: Pipeline, code: str, store: Store) -> list[Worker]:
        return [
            Worker(
                pipeline,
                code,
                store,
                soft,
                soft_files=self._soft_files,
                timer=self._timer,
                memory=process_memory,
            )
            for soft in self._soft
        ]

    def drop_soft_state(self) -> None:
        """Lose everything that is soft, as if the host had died. For tests."""
        self._soft_files.clear()
        for soft in self._soft:
            soft.forget()

    def run(self, plan: StepPlan) -> list[TaskReport]:
        if self._watch is None:
            return self._run(plan)
        with self._watch.watching(plan):
            return self._run(plan)

    def end_attempt(self, error: HeadraceError, *, force: bool) -> None:
        if isinstance(error, Cancelled) and self._watch is not None:
            self._watch.cancel()

    def why_ending(self) -> HeadraceError | None:
        return None if self._watch is None else self._watch.why_ending

    def _run(self, plan: StepPlan) -> list[TaskReport]:
        reports: list[TaskReport] = []
        results = [
            self._any().read(plan, reader, self._attempt()) for reader in range(plan.readers)
        ]
        for layer in range(1, self._workers[0].pipeline.layers + 1):
            reports += [result.report for result in results]
            results = [
                self._any().apply(
                    plan, layer, worker, self._attempt(), self._arrived(results, worker)
                )
                for worker in range(plan.layout.workers)
            ]
        return reports + [result.report for result in results]

    def _any(self) -> Worker:
        return self._rng.choice(self._workers)

    def _attempt(self) -> str:
        self._attempts += 1
        return str(self._attempts)

    def _arrived(self, results: list[TaskResult], worker: int) -> list[bytes]:
        payload = [result.parcels[worker] for result in results]
        self._rng.shuffle(payload)
        return payload

    def close(self) -> None:
        for soft in self._soft:
            soft.forget()
