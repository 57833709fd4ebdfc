"""What a process needs to run tasks, and what all tasks have in common.

A task of layer 0 reads records of the input and routes them (:mod:`headrace.tasks.read_task`). A
task of a later layer applies that layer's computations on one worker and routes what they produce
(:mod:`headrace.tasks.apply_task`).

Spark and the inline runner call the same functions (:mod:`headrace.tasks.worker`). All effects go
through the arguments: the store, the soft state of the process, and the attempt's name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from headrace.errors import HeadraceError, InvariantBroken
from headrace.errors.user_code import error_text, is_from_outside, whole_traceback
from headrace.eventtime.watermark import Watermarks
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.pipeline import Pipeline
from headrace.protocol.failures import failure_of
from headrace.protocol.parcels import (
    Parcel,
    ParcelHeader,
    ParcelLost,
    Spool,
    encode_parcel,
    spool_large,
)
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.storage.base import Store
from headrace.storage.soft import WithSoftFiles
from headrace.storage.timed import TimedReads
from headrace.tasks.routing import OutgoingEntries, Router
from headrace.tasks.state_cache import SoftState


class TaskResult(msgspec.Struct):
    """What a task returns.

    Attributes:
        report: what it did.
        parcels: one for each consumer; none after the last layer.
    """

    report: TaskReport
    parcels: list[bytes]


class Process:
    """Everything that a process needs to run a pipeline's tasks.

    Args:
        pipeline: the pipeline, built by the code that the driver sent.
        code: digest of that code.
        store: the storage.
        soft: the soft state of the process.
        spool: where large parcels go, if they do not travel through the engine.
        soft_files: where uncheckpointed steps leave their changes, shared by the host. In memory by
            default.
        timer: a monotonic clock that times the phases of the report. It never influences a result.
        memory: returns how many bytes of memory the process has; None if that is not known. It
            never influences a result either.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        code: str,
        store: Store,
        soft: SoftState,
        spool: Spool | None = None,
        soft_files: Store | None = None,
        timer: Callable[[], float] = time.perf_counter,
        memory: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.pipeline = pipeline
        self.router = Router(pipeline)
        self.code = code
        self.reads = TimedReads(store, timer)
        self.store: Store = WithSoftFiles(self.reads, soft_files)
        self.soft = soft
        self.spool = spool
        self.timer = timer
        self.memory = memory
        self._layout: tuple[LayoutWire, Layout] | None = None

    def layout(self, plan: StepPlan) -> Layout:
        """Return the plan's layout. It is built only when it has changed."""
        if self._layout is None or self._layout[0] != plan.layout:
            self._layout = (plan.layout, Layout.from_wire(plan.layout))
        return self._layout[1]


class Task:
    """One attempt of a task: what it works on, and what it has done so far.

    Args:
        process: where it runs.
        plan: the plan of the step.
        layer, worker: which task it is. In layer 0, the worker is the number of the reader.
        task_attempt: the name of the attempt.

    Attributes:
        report: what it has done.
        outbox: what it sends, by consumer.
    """

    def __init__(
        self, process: Process, plan: StepPlan, layer: int, worker: int, task_attempt: str
    ) -> None:
        self.plan = plan
        self.layer = layer
        self.worker = worker
        self.pipeline = process.pipeline
        self.router = process.router
        self.layout = process.layout(plan)
        self.report = TaskReport(layer=layer, worker=worker, task_attempt=task_attempt)
        self.outbox = OutgoingEntries(plan.layout.workers)
        self._process = process

    def result(self, header: ParcelHeader) -> TaskResult:
        """Return what the task has done, with a parcel for each consumer."""
        if self.layer == self.pipeline.layers:
            return TaskResult(self.report, [])
        with self.phase("send"):
            parcels = [Parcel(header, entries) for entries in self.outbox.entries]
            spool = self._process.spool
            if spool is not None:
                stem = self.plan.file_stem(self.layer, self.worker, self.report.task_attempt)
                parcels = [
                    spool_large(parcel, f"{stem}-{consumer}", spool)
                    for consumer, parcel in enumerate(parcels)
                ]
            return TaskResult(self.report, [encode_parcel(parcel) for parcel in parcels])

    def header(self, local: dict[str, Watermarks], known: dict[str, Watermarks]) -> ParcelHeader:
        """Return the header of the task's parcels.

        Args:
            local: the watermarks of what this task produces, by stream.
            known: those of earlier layers, over all workers.
        """
        plan, report = self.plan, self.report
        return ParcelHeader(
            self.layer,
            self.worker,
            report.task_attempt,
            plan.epoch,
            plan.step,
            plan.attempt,
            local,
            known,
            report.seen,
            report.failure is not None,
        )

    def foresee(self) -> None:
        """Let the soft state of the process get ready for the plan."""
        process = self._process
        process.soft.read_ahead(
            process.pipeline, process.code, self.plan, self.layout, self.worker, process.store
        )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the ``with`` block as a phase of the report."""
        timer, phases = self._process.timer, self.report.phases
        begun = timer()
        try:
            yield
        finally:
            phases[name] = phases.get(name, 0.0) + timer() - begun

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Put an error into the report, so that the user's own error comes first and plain."""
        try:
            yield
        except HeadraceError as error:
            self.report.failure = failure_of(error)
        except ParcelLost:
            raise  # the engine's own: the task fails, and the step is attempted again
        except BaseException as error:
            if is_from_outside(error):
                raise
            wrapped = InvariantBroken(error_text(error))
            self.report.failure = msgspec.structs.replace(
                failure_of(wrapped), traceback=whole_traceback(error)
            )
