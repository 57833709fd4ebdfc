"""Partitions on Spark: named by readers in tasks and by columns; expected, quiet, and held back."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.eventtime.timestamps import MIN_TIME
from headrace.ledger.head import Head
from headrace.runners.spark.runner import SparkRunner
from headrace.sources.inbox import Producer
from headrace.storage import LocalStore
from tests.support.durations import us
from tests.support.pipelines import Collected
from tests.unit.sources.test_partitions import Acts, Said, Several, Windows, passes, says

pytestmark = pytest.mark.spark

#: Two partitions, each in order, one far ahead of the other.
SLOW, FAST = list(range(200)), list(range(0, 2_000, 10))


def run(
    spark: Any,
    folder: Path,
    source: hr.sources.Source,
    *actions: Any,
    rows: int = 50,
    exchange: Any = "auto",
    drain: bool = False,
    **rules: Any,
) -> tuple[list[Head], list[int]]:
    """Run on Spark until nothing more is to come; return what was known after each step, and all counts."""
    pipeline, collected = hr.Pipeline("partitioned"), Collected()
    stream = pipeline.inject("in", source, **rules)
    node = pipeline.compute("windows", Windows(), keys={stream: "who"})
    pipeline.sink("out", node, collected.sink("out"))
    clock, heads = Acts(*actions), list[Head]()
    driver = Driver(
        pipeline,
        LocalStore(folder / "store"),
        SparkRunner(spark.sparkContext),
        workers=2,
        bins=4,
        clock=clock,
        drain=drain,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 20), exchange=exchange),
    )
    clock.driver = driver
    driver.listeners.append(lambda summary: heads.append(summary.head))
    try:
        driver.run()
    finally:
        driver.close()
    return heads, [row[2] for step in collected.rows().get("out", []) for row in step]


def test_a_readers_two_partitions_in_order_have_no_late_record(
    local_spark: Any, tmp_path: Path
) -> None:
    parts = {"slow": SLOW, "fast": FAST}
    reader = Several({"parts": json.dumps(parts), "cuts": json.dumps([90, 40, 120, 30])})
    source = hr.sources.SparkReader(reader, event_time="at")
    heads, _ = run(local_spark, tmp_path, source, exchange="shuffle")
    assert (heads[-1].counts["windows"].records, heads[-1].counts["windows"].late) == (400, 0)
    assert set(heads[-1].frontiers_of("in").parts) == {"0", "1"}
    assert heads[-1].frontiers_of("in").low == 199


def test_a_streams_partitions_by_columns_have_no_late_record(
    local_spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        lines = [
            json.dumps({"who": who, "shard": 7, "at": at})
            for who, ats in (("slow", SLOW), ("fast", FAST))
            for at in ats[number * 50 : number * 50 + 50]
        ]
        file = tmp_path / "in" / f"{number}.json"
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, (1_700_000_000 + number,) * 2)  # (Spark reads them by their time)
    frame = local_spark.readStream.schema("who string, shard int, at long")
    source = hr.sources.SparkStream(
        frame.option("maxFilesPerTrigger", 1).json(str(tmp_path / "in")),
        event_time="at",
        checkpoint=str(tmp_path / "checkpoint"),
        partition=("who", "shard"),
        trigger={"availableNow": True},
    )
    heads, closed = run(
        local_spark, tmp_path, source, _looks, drain=True, expect=("slow/7", "fast/7")
    )
    assert (heads[-1].counts["windows"].records, heads[-1].counts["windows"].late) == (400, 0)
    assert sum(closed) == 400


def _looks(clock: Acts) -> None:
    """Let the query's own threads get on; the input ends by itself."""
    threading.Event().wait(0.02)
    clock.actions.append(_looks)


def test_expectation_idleness_and_skew_hold_on_spark_what_they_hold_inline(
    local_spark: Any, tmp_path: Path
) -> None:
    inbox = LocalStore(tmp_path / "inbox")
    source = hr.sources.Inbox(tmp_path / "inbox", Said, event_time="at")
    rules: dict[str, Any] = {"expect": ("a", "b"), "idle_after": "10s", "skew_limit": us(100)}
    ahead = Producer(inbox, "a", type=Said, event_time="at")
    for at in range(0, 1_000, 50):
        ahead.append([Said("a", at)])

    def came(head: Head) -> int:
        return head.counts["windows"].records

    heads, _ = run(local_spark, tmp_path, source, passes(60), rows=1, **rules)
    assert heads[-1].frontiers_of("in").low == MIN_TIME, "b has not come"
    held = came(heads[-1])
    assert held < 20, "a is held back"
    heads, _ = run(local_spark, tmp_path, source, says(inbox, "b", 500), rows=1, **rules)
    assert heads[-1].frontiers_of("in").low == 500
    assert held < came(heads[-1]) < 21, "a has followed, as far as it may"
    quiet = [passes(1), passes(6), passes(6), passes(11)]
    heads, _ = run(local_spark, tmp_path, source, *quiet, rows=1, **rules)
    assert heads[-1].frontiers_of("in").parts["b"].idle
    assert (came(heads[-1]), heads[-1].counts["windows"].late) == (21, 0)
