"""State with a time to live on real Spark: as without it, through a migration and a restart."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.migrations import Goal
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore, MemoryStore
from tests.support.changing import begin, flat, items, run
from tests.support.durations import us
from tests.support.pipelines import Collected

pytestmark = pytest.mark.spark

TTL = 120


class Recent(hr.Computation):
    """Says what a page has had in the last 120 microseconds."""

    count = hr.ValueState(int, default=0, ttl=us(50))
    seen = hr.ListState(int, ttl=us(TTL))
    by = hr.MapState(int, int, ttl=us(TTL))
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        at = record.timestamp_us
        self.seen.append(at)
        self.by[at] = at
        self.count.value += 1
        ctx.produce("out", repr((at, list(self.seen), list(self.by), self.count.value)))


def recent(store: Any, runner: Any = None) -> Collected:
    collected = Collected()

    def rescale(driver: Any) -> None:
        command = Command("migrate", goal=Goal("rescale", 3), nonce=uuid.uuid4().hex)
        CommandLog(driver.store).put(command, 0)
        driver.look_for_commands()

    for acts, upto in (({15: rescale}, 40), ({}, 1 << 40)):
        spark = None if runner is None else SparkRunner(runner)
        run(begin(items(60), collected, recent=Recent()), store, acts, runner=spark, upto=upto)
    return collected


def test_what_expires_on_spark_is_what_expires_without_it(local_spark: Any, tmp_path: Path) -> None:
    collected = recent(LocalStore(tmp_path), local_spark.sparkContext)
    assert flat(collected, "recent") == flat(recent(MemoryStore()), "recent")
    said = [eval(row[-1]) for row in flat(collected, "recent")]
    assert len(said) == 60
    for at, seen, by, count in said:
        wanted = [before for before in range(at % 50, at + 1, 50) if before > at - TTL]
        assert (seen, by, count) == (wanted, wanted, 1)
