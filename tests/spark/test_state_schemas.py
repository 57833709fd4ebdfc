"""State of another shape on real Spark: upgraded in its Python workers, live and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import SchemaChanged, UserCodeError
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore, MemoryStore
from tests.support.changing import Count, ask, begin, flat, items, run
from tests.support.pipelines import Collected

pytestmark = pytest.mark.spark


class Strokes(Count):
    """Counts on, in strokes."""

    count = hr.ValueState(str, default="", version=2, upgrade={1: (int, lambda n: "|" * n)})  # type: ignore[assignment]

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += "|"
        ctx.produce("out", f"v2 {len(self.count.value)}")


class Broken(Strokes):
    count = hr.ValueState(str, default="", version=2, upgrade={1: lambda n: f"{n:nonsense}"})  # type: ignore[assignment]


def changed_half_way(store: Any, runner: Any = None) -> Collected:
    collected = Collected()

    def strokes(driver: Any) -> None:
        ask(driver, lambda p: p.replace("count", Strokes()) and None)

    run(begin(items(60), collected, count=Count()), store, {30: strokes}, runner=runner, slices=4)
    return collected


def test_a_live_change_upgrades_state_as_it_does_without_spark(
    local_spark: Any, tmp_path: Path
) -> None:
    collected = changed_half_way(LocalStore(tmp_path), SparkRunner(local_spark.sparkContext))
    assert flat(collected, "count") == flat(changed_half_way(MemoryStore()), "count")
    for page in {row[0] for row in flat(collected, "count")}:
        counts = [int(row[-1].split()[1]) for row in flat(collected, "count") if row[0] == page]
        assert counts == list(range(1, 13)), "each began where the older code had left it"


def test_a_restart_says_whose_upgrade_failed_and_goes_on_when_it_is_mended(
    local_spark: Any, tmp_path: Path
) -> None:
    store, collected = LocalStore(tmp_path), Collected()

    def start(count: int, computation: Any, **more: Any) -> None:
        runner = SparkRunner(local_spark.sparkContext)
        run(begin(items(count), collected, count=computation), store, runner=runner, **more)

    start(30, Count(), upto=30)
    with pytest.raises(UserCodeError, match="state 'count', key 'p") as caught:
        start(60, Broken())
    assert 'f"{n:nonsense}"' in str(caught.value)
    start(60, Strokes())
    assert max(int(row[-1].split()[1]) for row in flat(collected, "count")) == 12
    with pytest.raises(SchemaChanged, match="stored as version 2, and the code's is 1"):
        start(60, Count())
