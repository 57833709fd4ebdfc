"""The Spark runner: a step is one job on RDDs of bytes, or one job for each layer.

Three exchanges carry records between layers:

- *driver*: the driver reads and routes the input. Each layer is a one-stage job, whose tasks have a
  pool of Python processes for each worker.
- *host*, if all tasks run on one host: the same, but tasks read the input, and large parcels are
  left in files. Only their locations go through the driver.
- *shuffle*: tasks read the input, all layers are one job, and parcels go through Spark's shuffle.

RDDs are built once and run at every step. What differs from step to step travels as a *local
property* of the job, which every task can read. Building the RDDs at each step would cost about 40
gateway calls (measured: 39 against 15 ms for one stage, 42 against 27 ms for two).
"""

from __future__ import annotations

import functools
import gc
import hashlib
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from headrace.errors import (
    Cancelled,
    HeadraceError,
    PipelineError,
    SessionUnsuitable,
    StorageError,
    StorageNotShared,
)
from headrace.migration.costs import Starting
from headrace.pipeline import Pipeline
from headrace.protocol.plan import Exchange, StepPlan, TaskReport
from headrace.runners.base import EngineFailed, Runner
from headrace.runners.ending import cancel, ended
from headrace.runners.spark import private_api, task_entry
from headrace.runners.spark.code_shipping import pickled
from headrace.runners.spark.job_names import JobNames
from headrace.runners.spark.left_bytes import LeftBytes
from headrace.runners.spark.preferred_hosts import PreferredHosts
from headrace.runners.spark.residents.keeper import ResidentKeeper
from headrace.runners.spark.residents.residents import Residents
from headrace.runners.spark.rounds import (
    JobRounds,
    Properties,
    ResidentRounds,
    Rounds,
    encoded,
)
from headrace.runners.spark.spool import HostSpool, make_directory
from headrace.runners.spark.worker_sets import WorkerSet, WorkerSets
from headrace.session.session import find_context, stop
from headrace.session.settings import is_local
from headrace.session.spark_errors import short
from headrace.storage.base import Store
from headrace.storage.memory import MemoryStore
from headrace.storage.probe import FOLDER as PROBES
from headrace.tasks.state_cache import SoftState
from headrace.tasks.task import TaskResult
from headrace.tasks.worker import Worker

log = logging.getLogger("headrace.spark")

#: How often to probe whether executors see the storage, if the probe's file is deleted meanwhile.
_PROBES = 3
#: By how much a step is assumed to be longer in which workers appear: new tasks have to find their
#: processes, and those read the plan's code for the first time.
_GROW_US = 180_000.0
#: How long it is assumed to take to start a Python process and to load the code in it.
_START_US = 1_000_000.0
#: What Python says of a module that it does not find.
_MISSING = re.compile(r"No module named '([\w.]+)'")

_REPORTS = msgspec.msgpack.Decoder(list[TaskReport])


