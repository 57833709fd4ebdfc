"""What a processor keeps in attributes lasts on Headrace as long as on Spark's own engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.spark.processors.engines import (
    SETTINGS,
    Batches,
    Noted,
    batches_of,
    in_utc,
    read,
    run_on_headrace,
    run_on_spark,
)
from tests.spark.processors.random_processors import Case

pytestmark = pytest.mark.spark

OUTPUT = "said STRING"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from in_utc(**{**SETTINGS, "spark.sql.shuffle.partitions": "1"})


def remembering() -> Any:
    """Return a processor that counts in attributes: what it was made with, by key, and in all."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Remembering(StatefulProcessor):
        def __init__(self) -> None:
            self.made = {"calls": 0}
            self.by_key: dict[Any, int] = {}

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.all = 0
            self.timers = 0

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            found = list(rows)
            self.made["calls"] += 1
            self.all += len(found)
            self.by_key[key] = self.by_key.get(key, 0) + len(found)
            for row in found:
                self.handle.registerTimer(int(row.t.timestamp() * 1000) + row.v)
            yield Row(said=f"rows of {key}: {self.by_key[key]}, timers {self.timers}")

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Any]:
            self.timers += 1
            rows = self.by_key.get(tuple(key), 0)
            said = f"{self.timers}: {tuple(key)} had {rows}, all {self.all} in {self.made['calls']}"
            yield Row(said=f"timer {expiredTimerInfo.getExpiryTimeInMs()} {said}")

        def close(self) -> None:
            pass

    return Remembering()


def both(spark: Any, case: Case, folder: Path) -> tuple[Batches, Batches]:
    def on_spark(files: Path, state: Path, noted: Noted, count: int) -> None:
        grouped = read(spark, case, files)
        frame = grouped.transformWithState(remembering(), OUTPUT, "Update", case.mode)
        run_on_spark(frame, state, noted)

    def on_headrace(files: Path, state: Path, noted: Noted, count: int) -> None:
        pipeline = hr.Pipeline("attributes")
        made = hr.spark.transform_with_state(
            read(spark, case, files),
            remembering(),
            OUTPUT,
            "Update",
            case.mode,
            pipeline=pipeline,
            checkpoint=str(state / "input"),
            watermark=hr.spark("10s"),
        )
        run_on_headrace(pipeline, made.stream, made.schema, state, noted, workers=1)

    return batches_of(case, folder, on_spark, on_headrace)


def test_attributes_last_over_the_keys_and_timers_of_a_batch_on_one_worker(
    spark: Any, tmp_path: Path
) -> None:
    case = Case(77, "eventTime", False, ("k",), 3, 3, True, nulls=False)
    theirs, ours = both(spark, case, tmp_path)
    assert ours == theirs
    timers = [said for batch in theirs for said in batch if "timer 1" in said]
    assert any(": ('a',) had 0" not in said for said in timers)
    assert len(timers) > 5
