"""Light steps on Spark: processes and soft files are lost between checkpoints; results are as they were."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.ledger.ledger import Ledger
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from headrace.storage.soft import SOFT
from tests.spark.conftest import session
from tests.support.durations import us

pytestmark = pytest.mark.spark

ROWS, STEPS, EVERY = 40, 16, 4


class Row(msgspec.Struct):
    key: int
    at: int


class Tally(hr.Computation):
    """Counts; at some records it loses its process, or what was left on the host, once each."""

    deterministic = True
    number = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def __init__(self, marks: str) -> None:
        self.marks = marks

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        ctx.produce("out", self.number.value)
        step, rest = divmod(record.value.at, ROWS)
        if rest == 0 and step in (5, 10) and self._first(f"{step}"):
            if step == 10:
                for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
                    shutil.rmtree(f"{folder}/headrace/{SOFT}", ignore_errors=True)
            os._exit(9)

    def _first(self, name: str) -> bool:
        try:
            os.close(os.open(f"{self.marks}/{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A local session with two task slots where a task fails once only."""
    started = session("local[2]")
    yield started
    started.stop()


@pytest.mark.parametrize("exchange", ["auto", "driver", "host", "shuffle"])
@pytest.mark.drawn(4, "whoever dies")
def test_lost_processes_and_hosts_between_checkpoints_leave_no_trace(
    spark: Any, tmp_path: Path, exchange: str
) -> None:
    (tmp_path / "marks").mkdir()
    rows = [Row(i * 7 % 11, i) for i in range(ROWS * STEPS)]
    found: dict[int, list[int]] = {}
    delivered: list[int] = []

    def take(delivery: hr.sinks.Delivery) -> None:
        delivered.append(delivery.id)
        for row in delivery.rows.to_pylist():
            found.setdefault(row["key"], []).append(row["value"])

    pipeline = hr.Pipeline("light")
    stream = pipeline.inject(
        "rows", hr.sources.Iterable(rows, Row, event_time="at"), watermark=hr.bounded_delay(us(0))
    )
    tally = pipeline.compute("tally", Tally(str(tmp_path / "marks")), keys={stream: "key"})
    pipeline.sink("out", tally["out"], hr.sinks.Calls(take, idempotent=True))
    store = LocalStore(tmp_path / "store")
    driver = Driver(
        pipeline,
        store,
        SparkRunner(spark.sparkContext),
        workers=2,
        bins=8,
        drain=True,
        settings=Settings(
            limit=hr.Limit(ROWS, 1 << 30),
            exchange=exchange,
            checkpoint_steps=EVERY,
            slices=4,
            retain_steps=100,
        ),
    )
    try:
        driver.run()
    finally:
        driver.close()
    assert sorted(path.name for path in (tmp_path / "marks").iterdir()) == ["10", "5"]
    expected: dict[int, list[int]] = {}
    for row in rows:
        expected.setdefault(row.key, []).append(len(expected.get(row.key, [])) + 1)
    assert found == expected and delivered == sorted(set(delivered))
    manifests = Ledger(store).newest(100)
    uncheckpointed = [one for one in manifests if one.intent is not None]
    assert len(uncheckpointed) >= STEPS // 2 and not any(one.runs for one in uncheckpointed)
    assert manifests[-1].uncheckpointed is False
