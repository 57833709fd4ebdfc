"""What is sent to workers by local properties goes when they do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from headrace.protocol.plan import TaskReport
from headrace.runners.spark import task_entry
from headrace.runners.spark.rounds import JobRounds, Properties
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


def run(properties: Properties, workers: int) -> None:
    def collect() -> list[bytes]:
        return [msgspec.msgpack.encode(one) for one in results(1, workers)]

    worker_set: Any = SimpleNamespace(workers=workers, layers=[collect])
    JobRounds(properties, worker_set).apply(1, [[b"x" * 1_000]] * workers)


def test_after_a_rescale_no_job_carries_what_was_sent_to_workers_that_are_gone() -> None:
    context = Context()
    properties = Properties(context)
    for workers in (32, 2, 5):
        run(properties, workers)
        assert sorted(context.properties) == sorted(
            f"{task_entry.PAYLOAD}.{n}" for n in range(workers)
        )
