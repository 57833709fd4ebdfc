"""A day of steps leaves disk, memory, threads and shuffle files flat. 5 000 steps here, on Spark.

Figures are printed, and written to the file that HEADRACE_SOAK_JSON names.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.protocol.step_summary import StepSummary
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.spark.conftest import session
from tests.support.flat import check_flat, measure, session_settings
from tests.support.results import recording

pytestmark = [pytest.mark.spark, pytest.mark.soak]

STEPS = int(os.environ.get("HEADRACE_SOAK_STEPS", "5000"))
EVERY = STEPS // 10
ROWS = 200


class Tick(msgspec.Struct):
    key: int
    at: int


class Sliding(hr.Computation):
    """Counts, and forgets by timers, so that what must be kept stays the same."""

    count = hr.ValueState(int, default=0)
    quiet = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        self.quiet.set(record.timestamp_us + 2_000)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.count.value)
        self.count.clear()


def ticks() -> Any:
    return (Tick((n * 7919) % 5_000, n) for n in itertools.count())


@pytest.mark.parametrize("exchange", ["driver", "shuffle"])
def test_thousands_of_steps_leave_disk_memory_and_threads_flat(
    exchange: Any, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    local.mkdir()
    spark = session("local[2]", **session_settings(local))
    jvm = spark.sparkContext._jvm
    pipeline = hr.Pipeline("soak")
    received = [0]
    stream = pipeline.inject("ticks", hr.sources.Iterable(ticks, Tick, event_time="at"))
    node = pipeline.compute("sliding", Sliding(), keys={stream: "key"})
    pipeline.sink("out", node, hr.sinks.Calls(lambda step, rows: received.__setitem__(0, step)))
    driver = Driver(
        pipeline,
        LocalStore(tmp_path / "store"),
        SparkRunner(spark.sparkContext),
        workers=2,
        settings=hr.Settings(limit=hr.Limit(ROWS, 1 << 20), exchange=exchange),
    )
    seen: list[dict[str, int]] = []

    def note(summary: StepSummary) -> None:
        if summary.step % EVERY == 0:
            seen.append({"step": summary.step, **measure(tmp_path / "store", local, jvm)})
        if summary.step >= STEPS:
            driver.request_stop(drain=False)

    with recording(f"flat_{exchange}") as keep:
        driver.listeners.append(note)
        try:
            driver.run()
        finally:
            driver.close()
            spark.stop()
        for row in seen:
            print(row)
        keep(seen)
        assert received[0] >= STEPS - 1
        check_flat(seen)
