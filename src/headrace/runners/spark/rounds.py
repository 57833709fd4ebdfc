"""Rounds of a step: one task on each worker, as a job of Spark or as orders to residents."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from headrace.protocol.plan import StepPlan
from headrace.runners.spark import task_entry
from headrace.runners.spark.left_bytes import MOST_PROPERTY_BYTES, LeftBytes, pack
from headrace.runners.spark.residents.residents import Residents
from headrace.runners.spark.worker_sets import WorkerSet
from headrace.tasks.task import TaskResult

#: Bytes that are more are not compressed to see whether they become few enough.
_MOST_TO_PACK = 16 * MOST_PROPERTY_BYTES
_RESULT = msgspec.msgpack.Decoder(TaskResult)
_encode = msgspec.msgpack.Encoder().encode


class Rounds(Protocol):
    """Runs the rounds of one step."""

    def send_plan(self, plan: StepPlan, *, with_splits: bool) -> None:
        """Give the tasks of all rounds a plan.

        Args:
            plan: the plan.
            with_splits: whether tasks read the division.
        """

    def read(self) -> list[TaskResult]:
        """Let each worker read its share of the division."""

    def apply(self, layer: int, payloads: list[list[bytes]]) -> list[TaskResult]:
        """Apply a layer on each worker, and return the results in the order of the workers.

        Args:
            layer: the layer.
            payloads: for each worker, a parcel from each task of the layer before.
        """


class Properties:
    """Local properties of the driver's thread, which all tasks of its jobs can read.

    Args:
        context: the SparkContext.

    Attributes:
        left: where bytes are left that are too many for a property.
    """

    def __init__(self, context: Any) -> None:
        self._sc = context
        self._names: set[str] = set()
        self.left: LeftBytes | None = None

    def put(self, name: str, data: bytes) -> None:
        """Set a property, or leave its bytes where tasks find them, if they are many."""
        text = pack(data) if len(data) <= _MOST_TO_PACK else ""
        if not text or len(text) > MOST_PROPERTY_BYTES:
            assert self.left is not None
            text = self.left.put(data)
        self._sc.setLocalProperty(name, text)
        self._names.add(name)

    def keep(self, *names: str) -> None:
        """Remove all but some. Each job would carry them."""
        for name in self._names.difference(names):
            self._sc.setLocalProperty(name, None)
        self._names.intersection_update(names)


class JobRounds:
    """Rounds that are jobs. The plan and the parcels travel as local properties.

    Args:
        properties: the properties of the driver's thread.
        worker_set: the workers.
    """

    def __init__(self, properties: Properties, worker_set: WorkerSet) -> None:
        self._properties, self._worker_set = properties, worker_set
        names = [f"{task_entry.PAYLOAD}.{number}" for number in range(worker_set.workers)]
        self._names = names
        properties.keep(task_entry.PLAN, *names)  # those of workers that no longer exist go

    def send_plan(self, plan: StepPlan, *, with_splits: bool) -> None:
        self._properties.put(task_entry.PLAN, encoded(plan, with_splits=with_splits))

    def read(self) -> list[TaskResult]:
        return _decoded(self._worker_set.read())

    def apply(self, layer: int, payloads: list[list[bytes]]) -> list[TaskResult]:
        for name, payload in zip(self._names, payloads, strict=True):
            self._properties.put(name, _encode(payload))
        return _decoded(self._worker_set.layers[layer - 1]())


class ResidentRounds:
    """Rounds that are orders to resident workers.

    Args:
        residents: the residents.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._plan = b""

    def send_plan(self, plan: StepPlan, *, with_splits: bool) -> None:
        self._plan = encoded(plan, with_splits=with_splits)

    def read(self) -> list[TaskResult]:
        return self._run(0, [])

    def apply(self, layer: int, payloads: list[list[bytes]]) -> list[TaskResult]:
        return self._run(layer, payloads)

    def _run(self, layer: int, payloads: list[list[bytes]]) -> list[TaskResult]:
        plan, self._plan = self._plan, b""
        return _decoded(self._residents.run(layer, plan, payloads))


def encoded(plan: StepPlan, *, with_splits: bool) -> bytes:
    """Return a plan for tasks; without splits, if the driver itself reads the division."""
    if not with_splits:
        injectors = {
            name: msgspec.structs.replace(item, splits=[]) for name, item in plan.injectors.items()
        }
        plan = msgspec.structs.replace(plan, injectors=injectors)
    return _encode(plan)


def _decoded(found: list[bytes]) -> list[TaskResult]:
    results = [_RESULT.decode(data) for data in found]
    results.sort(key=lambda result: result.report.worker)
    return results
