"""The functions that run in Spark's Python workers.

Workers import this module by name, so closures stay tiny.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from pyspark import TaskContext

from headrace.errors import Cancelled, NotFound, TaskTimeout
from headrace.errors.user_code import has_no_terminal
from headrace.migration.reading import AHEAD_AT_ONCE, READS_AT_ONCE
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.ending import TaskWatch, marked, write_note
from headrace.runners.memory import process_memory
from headrace.runners.prints import write_whole_lines
from headrace.runners.spark.left_bytes import unpack
from headrace.runners.spark.spool import HostSpool
from headrace.storage import open_store
from headrace.storage.reading import Threads
from headrace.storage.soft import HostFiles, own_directory
from headrace.tasks.state_cache import SoftState
from headrace.tasks.worker import Worker

PLAN = "headrace.plan"
PAYLOAD = "headrace.payload"
_PARCEL, _REPORTS = b"P", b"R"
#: How long after its task a process that is not needed ends, in seconds.
_ENDS_AFTER_S = 1.0

_plan_decoder = msgspec.msgpack.Decoder(StepPlan)
_reports_decoder = msgspec.msgpack.Decoder(list[TaskReport])
_encoder = msgspec.msgpack.Encoder()

#: What this process remembers: soft state, and pipelines by code and storage.
_soft = SoftState(Threads(READS_AT_ONCE, AHEAD_AT_ONCE))
_workers: dict[tuple[str, str, str | None], Worker] = {}
_watch = TaskWatch()
_warmed_up: set[str] = set()  # code for which a warm-up was done


class Code(msgspec.Struct, frozen=True):
    """The code of tasks.

    Attributes:
        digest: digest of the pipeline's code.
        broadcast: the code, in a broadcast variable. It never goes through storage.
        spool: the directory for large parcels, if all tasks run on the driver's host.
    """

    digest: str
    broadcast: Any
    spool: str | None = None


class _Tasks:
    """The tasks of this process.

    Attributes:
        begun: how many have begun.
    """

    begun = 0


_tasks = _Tasks()


def _begin() -> None:
    """Prepare the process for a task."""
    _tasks.begun += 1
    has_no_terminal()
    write_whole_lines(sys.stdout)
    _collect_no_garbage()


def _collect_no_garbage() -> None:
    """Keep the garbage collector from running in a task. Spark's daemon runs it after each task.

    Objects that survived its last run are not garbage, so they are frozen (measured: saves 18 to 25
    ms a task with 300 000 cached objects). But if anything was dropped since, the collector runs
    first. Otherwise it would never be freed.
    """
    if _soft.has_evicted:
        _soft.has_evicted = False
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    gc.disable()


def _worker(code: Code, plan: StepPlan) -> Worker:
    _soft.use(plan.store, time.monotonic())
    at = (code.digest, plan.store, code.spool)
    worker = _workers.get(at)
    if worker is None:
        pipeline = pickle.loads(code.broadcast.value)
        spool = HostSpool(code.spool) if code.spool is not None else None
        store = open_store(plan.store)
        worker = Worker(
            pipeline,
            code.digest,
            store,
            _soft,
            spool,
            HostFiles(_soft_directory(code)),
            memory=process_memory,
        )
        _workers.clear()
        _soft.drop_older(plan.store, code.digest)
        _workers[at] = worker
    return worker


def _soft_directory(code: Code) -> str:
    """Return the directory for soft files. Spark deletes it along with the application.

    Spark gives each executor a directory of its own. On a cluster, this is inside a directory of
    the application, which all its executors on the host share. The shared one is used, because a
    worker has a home host and not a home executor.
    """
    own = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not own:  # others may have folders here; only this user's own is used
        return own_directory(os.path.join(tempfile.gettempdir(), f"headrace-{os.geteuid()}"))
    alone = code.spool is not None  # all tasks are in one process on the driver's host
    return os.path.join(own if alone else os.path.dirname(own), "headrace")


def _plan(context: Any) -> StepPlan:
    return decoded_plan(unpack(context.getLocalProperty(PLAN)))


def decoded_plan(data: bytes) -> StepPlan:
    """Return an encoded plan."""
    return _plan_decoder.decode(data)


@contextlib.contextmanager
def _watched(plan: StepPlan, task_attempt: str) -> Iterator[None]:
    """End a task that takes too long or was cancelled, and leave a note of where it was."""
    store = open_store(plan.store)
    note = functools.partial(write_note, plan, store, task_attempt)
    try:
        with _watch.watching(plan, marked(plan, store), note):
            yield
    except (TaskTimeout, Cancelled) as error:
        note(error)
        raise


# -- driver and host exchange: a task for each layer and seat ---------------------------------


def run_task(
    code: Code,
    plan: StepPlan,
    layer: int,
    worker: int,
    task_attempt: str,
    payload: list[bytes],
) -> bytes:
    """Run a task, and return its encoded result.

    Args:
        code: the pipeline's code.
        plan: the plan of the step.
        layer: the layer to apply; 0 to read the worker's share of the division.
        worker: the number of the worker.
        task_attempt: the name of the attempt.
        payload: a parcel from each task of the layer before.
    """
    _begin()
    with _watched(plan, task_attempt):
        of = _worker(code, plan)
        if layer:
            result = of.apply(plan, layer, worker, task_attempt, payload)
        else:
            result = of.read(plan, worker, task_attempt)
    result.report.notes["pid"] = os.getpid()
    return _encoder.encode(result)


def run_seat(
    code: Code,
    plan: StepPlan,
    layer: int,
    workers: Sequence[int],
    task_attempt: str,
    payloads: Iterable[list[bytes]],
) -> Iterator[bytes]:
    """Run a task for each worker of a seat in turn, and yield their encoded results.

    Args:
        code, plan, layer, task_attempt: see :func:`run_task`.
        workers: the numbers of the workers.
        payloads: for each worker, a parcel from each task of the layer before.
    """
    _soft.forget_others(plan.store, workers)
    for worker, payload in zip(workers, payloads, strict=True):
        yield run_task(code, plan, layer, worker, task_attempt, payload)


def read_shares(code: Code, seats: Iterable[Sequence[int]]) -> Iterator[bytes]:
    """Read the shares of a seat's workers. The partition's element is their numbers."""
    (workers,) = list(seats)
    context = TaskContext.get()
    task_attempt = str(context.taskAttemptId())
    yield from run_seat(code, _plan(context), 0, workers, task_attempt, [[] for _ in workers])


def apply_layer(code: Code, layer: int, seats: Iterable[Sequence[int]]) -> Iterator[bytes]:
    """Apply a layer on a seat's workers. The partition's element is their numbers."""
    (workers,) = list(seats)
    context = TaskContext.get()
    texts = (context.getLocalProperty(f"{PAYLOAD}.{worker}") for worker in workers)
    payloads = (msgspec.msgpack.decode(unpack(text), type=list[bytes]) for text in texts)
    task_attempt = str(context.taskAttemptId())
    yield from run_seat(code, _plan(context), layer, workers, task_attempt, payloads)


# -- shuffle exchange -------------------------------------------------------------------------


def read_one(code: Code, numbers: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """Read this reader's share of the division, and send a parcel to each worker."""
    _begin()
    (number,) = list(numbers)
    context = TaskContext.get()
    plan = _plan(context)
    with _watched(plan, str(context.taskAttemptId())):
        result = _worker(code, plan).read(plan, number, str(context.taskAttemptId()))
    for consumer, parcel in enumerate(result.parcels):
        yield consumer, _PARCEL + parcel
    yield number, _REPORTS + _encoder.encode([result.report])


