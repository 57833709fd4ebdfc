"""Groups whose key is a struct are those of Spark's own engine, and so is the form of the key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.spark.processors.engines import (
    SETTINGS,
    Noted,
    in_utc,
    run_on_headrace,
    run_on_spark,
)

pytestmark = pytest.mark.spark

SCHEMA = "f STRUCT<x: DOUBLE, i: INT, at: TIMESTAMP>, t TIMESTAMP"
KEYS: list[Any] = [
    {"x": 0.0, "i": 1, "at": "2024-01-01T10:00:00Z"},
    {"x": 0.0, "i": 1, "at": "2024-01-01T10:00:00Z"},
    {"x": None, "i": None, "at": None},
    {"x": 2.5, "i": 1, "at": None},
    None,
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from in_utc(**SETTINGS)


def counting() -> Any:
    """Return a processor that counts rows, and shows its key."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle, self.count = handle, handle.getValueState("count", "n INT")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            before = self.count.get()
            self.count.update(((before[0] if before else 0) + len(list(rows)),))
            self.handle.registerTimer(1_704_067_201_000)
            yield Row(said=f"{key!r} {self.count.get()}")

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Any]:
            yield Row(said=f"timer {key!r} {self.count.get()}")

        def close(self) -> None:
            pass

    return Counting()


def test_structs_are_keys_as_in_spark(spark: Any, tmp_path: Path) -> None:
    files = tmp_path / "in"
    files.mkdir()
    for number in range(2):
        rows = [{"f": key, "t": f"2024-01-01T00:00:{10 + number}Z"} for key in KEYS[number:]]
        file = files / f"{number}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_700_000_000 + number,) * 2)
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(files))
    grouped = frame.withWatermark("t", "1 second").groupBy("f")
    arguments = [counting(), "said STRING", "Update", "eventTime"]
    theirs, ours = Noted(), Noted()
    run_on_spark(grouped.transformWithState(*arguments), tmp_path / "spark", theirs)
    pipeline, checkpoint = hr.Pipeline("structs"), str(tmp_path / "input")
    made = hr.spark.transform_with_state(
        grouped, *arguments, pipeline=pipeline, checkpoint=checkpoint
    )
    run_on_headrace(pipeline, made.stream, made.schema, tmp_path, ours)
    assert ours.in_order() == theirs.in_order()
    assert [len(batch) for batch in theirs.in_order()] == [4, 8]
