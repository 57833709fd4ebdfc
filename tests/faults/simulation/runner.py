"""A runner whose tasks run side by side, are tried twice, given up and go on, and lose their processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from headrace.errors import TaskTimeout
from headrace.pipeline import Pipeline
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.base import EngineFailed, Runner
from headrace.storage.base import Store
from headrace.tasks.state_cache import SoftState
from headrace.tasks.task import TaskResult
from headrace.tasks.worker import Worker
from tests.faults.simulation.kernel import Actor, Kernel
from tests.faults.simulation.storage import HANGS_US, LONG_US, Disk, ProcessStore

#: A task is run again so often before its try is given up.
_ATTEMPTS = 3
#: What happens to tasks does so some time after they began: at once, in the middle, or when some are done.
_STRIKES_AFTER_US = [1, 2_000, 10_000, 40_000]


class _Lost(Exception):
    """A message has not arrived."""


class _Process:
    """A process that runs tasks: what it remembers, and how it sees the storage."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.name = name
        self.soft = SoftState()
        self.store = ProcessStore(disk)


class SimulatedRunner(Runner):
    """Runs tasks as actors, in processes that can die.

    Args:
        kernel: runs them.
        disk: what processes see of the storage.
        name: the driver's.
        processes: how many processes there are, on one host.
        concurrent: whether sinks and intents have threads of their own, as on Spark.
    """

    def __init__(
        self, kernel: Kernel, disk: Disk, name: str, processes: int, *, concurrent: bool
    ) -> None:
        self.concurrent = concurrent
        self._kernel = kernel
        self._disk = disk
        self._name = name
        self._attempts = 0
        self._timeout_us = 0
        self._made = 0
        self._host = Disk(kernel, replace(disk.options, stale_list=0.0, lost_reply=0.0), disk)
        self._processes = [self._process() for _ in range(processes)]
        self._workers: dict[str, Worker] = {}
        self._process_of: dict[Worker, _Process] = {}
        self._pipeline: Pipeline | None = None
        self._running: dict[str, list[Actor]] = {}

    def _process(self) -> _Process:
        self._made += 1
        return _Process(f"{self._name}.process{self._made}", self._disk)

    def start(self, pipeline: Pipeline, store: Store, workers: int) -> None:
        self._pipeline = pipeline

    def warm_up(self, run_warm_up: Callable[[], None]) -> None:
        """Do nothing: all is warm here."""

    def run(self, plan: StepPlan) -> list[TaskReport]:
        assert self._pipeline is not None
        self._timeout_us = plan.timeout_us
        reports: list[TaskReport] = []
        results = self._all(
            [
                lambda worker, task_attempt, n=reader: worker.read(plan, n, task_attempt)
                for reader in range(plan.readers)
            ]
        )
        for layer in range(1, self._pipeline.layers + 1):
            reports += [result.report for result in results]
            arrived = results

            def apply(
                worker: Worker, task_attempt: str, number: int, layer: int = layer
            ) -> TaskResult:
                payload = [result.parcels[number] for result in arrived]  # noqa: B023
                self._kernel.rng.shuffle(payload)
                for _ in payload:
                    self._message(self._process_of[worker], "a parcel")
                return worker.apply(plan, layer, number, task_attempt, payload)

            results = self._all(
                [
                    lambda worker, task_attempt, n=number, do=apply: do(worker, task_attempt, n)
                    for number in range(plan.layout.workers)
                ]
            )
        return reports + [result.report for result in results]

    def _all(self, tasks: list[Callable[[Worker, str], TaskResult]]) -> list[TaskResult]:
        """Run tasks side by side; those that fail are run again, a few times."""
        kernel = self._kernel
        left = list(enumerate(tasks))
        found: dict[int, TaskResult] = {}
        for _ in range(_ATTEMPTS):
            actors = [(number, self._begin(task)) for number, task in left]
            if self._fault(self._disk.options.executor, "executor dies", actors):
                self._kill([kernel.rng.randrange(len(self._processes))])
            if self._fault(self._disk.options.host, "host dies", actors):
                self._kill(range(len(self._processes)))
                self._host.store.clear()
            if self._fault(self._disk.options.zombie, "task given up", actors):
                kernel.freeze(kernel.rng.choice(actors)[1], kernel.rng.choice(LONG_US))
                raise EngineFailed("a task was given up")
            if self._fault(self._disk.options.twice, "task run twice", actors):
                number, slow = kernel.rng.choice(actors)
                kernel.freeze(slow, kernel.rng.choice(LONG_US))
                actors = [pair for pair in actors if pair[1] is not slow]
                actors.append((number, self._begin(tasks[number])))
            if self._fault(self._disk.options.task_hangs, "a task hangs", actors):
                number, hanging = kernel.rng.choice(actors)
                kernel.freeze(hanging, HANGS_US)
                kernel.sleep(self._timeout_us)
                self._kill(self._where(hanging))
                raise TaskTimeout(f"task {number} has not come to its end")
            kernel.wait_for([actor for _, actor in actors])
            for number, actor in actors:
                if actor.error is not None:
                    raise actor.error  # tasks report what goes wrong; they do not raise it
                if actor.result is not None:
                    found[number] = actor.result
            left = [(number, task) for number, task in left if number not in found]
            if not left:
                return [found[number] for number in range(len(tasks))]
        raise EngineFailed("a task failed too often")

    def _fault(self, share: float, name: str, tasks: list[tuple[int, Actor]]) -> bool:
        """Draw whether something happens to tasks; let them come some way until then."""
        if not self._disk.fault(share, name):
            return False
        self._kernel.sleep(self._kernel.rng.choice(_STRIKES_AFTER_US))
        if any(task.begun and not task.done for _, task in tasks):
            self._kernel.saw(f"{name}, in the middle of a task")
        return True

    def _where(self, task: Actor) -> list[int]:
        """Return the process that runs a task, if it still does."""
        return [
            at
            for at, process in enumerate(self._processes)
            if any(one is task for one in self._running.get(process.name, []))
        ]

    def _begin(self, task: Callable[[Worker, str], TaskResult]) -> Actor:
        at = self._kernel.rng.randrange(len(self._processes))
        if self._processes[at].store.dead:
            self._processes[at] = self._process()
        process = self._processes[at]
        assert self._pipeline is not None
        pipeline = self._pipeline
        worker = self._workers.get(process.name)
        if worker is None:
            worker = Worker(
                pipeline,
                pipeline.name,
                process.store,
                process.soft,
                soft_files=ProcessStore(self._host, process.store),
                timer=lambda: self._kernel.now_us / 1e6,
            )
            self._workers[process.name] = worker
            self._process_of[worker] = process
        self._attempts += 1
        task_attempt = str(self._attempts)
        actor = self._kernel.spawn(
            f"{process.name}.{task_attempt}",
            lambda: self._reported(process, lambda: task(worker, task_attempt)),
        )
        running = self._running.setdefault(process.name, [])
        running[:] = [*(one for one in running if not one.done), actor]
        return actor

    def _reported(self, process: _Process, task: Callable[[], TaskResult]) -> TaskResult | None:
        """Run a task; return what comes of it, or None where that is lost."""
        try:
            self._message(process, "a task begins")
            result = task()
            self._message(process, "a task reports")
        except _Lost:
            return None
        return result

    def _message(self, process: _Process, what: str) -> None:
        process.store.effect(what, "crash at a message")
        if self._disk.fault(self._disk.options.message, "a message is lost"):
            raise _Lost

    def _kill(self, which: Iterable[int]) -> None:
        for at in which:
            process = self._processes[at]
            process.store.dead = True
            for actor in self._running.pop(process.name, []):
                self._kernel.kill(actor)
            self._processes[at] = self._process()

    def close(self) -> None:
        """Let tasks go on that nobody waits for: an executor does not know that its driver is gone."""
