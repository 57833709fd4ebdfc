"""An hour of resident workers, with a job of Spark's own each second: nothing grows, and nobody waits.

10^8 records go through a count. Figures are printed, and written to the file that HEADRACE_SOAK_JSON
names.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.latency import Paced

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.driver.driver import Driver
from headrace.pipeline.source import Limit, Offer, Position
from headrace.protocol.step_summary import StepSummary
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.spark.conftest import session
from tests.support.flat import check_flat, measure, session_settings
from tests.support.results import recording

pytestmark = [pytest.mark.spark, pytest.mark.soak]

RECORDS = int(os.environ.get("HEADRACE_SOAK_RECORDS", "100000000"))
SECONDS = int(os.environ.get("HEADRACE_SOAK_SECONDS", "3600"))
#: Records come in batches, so many a second.
BATCHES = 5
LOOKS = 20
FIRST_STEPS = 10


class InBatches(Paced):
    """Records at a constant rate, which become available some at a time."""

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        offer = super().offer(position, limit)
        if offer is None:
            return None
        end = offer.end - offer.end % (self.rate // BATCHES)
        return None if end <= position else Offer(end, end - position, (end - position) * 48)


class Count(hr.ColumnarComputation):
    """Counts the records of each key."""

    counts = hr.TableState({"count": int})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        rows.upsert(count=rows["count"] + batch.counts)


class JobEachSecond:
    """Runs an ordinary job of two tasks each second, in a thread of its own."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.seconds: list[float] = []

    def once(self) -> float:
        """Run one job. Return how long it took."""
        began = time.monotonic()
        assert self._context.parallelize(range(100), 2).map(str).count() == 100
        return time.monotonic() - began

    def _run(self) -> None:
        while not self._done.wait(1):
            self.seconds.append(self.once())

    def start(self) -> None:
        """Start with the jobs."""
        self._thread.start()

    def stop(self) -> None:
        """Run no more jobs."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()


def counted(store: LocalStore) -> int:
    """Return how many records the stored counts add up to."""
    rows = Checkpoints(store).open().read("count", "table:counts")
    return sum(rows.column("count").to_pylist())


@pytest.mark.parametrize("slots", [4, 2], ids=["slots to spare", "all slots taken"])
def test_an_hour_of_records_with_a_job_of_spark_each_second(slots: int, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    spark = session(f"local[{slots},4]", **session_settings(local))
    context = spark.sparkContext
    job = JobEachSecond(context)
    alone = max([job.once() for _ in range(20)][5:])
    pipeline = hr.Pipeline("hour")
    stream = pipeline.inject("records", InBatches(RECORDS // SECONDS, 100_000))
    pipeline.compute("count", Count(), keys={stream: "a"})
    store, runner = LocalStore(tmp_path / "store"), SparkRunner(context)
    driver = Driver(pipeline, store, runner, workers=2)
    seen: list[dict[str, int]] = []
    began = time.monotonic()
    resident = steps = 0
    longest_s, before_s = 0.0, 0.0

    def note(summary: StepSummary) -> None:
        nonlocal resident, steps, longest_s, before_s
        now_s = time.monotonic()
        longest_s = max(longest_s, now_s - before_s) if before_s else 0.0
        before_s = now_s
        steps += 1
        if steps == FIRST_STEPS:  # the processes of workers are there
            job.start()
        resident += runner.residents is not None
        if (now_s - began) * LOOKS / SECONDS > len(seen) + 1:
            look = measure(tmp_path / "store", local, context._jvm)
            seen.append({"second": round(now_s - began), **look})
            print(seen[-1], flush=True)
            before_s = time.monotonic()
        if summary.head.positions["records"] >= RECORDS:
            driver.request_stop(drain=False)

    with recording(f"hour_{slots}_slots") as keep:
        driver.listeners.append(note)
        try:
            driver.run()
        finally:
            job.stop()
            driver.close()
            spark.stop()
        head = driver.ledger.open()
        assert head is not None
        figures = {
            "records": head.positions["records"],
            "seconds": round(time.monotonic() - began),
            "steps": steps,
            "steps_of_residents": resident,
            "longest_between_steps_s": longest_s,
            "jobs": len(job.seconds),
            "job_alone_s": alone,
            "job_longest_s": max(job.seconds),
        }
        print(figures)
        keep({**figures, "looks": seen})
        assert counted(store) == head.positions["records"] >= RECORDS
        assert max(job.seconds) < alone + 2
        check_flat(seen)
