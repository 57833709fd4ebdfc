"""Worker sets: workers of a Spark session, and the jobs that run a pipeline on them."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from typing import Any

from headrace.runners.spark import private_api, task_entry
from headrace.runners.spark.anchor import make_anchor, same
from headrace.runners.spark.preferred_hosts import PreferredHosts
from headrace.runners.spark.seats import seats_of
from headrace.session.spark_errors import short

log = logging.getLogger("headrace.spark")

#: Number of worker sets that are kept: the one that runs, and the next or the last one.
_MOST_WORKER_SETS = 2


#: How long the processes of a larger worker set stay after it was used last, in seconds.
_KEPT_S = 60.0
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
        seats: the Python processes that serve them.
        layers: a job for each layer.
        read: a job that reads the division.
        keep_warm: a job that does nothing.
        used_s: when it was used or got ready last, by the clock of whoever keeps it.
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
        self.used_s = 0.0
        self._shuffle: tuple[Any, Any] | None = None
        self._anchor: Any = None
        with preferred_hosts.lock:
            self._hosts = preferred_hosts.of(workers)
            self._version = preferred_hosts.version
            self.seats = seats_of(self._hosts, private_api.slots(context))
            self._every = [self._located(seat.workers, seat.host) for seat in self.seats]
            self.layers = [
                self._job(functools.partial(task_entry.apply_layer, code, layer))
                for layer in range(1, layers + 1)
            ]
            self.read = self._job(functools.partial(task_entry.read_shares, code))
            self.keep_warm = self._job(task_entry.nothing)

    @property
    def is_in_place(self) -> bool:
        """Whether its jobs run where the workers live now."""
        return self._version == self._preferred_hosts.version

    def _located(self, item: Any, host: str | None) -> Any:
        """Return an RDD of one item, which prefers a host."""
        if host is None:
            return self._sc.parallelize([item], 1)
        return private_api.located(self._sc, [item], [host])

    def _job(self, task: Any, seats: Collection[int] | None = None) -> Callable[[], list[Any]]:
        """Return a function that runs a task on seats, as a one-stage job.

        Args:
            task: the task.
            seats: the places of the seats in the list; None for all.
        """
        at = range(len(self.seats)) if seats is None else seats
        with self._preferred_hosts.lock:
            parts = [self._rdd(task, seat) for seat in at]
        found: Callable[[], list[Any]] = private_api.lean_collector(self._sc.union(parts))
        return found

    def _rdd(self, task: Any, seat: int) -> Any:
        """Return the RDD of a task on a seat, which has a pool of processes of its own."""

        def made() -> Any:
            rdd = self._every[seat].mapPartitions(task)
            rdd._jrdd  # noqa: B018  (the environment is taken over when the JVM's RDD is made)
            return rdd

        name = str(self.seats[seat].name)
        return private_api.set_environment(made, self._sc, {"HEADRACE_SEAT": name})

    def job_of(self, seat: int, task: Any) -> Callable[[], list[Any]]:
        """Return a function that runs a task on one seat."""
        with self._preferred_hosts.lock:
            rdd = self._rdd(task, seat)
        found: Callable[[], list[Any]] = private_api.lean_collector(rdd)
        return found

    def warm_up(self, there: AbstractSet[int]) -> None:
        """Start the Python processes of seats, and load the code.

        Args:
            there: the names of seats whose processes are there.
        """
        new = [at for at, seat in enumerate(self.seats) if seat.name not in there]
        if new:
            self._job(functools.partial(task_entry.load, self.code), new)()

    def end_seats(self, kept: int) -> None:
        """End the Python processes of seats that serve only workers from number ``kept`` on."""
        gone = [at for at, seat in enumerate(self.seats) if seat.name >= kept]
        if gone:
            self._job(task_entry.end_process, gone)()

    def run_warm_up(self, run_warm_up: Callable[[], None]) -> None:
        """Start the Python processes of all seats, load the code, and warm them up.

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
            hosts = [host for host in self._hosts if host is not None]
            self._anchor = make_anchor(self._sc, hosts) if len(hosts) == count else None
        with self._preferred_hosts.lock:  # input is read there, too, not on a drained host
            every = self._sc.union(
                [self._located(number, host) for number, host in enumerate(self._hosts)]
            )
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


def _end_seats(worker_set: WorkerSet, kept: int) -> None:
    try:
        worker_set.end_seats(kept)
    except Exception as error:  # the session may be ending
        log.info("processes that are not needed could not be ended: %s", short(error))


class WorkerSets:
    """The worker sets that are ready to run one version of a pipeline's code, by number of workers.

    Another topology has worker sets of its own. May be used from any thread.

    Args:
        context: the SparkContext.
        preferred_hosts: the preferred hosts of workers.
        code: the pipeline's code.
        layers: its number of layers.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        context: Any,
        preferred_hosts: PreferredHosts,
        code: task_entry.Code,
        layers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.code = code
        self._sc = context
        self._preferred_hosts = preferred_hosts
        self._layers = layers
        self._lock = threading.Lock()
        self._clock = clock
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
            worker_set.used_s = self._clock()
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
            there = {seat.name for one in self._ready.values() for seat in one.seats}
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
                worker_set.used_s = self._clock()
            return not self._closed

    @property
    def ready(self) -> int:
        """How many processes there are for workers."""
        return max((len(one.seats) for one in list(self._ready.values())), default=0)

    def ready_for(self, workers: int) -> WorkerSet | None:
        """Return the worker set of this size, if it is ready and its workers live where it runs."""
        with self._lock:
            found = self._ready.get(workers)
            return found if found is not None and found.is_in_place else None

    def end_unused(self, kept: int) -> None:
        """End processes that are not needed any more, beside the steps.

        They are those of a worker set that has more workers than ``kept``, and was neither used nor got
        ready for a while.

        Args:
            kept: the number of workers for which processes are kept.
        """
        now_s = self._clock()
        with self._lock:
            gone = [
                workers
                for workers, worker_set in self._ready.items()
                if workers > kept and now_s - worker_set.used_s > _KEPT_S
            ]
            sets = [self._ready.pop(workers) for workers in gone]
        for worker_set in sets:
            worker_set.close()
            ending = threading.Thread(
                target=_end_seats, args=(worker_set, kept), name="headrace-ending", daemon=True
            )
            ending.start()

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
