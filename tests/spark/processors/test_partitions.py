"""``partition=`` of the doors: the watermark waits for each partition, if it is one that knows them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import PipelineError
from tests.spark.processors.engines import SETTINGS, Noted, in_utc, run_on_headrace

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, site STRING, at TIMESTAMP"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from in_utc(**SETTINGS)


def forgetting() -> Any:
    """Return a processor that says when a key has been silent for ten seconds of event time."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Forgetting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in rows:
                self.handle.registerTimer(int(row.at.timestamp() * 1000) + 10_000)
            yield Row(said=f"{key[0]} came")

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Any]:
            yield Row(said=f"{key[0]} has gone")

        def close(self) -> None:
            pass

    return Forgetting()


def written(folder: Path, number: int, *rows: tuple[str, str, int]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps(
            {"k": k, "site": site, "at": f"2024-01-01T00:{second // 60:02}:{second % 60:02}Z"}
        )
        for k, site, second in rows
    ]
    file = folder / f"{number}.json"
    file.write_text("\n".join(lines) + "\n")
    os.utime(file, (1_700_000_000 + number,) * 2)


def test_a_site_that_is_behind_holds_the_watermark_and_loses_nothing(
    spark: Any, tmp_path: Path
) -> None:
    files = tmp_path / "in"
    written(files, 0, ("a", "near", 100), ("b", "far", 1))
    written(files, 1, ("c", "near", 200), ("d", "far", 5))
    written(files, 2, ("c", "near", 201), ("e", "far", 60))
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(files))
    pipeline, noted = hr.Pipeline("sites"), Noted()
    made = hr.spark.transform_with_state(
        frame.withWatermark("at", "1 second").groupBy("k"),
        forgetting(),
        "said STRING",
        "Append",
        "EventTime",
        pipeline=pipeline,
        checkpoint=str(tmp_path / "input"),
        watermark=hr.bounded_delay("1s"),
        partition="site",
    )
    run_on_headrace(pipeline, made.stream, made.schema, tmp_path, noted)
    found = [[row.split("'")[3] for row in batch] for batch in noted.in_order()]
    assert found == [
        ["a came", "b came"],
        ["c came", "d came"],
        ["b has gone", "c came", "d has gone", "e came"],
    ]


def test_partitions_need_a_watermark_that_knows_them(spark: Any, tmp_path: Path) -> None:
    frame = spark.readStream.schema(SCHEMA).json(str(tmp_path)).withWatermark("at", "1 second")
    door = hr.spark.transform_with_state
    arguments = [forgetting(), "said STRING", "Append", "EventTime"]
    for watermark in (None, hr.spark("1s")):
        with pytest.raises(PipelineError, match="which goes by the newest record of all") as caught:
            door(frame.groupBy("k"), *arguments, partition="site", watermark=watermark)
        assert "bounded_delay" in caught.value.remedy
    table = spark.createDataFrame([], SCHEMA).groupBy("k")
    with pytest.raises(PipelineError, match="is no stream"):
        door(table, *arguments, partition="site", watermark=hr.bounded_delay("1s"))
