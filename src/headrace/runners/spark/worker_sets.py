"""Worker sets: workers of a Spark session, and the jobs that run a pipeline on them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from headrace.runners.spark import private_api, task_entry
from headrace.runners.spark.anchor import make_anchor, same
from headrace.runners.spark.preferred_hosts import PreferredHosts

#: Number of worker sets that are kept: the one that runs, and the next or the last one.
_MOST_WORKER_SETS = 2


#: Number of times that a job runs in a warm-up. This speeds up the JVM, too.
_WARM_UPS = 8


class WorkerSet:
    """A number of workers, and the jobs that run a pipeline's layers on them.

    Args:
        context: the SparkContext.
        preferred_hosts: the preferred hosts of workers.
        code: the pipeline's code.
        layers: its number of layers.
        workers: the number of workers.

    Attributes:
        layers: a job for each layer.
        read: a job that reads the division.
        keep_warm: a job that does nothing.
    """

    def __init__(
        self,
        context: Any,
        preferred_hosts: PreferredHosts,
        code: task_entry.Code,
        layers: int,
        workers: int,
    ) -> None:
        self._sc = context
        self._preferred_hosts = preferred_hosts
        self.code = code
        self._depth = layers
        self.workers = workers
        self._shuffle: tuple[Any, Any] | None = None
        self._anchor: Any = None
        with preferred_hosts.lock:
            preferred_hosts.of(workers)
            self._version = preferred_hosts.version
            self.layers = [
                self._job(functools.partial(task_entry.apply_one, code, layer))
                for layer in range(1, layers + 1)
            ]
            self.read = self._job(functools.partial(task_entry.read_share, code))
            self.keep_warm = self._job(task_entry.nothing)

    @property
    def is_in_place(self) -> bool:
        """Whether its jobs run where the workers live now."""
        return self._version == self._preferred_hosts.version

    def _job(self, task: Any, first: int = 0) -> Callable[[], list[Any]]:
        """Return a function that runs a task for each worker, as a one-stage job.

        Each worker has a pool of Python processes.
        """
        with self._preferred_hosts.lock:
            parts = [
                self._rdd(task, number, rdd_of_worker)
                for number, rdd_of_worker in enumerate(self._preferred_hosts.of(self.workers))
                if number >= first
            ]
        found: Callable[[], list[Any]] = private_api.lean_collector(self._sc.union(parts))
        return found

    def _rdd(self, task: Any, worker: int, rdd_of_worker: Any) -> Any:
        """Return the RDD of a task for a worker, which has a pool of processes of its own."""

        def made() -> Any:
            rdd = rdd_of_worker.mapPartitions(task)
            rdd._jrdd  # noqa: B018  (the environment is taken over when the JVM's RDD is made)
            return rdd

        return private_api.set_environment(made, self._sc, {"HEADRACE_WORKER": str(worker)})

    def job_of(self, worker: int, task: Any) -> Callable[[], list[Any]]:
        """Return a function that runs a task for one worker, where that lives."""
        with self._preferred_hosts.lock:
            rdd = self._rdd(task, worker, self._preferred_hosts.of(self.workers)[worker])
        found: Callable[[], list[Any]] = private_api.lean_collector(rdd)
        return found

    def warm_up(self, first: int) -> None:
        """Start the Python processes of the workers from number ``first`` on, and load the code."""
        if first < self.workers:
            self._job(functools.partial(task_entry.load, self.code), first)()

    def run_warm_up(self, run_warm_up: Callable[[], None]) -> None:
        """Start the Python processes of all workers, load the code, and warm them up.

        Args:
            run_warm_up: does in a process what steps do.
        """
        collect = self._job(functools.partial(task_entry.run_warm_up, self.code, run_warm_up))
        for _ in range(_WARM_UPS):
            collect()

    def shuffle(self) -> list[bytes]:
        """Run a whole step as one job through Spark's shuffle, and return the reports."""
        if self._shuffle is None:
            rdd = self._shuffle_rdd()
            self._shuffle = (
                private_api.lean_collector(rdd),
                private_api.shuffle_cleaner(rdd),
            )
        collect, clean = self._shuffle
        found: list[bytes] = collect()
        if clean is None:
            self._shuffle = None
        else:
            clean()
        return found

    def forget_shuffle(self) -> None:
        """Rebuild the shuffle for the next step.

        A job that failed may have left something behind. The anchor is rebuilt, too. If an executor
        is lost, so are its partitions, and Spark would compute them again anywhere.
        """
        self._shuffle = None
        self._drop_anchor()

    def _shuffle_rdd(self) -> Any:
        count = self.workers
        if self._anchor is None:
            hosts = self._preferred_hosts.hosts(count)
            self._anchor = None if hosts is None else make_anchor(self._sc, hosts)
        with self._preferred_hosts.lock:  # input is read there, too, not on a drained host
            every = self._sc.union(self._preferred_hosts.of(count))
        stage = every.mapPartitions(functools.partial(task_entry.read_one, self.code))
        for layer in range(1, self._depth + 1):
            parcels = stage.partitionBy(count, same)
            if self._anchor is not None:
                parcels = self._sc.union([parcels, self._anchor])
            stage = parcels.mapPartitionsWithIndex(
                functools.partial(task_entry.apply_shuffled, self.code, layer)
            )
        return stage

    def _drop_anchor(self) -> None:
        if self._anchor is not None:
            self._anchor.unpersist()
            self._anchor = None

    def close(self) -> None:
        """Release what the executors hold for it."""
        self._drop_anchor()


