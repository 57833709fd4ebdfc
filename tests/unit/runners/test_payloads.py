"""What is sent to workers by local properties goes when they do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from headrace.protocol.plan import TaskReport
from headrace.runners.spark import task_entry
from headrace.runners.spark.runner import SparkRunner
from headrace.tasks.task import TaskResult


class Context:
    def __init__(self) -> None:
        self.properties: dict[str, str] = {}

    def setLocalProperty(self, name: str, value: str | None) -> None:
        if value is None:
            self.properties.pop(name, None)
        else:
            self.properties[name] = value


def results(layer: int, workers: int) -> list[TaskResult]:
    return [
        TaskResult(TaskReport(layer=layer, worker=n, task_attempt="a"), []) for n in range(workers)
    ]


def run(runner: Any, workers: int) -> None:
    def collect() -> list[bytes]:
        return [msgspec.msgpack.encode(one) for one in results(1, workers)]

    worker_set = SimpleNamespace(workers=workers, layers=[collect])
    runner._worker_set = lambda number: worker_set
    parcels = [b"x" * 1_000] * workers
    read = TaskResult(TaskReport(layer=0, worker=0, task_attempt="d"), parcels)
    runner._read = lambda plan, worker_set: [read]
    runner._run_by_jobs(SimpleNamespace(layout=SimpleNamespace(workers=workers)))


def test_after_a_rescale_no_job_carries_what_was_sent_to_workers_that_are_gone() -> None:
    runner = SparkRunner.__new__(SparkRunner)
    context = Context()
    runner._sc, runner._properties, runner._spool = context, set(), None
    for workers in (32, 2, 5):
        run(runner, workers)
        assert sorted(context.properties) == sorted(
            f"{task_entry.PAYLOAD}.{n}" for n in range(workers)
        )