class SparkRunner(Runner):
    """Runs attempts on Spark.

    Args:
        context: a SparkContext. By default that of the active session, or of a new local session.
        clock: a monotonic clock in seconds. It says when to look for executors again.
        spares: for how many additional workers to start Python processes ahead. By default, for as
            many as there are free task slots, but not for more than there are workers. Each process
            takes about 50 MB. While one starts, all tasks of its executor wait (0.2 to 0.7 s), so
            it is better to start them before the stream runs.
    """

    concurrent = True

    def __init__(
        self,
        context: Any = None,
        clock: Callable[[], float] = time.monotonic,
        spares: int | None = None,
    ) -> None:
        self._spares = spares
        self._clock = clock
        self._start_us = _START_US
        self._owned = False
        self._sc = context or self._find_context()
        self._worker: Worker | None = None
        self._preferred_hosts = PreferredHosts(self._sc, clock)
        self._worker_sets: WorkerSets | None = None
        self._spool: HostSpool | None = None
        self._spool_directory = ""
        self._properties = Properties(self._sc)
        self._keeper: ResidentKeeper | None = None
        self._frozen = False
        self._slots: int | None = None
        self._at_once = 1
        self._group = f"headrace-{uuid.uuid4().hex}"
        self._named: int | None = None  # the thread whose jobs are in this group
        self._running: StepPlan | None = None
        self._ending: HeadraceError | None = None

    # -- session ------------------------------------------------------------------------------

    def _find_context(self) -> Any:
        context, self._owned = find_context()
        return context

    def default_workers(self) -> int:
        return int(self._sc.defaultParallelism)

    # -- start --------------------------------------------------------------------------------

    def start(self, pipeline: Pipeline, store: Store, workers: int) -> None:
        if isinstance(store, MemoryStore):
            raise PipelineError(
                "executors cannot see a store in the driver's memory",
                remedy="give run() a directory as storage=, or runner='inline'",
            )
        self._worker = Worker(pipeline, pipeline.name, store, SoftState())
        self._make_spool()
        self._properties.left = LeftBytes(store, self._spool_directory)
        code = self._send_code(pipeline)
        self._worker_sets = WorkerSets(
            self._sc, self._preferred_hosts, code, pipeline.layers, self._clock
        )
        self._probe(store, workers)
        self._names = JobNames(self._sc, pipeline.name)
        self._keeper = self._new_keeper()
        self._worker_set(workers)
        self._slots = private_api.slots(self._sc)
        self._at_once = self._slots or self.default_workers()
        self.make_ready(self._kept(workers))
        self._freeze()

    def _kept(self, workers: int) -> int:
        """Return for how many workers Python processes are kept, while there are some workers."""
        if self._spares is not None:
            return workers + self._spares
        return workers + min(workers, max(0, self._at_once - workers))

    def _new_keeper(self) -> ResidentKeeper:
        if self._is_local():
            return ResidentKeeper(self._sc, None, self._names)
        conf = self._sc.getConf()
        host = str(conf.get("spark.driver.host"))
        hosts = host, str(conf.get("spark.driver.bindAddress", host))
        return ResidentKeeper(self._sc, hosts, self._names)

    @property
    def residents(self) -> Residents | None:
        """The resident workers, if there are any now."""
        return None if self._keeper is None else self._keeper.residents

    def _freeze(self) -> None:
        """Make the garbage collector see only new objects.

        What a driver holds when it starts to work is not garbage. Looking through it takes as long
        as half a step (measured: 44 to 51 ms with 107 000 objects). :meth:`close` undoes this.
        """
        gc.collect()
        gc.freeze()
        self._frozen = True

    def _unfreeze(self) -> None:
        if self._frozen:
            self._frozen = False
            gc.unfreeze()

    def _worker_set(self, workers: int) -> WorkerSet:
        """Return the worker set for a plan, with all workers on their preferred hosts."""
        assert self._worker_sets is not None
        with self._preferred_hosts.lock:
            self._preferred_hosts.settle(workers)
        worker_set = self._worker_sets.of(workers)
        self._worker_sets.end_unused(self._kept(workers))
        self.places = self._preferred_hosts.places(workers)
        return worker_set

    def make_ready(self, workers: int) -> None:
        more = self.starting().missing(workers)
        begun = self._clock()
        self._make_ready(workers)
        if more > 0:
            self._start_us = (self._clock() - begun) * 1e6 / more

    def _make_ready(self, workers: int) -> None:
        worker_sets = self._worker_sets
        while (
            worker_sets is not None
            and not worker_sets.make_ready(workers)
            and worker_sets is not self._worker_sets
        ):
            worker_sets = self._worker_sets  # another topology runs by now
        worker_set = None if worker_sets is None else worker_sets.ready_for(workers)
        if worker_set is not None and self._keeper is not None:
            self._keeper.make_ready(worker_set)

    def starting(self) -> Starting:
        ready = 0 if self._worker_sets is None else self._worker_sets.ready
        return Starting(ready, self._start_us, _GROW_US, self._slots or 0)

    def warm_up(self, run_warm_up: Callable[[], None]) -> None:
        run_warm_up()  # the driver itself reads and routes the input of small steps
        if self._worker_sets is not None:
            for workers in self._worker_sets.numbers():
                self._worker_sets.of(workers).run_warm_up(run_warm_up)

    def avoid(self, hosts: Collection[str]) -> None:
        with self._preferred_hosts.lock:
            self._preferred_hosts.drain(hosts)

    def prepare(self, pipeline: Pipeline) -> Callable[[], None]:
        assert self._worker is not None and self._worker_sets is not None
        worker = Worker(pipeline, pipeline.name, self._worker.store, SoftState())
        worker_sets = WorkerSets(
            self._sc,
            self._preferred_hosts,
            self._send_code(pipeline),
            pipeline.layers,
            self._clock,
        )
        for workers in self._worker_sets.numbers():
            worker_sets.of(workers)

        def switch() -> None:
            assert self._worker_sets is not None
            gone = self._worker_sets
            if self._keeper is not None:
                self._keeper.end()
            self._worker, self._worker_sets = worker, worker_sets
            gone.close()
            gone.code.broadcast.destroy()

        return switch

    def wide_exchange(self) -> Exchange:
        return "host" if self._is_local() else "shuffle"

    def _is_local(self) -> bool:
        return is_local(self._sc.master)

    def _send_code(self, pipeline: Pipeline) -> task_entry.Code:
        blob = pickled(pipeline)
        digest = hashlib.blake2b(blob, digest_size=12).hexdigest()
        directory = self._spool_directory if self._spool is not None else None
        return task_entry.Code(digest, self._sc.broadcast(blob), directory)

    def _make_spool(self) -> None:
        if self._is_local():
            local = self._sc.getConf().get("spark.local.dir")
            directory = make_directory(local.partition(",")[0] if local else None)
            self._spool_directory, self._spool = directory, HostSpool(directory)

    def _probe(self, store: Store, workers: int) -> None:
        """Check that every executor sees the storage. This also starts Python processes.

        Raises:
            StorageNotShared: an executor does not see it.
        """
        tasks = max(workers, self.default_workers())
        cannot_see: list[str] = []
        for _ in range(_PROBES):
            cannot_see, still_there = self._cannot_see(store, tasks)
            if not cannot_see:
                return
            if still_there:
                break
            # A leading driver swept the file while executors were being started.
        raise StorageNotShared(
            f"executors on {', '.join(cannot_see)} do not see what the driver writes",
            place=store.location,
            remedy="use a directory that all hosts mount",
        )

    def _seen(self, probes: Any) -> list[Any]:
        """Return what the executors have seen.

        Raises:
            PipelineError: their Python lacks Headrace, or something that it needs.
        """
        try:
            found: list[Any] = probes.collect()
            return found
        except Exception as error:
            missing = _MISSING.search(str(error))
            if missing is None:
                raise
            raise PipelineError(
                f"the Python of the executors has no module {missing[1]!r}; nothing was computed",
                place=self._sc.master,
                remedy="send an environment along, or install headrace there: see "
                "docs/how-to/deploy.md",
            ) from None

    def _cannot_see(self, store: Store, tasks: int) -> tuple[list[str], bool]:
        """Return the hosts that do not see a file of ours, and whether it was there throughout."""
        name, content = f"{PROBES}{uuid.uuid4().hex}", os.urandom(16)
        store.write(name, content)
        try:
            assert self._worker_sets is not None
            check = functools.partial(
                task_entry.probe, self._worker_sets.code, store.location, name, content
            )
            seen = self._seen(self._sc.parallelize(range(tasks), tasks).mapPartitions(check))
            still_there = name in store.list(PROBES)
        finally:
            store.delete(name)
        return sorted({host for same, host, _ in seen if not same}), still_there

    # -- an attempt ---------------------------------------------------------------------------

    def run(self, plan: StepPlan) -> list[TaskReport]:
        self._name_jobs()
        self._running, self._ending = plan, None
        try:
            if plan.exchange == "shuffle":
                return self._run_by_shuffle(plan)
            return self._run_in_rounds(plan)
        except HeadraceError:
            raise
        except Exception as error:
            self._discard_known()
            why = self._why_ended(plan)
            if why is not None:
                raise why from None
            raise EngineFailed(short(error)) from error
        finally:
            self._running = None
            if self._spool is not None:
                self._spool.clear()
            self._forget_left()

    def _forget_left(self) -> None:
        left = self._properties.left
        if left is not None:
            try:
                left.clear()
            except StorageError as error:
                log.warning("what was left for tasks is deleted by the next sweep: %s", error)

    def _name_jobs(self) -> None:
        """Put the jobs of this thread into the group that :meth:`end_attempt` cancels."""
        if self._named != threading.get_ident():
            self._named = threading.get_ident()
            self._names.begin_thread(self._group, "a step")

    def end_attempt(self, error: HeadraceError, *, force: bool) -> None:
        plan, self._ending = self._running, error
        if plan is None or self._worker is None:
            return
        if isinstance(error, Cancelled):
            cancel(plan, self._worker.store)
        if force:
            self._sc.cancelJobGroup(self._group)
            self.abandon()

    def abandon(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()

    def _why_ended(self, plan: StepPlan) -> HeadraceError | None:
        """Return why an attempt was ended, if it was, by one of its tasks or by
        :meth:`end_attempt`.
        """
        assert self._worker is not None
        return ended(plan, self._worker.store) or self._ending

    def _discard_known(self) -> None:
        """Do not rely on anything that executors had, because some may be gone."""
        if self._worker_sets is not None:
            self._worker_sets.forget_shuffles()
        self._preferred_hosts.look_at_once()

    def _run_in_rounds(self, plan: StepPlan) -> list[TaskReport]:
        """Run a round for each layer. Parcels, or their locations, go through the driver."""
        worker_set = self._worker_set(plan.layout.workers)
        if not plan.resident:
            self._names.describe(f"step {plan.step}")
            return self._run_layers(plan, worker_set, JobRounds(self._properties, worker_set))
        assert self._keeper is not None
        with self._keeper.residents_for(worker_set) as residents:
            if residents is None:
                self._names.describe(f"step {plan.step}")
            rounds = (
                JobRounds(self._properties, worker_set)
                if residents is None
                else ResidentRounds(residents)
            )
            return self._run_layers(plan, worker_set, rounds)

    def _run_layers(
        self, plan: StepPlan, worker_set: WorkerSet, rounds: Rounds
    ) -> list[TaskReport]:
        results = self._read(plan, rounds)
        reports = [found.report for found in results]
        if any(report.failure is not None for report in reports):
            return [*reports, *_never_ran(plan, len(worker_set.layers))]
        payloads = _payloads(results, worker_set.workers)
        for layer in range(1, len(worker_set.layers) + 1):
            results = rounds.apply(layer, payloads)
            reports += [found.report for found in results]
            if results[0].parcels:
                payloads = _payloads(results, worker_set.workers)
        return reports

    def _read(self, plan: StepPlan, rounds: Rounds) -> list[TaskResult]:
        assert self._worker is not None
        if plan.exchange == "driver":
            result = self._worker.read(plan, 0, "driver")
            if result.report.failure is None:
                rounds.send_plan(plan, with_splits=False)
            return [result]
        if self._spool is None:
            raise SessionUnsuitable(
                "exchange='host' needs all tasks on the driver's host",
                remedy="use a local session, or exchange='auto'",
            )
        rounds.send_plan(plan, with_splits=True)
        return rounds.read()

    def _run_by_shuffle(self, plan: StepPlan) -> list[TaskReport]:
        if self._keeper is not None:
            self._keeper.end()  # the job needs its slots
        self._names.describe(f"step {plan.step}")
        self._properties.keep(task_entry.PLAN)
        self._properties.put(task_entry.PLAN, encoded(plan, with_splits=True))
        found = self._worker_set(plan.layout.workers).shuffle()
        return [report for data in found for report in _REPORTS.decode(data)]

    # -- the end ------------------------------------------------------------------------------

    def rest(self) -> None:
        if self._keeper is not None:
            self._keeper.end()

    def keep_warm(self) -> None:
        if self.residents is not None:
            return  # (nor would Spark find a process that is idle)
        tasks = self.default_workers()
        try:
            self._sc.parallelize(range(tasks), tasks).mapPartitions(task_entry.nothing).collect()
            if self._worker_sets is not None:
                self._worker_sets.keep_warm()
        except Exception as error:  # no attempt was running; one that fails is repeated
            log.warning("processes could not be kept warm: %s", short(error))
            self._discard_known()

    def close(self) -> None:
        self._unfreeze()  # first, because the rest raises if the JVM is gone
        if self._keeper is not None:
            self._keeper.close()
        self._properties.keep()
        worker_sets, self._worker_sets = self._worker_sets, None
        if worker_sets is not None:
            worker_sets.close()
            worker_sets.code.broadcast.destroy()
        if self._spool is not None:
            shutil.rmtree(self._spool_directory, ignore_errors=True)
            self._spool = None
        if self._owned:
            stop(self._sc)


def _payloads(results: list[TaskResult], workers: int) -> list[list[bytes]]:
    """Return what the tasks of the last layer have sent to each worker."""
    return [[found.parcels[worker] for found in results] for worker in range(workers)]


def _never_ran(plan: StepPlan, layers: int) -> list[TaskReport]:
    """Return reports for tasks that did not start because the input could not be read."""
    return [
        TaskReport(layer=layer, worker=worker, task_attempt="none")
        for layer in range(1, layers + 1)
        for worker in range(plan.layout.workers)
    ]