class WorkerSets:
    """The worker sets that are ready to run one version of a pipeline's code, by number of workers.

    Another topology has worker sets of its own. May be used from any thread.

    Args:
        context: the SparkContext.
        preferred_hosts: the preferred hosts of workers.
        code: the pipeline's code.
        layers: its number of layers.
    """

    def __init__(
        self, context: Any, preferred_hosts: PreferredHosts, code: task_entry.Code, layers: int
    ) -> None:
        self.code = code
        self._sc = context
        self._preferred_hosts = preferred_hosts
        self._layers = layers
        self._lock = threading.Lock()
        self._ready: dict[int, WorkerSet] = {}
        self._closed = False

    def of(self, workers: int) -> WorkerSet:
        """Return a worker set of this size, with all workers on their preferred hosts.

        One other worker set stays ready.
        """
        with self._lock:
            worker_set = self._ready.pop(workers, None)
            if worker_set is not None and not worker_set.is_in_place:
                worker_set.close()
                worker_set = None
            worker_set = worker_set or self._made(workers)
            self._ready[workers] = worker_set  # the newest comes last
            while len(self._ready) > _MOST_WORKER_SETS:
                self._ready.pop(next(iter(self._ready))).close()
            return worker_set

    def make_ready(self, workers: int) -> bool:
        """Get a worker set ready, with its processes, while another one works.

        Returns:
            Whether it can be used. It cannot if these worker sets were closed meanwhile, because
            another topology has replaced this one.
        """
        with self._lock:
            if self._closed or workers in self._ready:
                return not self._closed
            there = max(self._ready, default=0)
        worker_set = self._made(workers)
        try:
            worker_set.warm_up(there)
        except Exception:
            with self._lock:  # closing takes the code away, so loading it fails
                if not self._closed:
                    raise
        with self._lock:
            if self._closed or workers in self._ready:
                worker_set.close()
            else:
                self._ready[workers] = worker_set
            return not self._closed

    @property
    def ready(self) -> int:
        """For how many workers there are processes."""
        return max(list(self._ready), default=0)

    def numbers(self) -> list[int]:
        """Return the sizes of the worker sets that are ready."""
        with self._lock:
            return list(self._ready)

    def keep_warm(self) -> None:
        """Give each worker of all sets something to do, because Spark ends idle processes."""
        with self._lock:
            ready = list(self._ready.values())
        for worker_set in ready:
            worker_set.keep_warm()

    def forget_shuffles(self) -> None:
        """Rebuild what goes through Spark's shuffle for the next step."""
        with self._lock:
            for worker_set in self._ready.values():
                worker_set.forget_shuffle()

    def close(self) -> None:
        """Release all worker sets, including those that are not ready yet."""
        with self._lock:
            self._closed = True
            for worker_set in self._ready.values():
                worker_set.close()
            self._ready = {}

    def _made(self, workers: int) -> WorkerSet:
        return WorkerSet(self._sc, self._preferred_hosts, self.code, self._layers, workers)
