"""Attempts that are repeated, differ, or outlive their try never make up a mixed step."""

from __future__ import annotations

import glob
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark import TaskContext

import headrace as hr
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.spark.conftest import session
from tests.support.pipelines import Collected, run_inline

pytestmark = pytest.mark.spark


class Row(msgspec.Struct):
    a: int
    b: int
    at: int


class Token(msgspec.Struct):
    a: int
    b: int
    token: str


def first_time(mark: str) -> bool:
    """Say True once in all processes."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@pytest.fixture(scope="module")
def two_slots() -> Iterator[Any]:
    """A local session with two task slots (four tasks come in two waves) where a task fails once only.

    Spark does not kill the process of a task that it has cancelled while tests want it stopped.
    """
    spark = session("local[2]", **{"spark.python.task.killTimeout": "1h"})
    yield spark
    spark.stop()


class Unsteady(hr.Computation):
    """Produces something else each time a task runs it."""

    out = hr.Output(Token)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        task_attempt = TaskContext.get().taskAttemptId()
        token = f"{task_attempt}-{uuid.uuid5(uuid.NAMESPACE_OID, str(task_attempt))}"
        ctx.produce("out", Token(record.value.a, record.value.b, token))


class Saboteur(hr.Computation):
    """Passes on; the first time that it runs it removes all shuffle files of the application."""

    out = hr.Output(Token)

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if first_time(self.mark):
            for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
                for file in glob.glob(f"{folder}/**/shuffle_*", recursive=True):
                    os.unlink(file)
        ctx.produce("out", record.value)


def test_a_step_is_never_mixed_of_attempts_with_different_results(
    two_slots: Any, tmp_path: Path
) -> None:
    """The first wave of consumers reads one attempt; then its files are deleted, the producers run
    again with another result, and the second wave reads that. The try must not be adopted."""
    rows = [Row(i % 8, i, i) for i in range(400)]
    pipeline, collected = hr.Pipeline("test"), Collected()
    stream = pipeline.inject("rows", hr.sources.Iterable(rows, Row, event_time="at"))
    unsteady = pipeline.compute("unsteady", Unsteady(), keys={stream: "a"})
    node = pipeline.compute("passes", Saboteur(str(tmp_path / "mark")), keys={unsteady: "b"})
    pipeline.sink("out", node, collected.sink("out"))
    driver = run_inline(
        pipeline,
        store=LocalStore(tmp_path / "store"),
        workers=4,
        rows=100,
        exchange="shuffle",
        runner=SparkRunner(two_slots.sparkContext),
        retain_steps=100,
    )
    assert (tmp_path / "mark").exists()
    first, _ = driver.ledger.read(1)
    assert first.attempt > 0, "no try was abandoned"
    for step in collected.rows()["out"]:
        tokens: dict[int, set[str]] = {}
        for row in step:
            tokens.setdefault(row[2], set()).add(row[4])
        assert len(step) == 100
        assert all(len(found) == 1 for found in tokens.values()), tokens


class Sleeper(hr.Computation):
    """Its first task stops itself; another one ends its process, so that the try fails; the next try
    wakes the stopped task, which goes on to write what nobody may ever read."""

    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.a
        ctx.produce("out", self.total.value)
        folder = Path(self.folder)
        if record.value.b == 1:
            if first_time(str(folder / "stopped")):
                (folder / "pid").write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
                (folder / "woken").touch()
            elif not (folder / "woken").exists():
                os.kill(int((folder / "pid").read_text()), signal.SIGCONT)
        if record.value.b == 2 and not (folder / "died").exists():
            while not (folder / "pid").exists():
                os.sched_yield()
            if first_time(str(folder / "died")):
                os._exit(9)


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
@pytest.mark.drawn(1)
def test_a_stopped_task_of_a_failed_try_that_wakes_in_the_next_harms_nothing(
    two_slots: Any, tmp_path: Path, exchange: str
) -> None:
    one, two = (next(i for i in range(1000) if hr.hash_key(i) >> 63 == bit) for bit in (0, 1))
    rows = [
        Row(key, b, at) for at, (key, b) in enumerate([(one, 0), (two, 0), (one, 1), (two, 2)] * 5)
    ]
    results = []
    for name in ("calm", "stormy"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "calm":
            for mark in ("stopped", "woken", "pid", "died"):
                (folder / mark).touch()
        pipeline, collected = hr.Pipeline("test"), Collected()
        stream = pipeline.inject("rows", hr.sources.Iterable(rows, Row, event_time="at"))
        node = pipeline.compute("sleeper", Sleeper(str(folder)), keys={stream: "a"})
        pipeline.sink("out", node, collected.sink("out"))
        driver = run_inline(
            pipeline,
            store=LocalStore(folder / "store"),
            workers=2,
            rows=4,
            exchange=exchange,
            runner=SparkRunner(two_slots.sparkContext),
            retain_steps=100,
        )
        results.append(collected.rows())
    assert driver.ledger.read(1)[0].attempt > 0
    assert (tmp_path / "stormy" / "woken").exists(), "the stopped task never went on"
    assert results[0] == results[1]