def apply_shuffled(
    code: Code, layer: int, number: int, items: Iterable[tuple[int, bytes | None]]
) -> Iterator[Any]:
    """Apply a layer on one worker to the parcels from the shuffle."""
    _begin()
    payload: list[bytes] = []
    reports: list[TaskReport] = []
    for _, data in items:
        if data is None:
            continue  # the anchor's element
        if data[:1] == _PARCEL:
            payload.append(data[1:])
        else:
            reports += _reports_decoder.decode(data[1:])
    context = TaskContext.get()
    plan = _plan(context)
    task_attempt = str(context.taskAttemptId())
    worker = _worker(code, plan)
    with _watched(plan, str(context.taskAttemptId())):
        result = worker.apply(plan, layer, number, task_attempt, payload)
    result.report.notes["pid"] = os.getpid()
    reports.append(result.report)
    if layer == worker.pipeline.layers:
        yield _encoder.encode(reports)
        return
    for consumer, parcel in enumerate(result.parcels):
        yield consumer, _PARCEL + parcel
    yield number, _REPORTS + _encoder.encode(reports)


def load(code: Code, seats: Iterable[Any]) -> Iterator[int]:
    """Load the code in a process that will be needed soon."""
    _begin()
    list(seats)
    pickle.loads(code.broadcast.value)
    gc.collect()
    yield os.getpid()


def run_warm_up(code: Code, run: Callable[[], None], seats: Iterable[Any]) -> Iterator[int]:
    """Load the code and do what a step does, in a process that will be needed soon."""
    if code.digest not in _warmed_up:
        run()
        _warmed_up.add(code.digest)
    yield from load(code, seats)


def end_process(seats: Iterable[Any]) -> list[Any]:
    """End this process and the daemon that has forked it, soon after this task.

    Spark starts another daemon when one is needed again. A process that gets another task meanwhile
    stays.
    """
    _begin()
    found = list(seats)[:0]
    if _is_of_a_daemon():
        timer = threading.Timer(_ENDS_AFTER_S, _end_if_idle, (_tasks.begun,))
        timer.daemon = True
        timer.start()
    return found


def _is_of_a_daemon() -> bool:
    """Return whether the parent is a daemon of Spark. It may be the executor itself."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon" and os.getpgrp() == os.getppid()


def _end_if_idle(begun: int) -> None:
    if _tasks.begun == begun:
        os.kill(os.getppid(), signal.SIGTERM)  # a daemon ends what it has forked


# -- start ------------------------------------------------------------------------------------


def probe(code: Code, location: str, name: str, content: bytes, numbers: Iterable[int]) -> Any:
    """Read back what the driver wrote, and load the code.

    Yields:
        Whether the content is the same, the host's name, and the process id.
    """
    _begin()
    list(numbers)
    try:
        found = open_store(location).read(name)
    except NotFound:
        found = b""
    same = found == content
    pickle.loads(code.broadcast.value)
    gc.collect()
    yield same, os.uname().nodename, os.getpid()


def nothing(items: Iterable[Any]) -> list[Any]:
    """Return nothing, after computing all items."""
    return list(items)[:0]
