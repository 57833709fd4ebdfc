"""Runs on Spark that catch up, end, and are reopened."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import InputGoesOn
from tests.support.ending_runs import Site

pytestmark = pytest.mark.spark


def write(folder: Path, name: str, *minutes: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({"page": "a", "at": f"2024-05-01T10:{minute:02d}:00Z"}) for minute in minutes
    ]
    (folder / name).write_text("\n".join(lines) + "\n")


class Nightly:
    """A pipeline over a streaming DataFrame of files, run again and again on one storage."""

    def __init__(self, spark: Any, place: Path, trigger: dict[str, Any] | None) -> None:
        self.spark, self.place, self.trigger = spark, place, trigger

    def run(self, end: str, **how: Any) -> Counter[int]:
        """Run it to an end; return how many records each window of ten minutes has that was produced."""
        produced: list[Any] = []
        frame = self.spark.readStream.schema("page STRING, at TIMESTAMP").option(
            "maxFilesPerTrigger", 1
        )
        source = hr.sources.SparkStream(
            frame.json(str(self.place / "in")),
            event_time="at",
            checkpoint=str(self.place / "checkpoint"),
            trigger=self.trigger,
        )
        pipeline = hr.Pipeline("nightly")
        stream = pipeline.inject("hits", source, watermark=hr.ascending())
        counts = pipeline.compute("counts", hr.ops.TumblingCount("10m"), keys={stream: "page"})
        pipeline.sink(
            "out", counts, hr.sinks.Calls(lambda _, rows: produced.extend(rows.to_pylist()))
        )
        with hr.run(
            pipeline, storage=self.place / "state", runner="inline", workers=2, **how
        ) as job:
            assert getattr(job, end)(180)
        self.ended, self.head = job.ended, job.head
        return Counter({row["window_start"].minute: row["count"] for row in produced})


@pytest.mark.parametrize(
    "trigger", [{"availableNow": True}, None], ids=["availableNow", "no trigger"]
)
def test_a_streaming_dataframe_is_caught_up_with_night_after_night(
    local_spark: Any, tmp_path: Path, trigger: dict[str, Any] | None
) -> None:
    nightly = Nightly(local_spark, tmp_path, trigger)
    write(tmp_path / "in", "1.json", 1)
    write(tmp_path / "in", "2.json", 2, 12)
    assert nightly.run("catch_up") == Counter({0: 2})
    assert nightly.ended == "caught up" and nightly.head.ended == []
    assert nightly.run("catch_up") == Counter()
    write(tmp_path / "in", "3.json", 13, 25)
    assert nightly.run("catch_up") == Counter({10: 2})


def test_a_streaming_dataframe_that_has_more_after_its_end_is_refused_or_reopened(
    local_spark: Any, tmp_path: Path
) -> None:
    nightly = Nightly(local_spark, tmp_path, {"availableNow": True})
    write(tmp_path / "in", "1.json", 1, 12)
    assert nightly.run("drain") == Counter({0: 1, 10: 1})
    assert nightly.run("drain") == Counter()
    write(tmp_path / "in", "2.json", 13, 25)
    with pytest.raises(InputGoesOn, match="injector 'hits': 2 or more records"):
        nightly.run("drain")
    assert nightly.run("drain", reopen=["hits"]) == Counter({20: 1})
    assert nightly.head.counts["counts"].late == 1


def test_a_run_on_spark_catches_up_and_is_reopened(local_spark: Any, tmp_path: Path) -> None:
    site = Site(tmp_path, runner="spark")
    site.write("1.jsonl", [("a", 1), ("a", 12)])
    assert site.run("catch_up") == Counter({("a", 0): 1})
    site.write("2.jsonl", [("a", 13), ("b", 25)])
    assert site.run("drain") == Counter({("a", 10): 2, ("b", 20): 1})
    site.write("3.jsonl", [("a", 26), ("a", 31)])
    with pytest.raises(InputGoesOn):
        site.run("drain")
    assert site.run("drain", reopen=["hits"]) == Counter({("a", 30): 1})
    assert site.late() == 1  # the window of b at 25 was over for all keys
