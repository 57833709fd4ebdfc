"""What cannot be sent to tasks is refused on Spark as inline; what is made there works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import PipelineError
from headrace.runners.spark.runner import SparkRunner
from tests.support.pipelines import Collected
from tests.unit.runners.test_unsendable import HoldsAClient, Item, Lazily

pytestmark = pytest.mark.spark


def built(computation: Any, collected: Collected) -> hr.Pipeline:
    pipeline = hr.Pipeline("sent")
    source = hr.sources.Iterable([Item("abc", 1, 1), Item("de", 1, 2)], Item, event_time="at")
    items = pipeline.inject("items", source)
    node = pipeline.compute("it", computation, keys={items: "key"})
    pipeline.sink("out", node, collected.sink("out"))
    return pipeline


def test_a_lock_in_a_computation_is_named_before_anything_runs(
    local_spark: Any, tmp_path: Path
) -> None:
    pipeline = built(HoldsAClient(), Collected())
    runner = SparkRunner(local_spark.sparkContext)
    lock = r"self\.clients\['one'\]\._lock is a _thread\.lock"
    with (
        pytest.raises(PipelineError, match=lock) as caught,
        hr.run(pipeline, storage=str(tmp_path), runner=runner) as job,
    ):
        job.drain()
    assert len(str(caught.value).splitlines()) == 3


def test_a_client_that_is_made_where_it_is_used_works_in_tasks(
    local_spark: Any, tmp_path: Path
) -> None:
    collected = Collected()
    pipeline = built(Lazily(), collected)
    runner = SparkRunner(local_spark.sparkContext)
    with hr.run(pipeline, storage=str(tmp_path), runner=runner, workers=2) as job:
        job.drain()
    rows = [row for step in collected.rows()["out"] for row in step]
    assert sorted(row[2] for row in rows) == [4, 6]
