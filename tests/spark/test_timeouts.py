"""Tasks that never end, on Spark: they are ended with their place, and with their Python process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.driver import watchdog
from headrace.errors import TaskTimeout
from headrace.ledger.ledger import Ledger
from headrace.runners.spark.runner import SparkRunner
from headrace.sinks import Calls
from headrace.storage import LocalStore
from tests.spark.conftest import session
from tests.support.waiting import until

pytestmark = pytest.mark.spark


class Item(msgspec.Struct):
    name: str
    at: int


class Hangs(hr.Computation):
    """Hangs with one key, in a call that a signal wakes, or with signals held back as some C code does."""

    out = hr.Output(str)

    def __init__(self, mark: str, *, deaf: bool) -> None:
        self.mark = mark
        self.deaf = deaf

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value.name == "n3":
            with open(f"{self.mark}.part", "w") as file:
                file.write(str(os.getpid()))
            os.rename(f"{self.mark}.part", self.mark)
            if self.deaf:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
            time.sleep(1_000)
        ctx.produce("out", record.value.name)


class Echo(hr.Computation):
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.name)


def job(spark: Any, computation: hr.Computation, folder: Path, **more: Any) -> hr.Job:
    pipeline = hr.Pipeline("hangs")
    items = [Item(f"n{n}", n) for n in range(1, 6)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("slow", computation, keys={stream: "name"})
    pipeline.sink("out", node, Calls(lambda delivery: None))
    return hr.run(
        pipeline,
        storage=folder / "storage",
        workers=2,
        runner=SparkRunner(spark.sparkContext, spares=0),
        settings=hr.Settings(limit=hr.Limit(1, 1 << 20), **more.pop("settings", {})),
        **more,
    )


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session whose Python processes are warm, so that no first step is taken for one that hangs."""
    found = session("local[2]")
    with job(found, Echo(), tmp_path_factory.mktemp("warm")) as runs:
        assert runs.drain("300s")
    yield found
    found.stop()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(") ")[2].startswith("Z")


def committed(folder: Path) -> int:
    head = Ledger(LocalStore(folder / "storage")).open()
    return 0 if head is None else head.done


@pytest.mark.parametrize("exchange", ["auto", "shuffle"])
@pytest.mark.drawn(4, "whoever dies")
def test_a_task_that_takes_too_long_ends_the_pipeline_with_its_place(
    spark: Any, tmp_path: Path, exchange: str
) -> None:
    hangs = Hangs(str(tmp_path / "pid"), deaf=False)
    with (
        pytest.raises(TaskTimeout) as raised,
        job(spark, hangs, tmp_path, task_timeout="10s", settings={"exchange": exchange}) as runs,
    ):
        runs.drain("120s")
    assert raised.value.place == "computation 'slow', key 'n3', step 3"
    assert committed(tmp_path) == 2
    with job(spark, Echo(), tmp_path) as runs:
        assert runs.drain("120s"), "the next start goes on"
    assert committed(tmp_path) >= 5


@pytest.mark.drawn(4, "whoever dies")
def test_a_task_that_does_not_end_by_itself_is_killed_with_its_process(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_S", 2.0)
    mark = tmp_path / "pid"
    with (
        pytest.raises(TaskTimeout) as raised,
        job(spark, Hangs(str(mark), deaf=True), tmp_path, task_timeout="10s") as runs,
    ):
        runs.drain("120s")
    assert raised.value.place == "computation 'slow', key 'n3', step 3"
    until(lambda: is_gone(int(mark.read_text())), 120)
    assert committed(tmp_path) == 2


def test_a_running_task_is_cancelled_from_this_process_and_from_another_one(
    spark: Any, tmp_path: Path
) -> None:
    for how in ("here", "there"):
        folder = tmp_path / how
        folder.mkdir()
        mark = folder / "pid"
        with job(spark, Hangs(str(mark), deaf=False), folder) as runs:
            until(mark.exists, 120)
            if how == "here":
                assert runs.cancel("60s")
            else:
                said = CliRunner().invoke(
                    main, ["stop", "--now", "--storage", str(folder / "storage"), "--wait", "60"]
                )
                assert said.exit_code == 0, said.output
                assert "cancelled at computation 'slow', key 'n3', step 3" in said.output
                assert runs.wait("60s")
            assert runs.ended == "cancelled at computation 'slow', key 'n3', step 3"
        assert committed(folder) == 2
    with job(spark, Echo(), folder) as runs:
        assert runs.drain("120s"), "what was asked is over once it is cancelled"
