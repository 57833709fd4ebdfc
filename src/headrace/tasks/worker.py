"""The tasks of a step, as runners call them."""

from __future__ import annotations

from headrace.protocol.plan import StepPlan
from headrace.tasks.apply_task import ApplyTask
from headrace.tasks.read_task import ReadTask
from headrace.tasks.task import Process, TaskResult


class Worker(Process):
    """A process that runs a pipeline's tasks."""

    def read(self, plan: StepPlan, reader: int, task_attempt: str) -> TaskResult:
        """Read this reader's share of the division and route it."""
        return ReadTask(self, plan, reader, task_attempt).run()

    def apply(
        self, plan: StepPlan, layer: int, worker: int, task_attempt: str, payload: list[bytes]
    ) -> TaskResult:
        """Apply a layer's computations to this worker's records and due timers.

        Args:
            payload: a parcel from each task of the layer before, in any order.
        """
        return ApplyTask(self, plan, layer, worker, task_attempt, payload).run()
