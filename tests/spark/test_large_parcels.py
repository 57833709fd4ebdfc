"""What is too large for a property of a job goes to its tasks by another way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.runners.spark import left_bytes
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.support.pipelines import run_inline

pytestmark = pytest.mark.spark


class Text(msgspec.Struct):
    """A record with a text that does not compress."""

    key: int
    at: int
    body: bytes


class Lengths(hr.Computation):
    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += len(record.value.body)
        ctx.produce("out", self.total.value)


class Spied:
    """A Spark context that notes how long the properties are that are set."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.longest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def setLocalProperty(self, name: str, value: str | None) -> None:
        self.longest = max(self.longest, len(value or ""))
        self._context.setLocalProperty(name, value)


@pytest.mark.parametrize("where", ["on the host", "in the storage"])
@pytest.mark.drawn(1)
def test_large_parcels_are_no_properties_of_jobs(
    local_spark: Any, tmp_path: Path, where: str
) -> None:
    """60 MB of wide rows went to each task as a property."""
    import random

    drawn = random.Random(3)
    records = [Text(n % 3, n, drawn.randbytes(700_000)) for n in range(12)]
    pipeline = hr.Pipeline("wide")
    stream = pipeline.inject("texts", hr.sources.Iterable(records, Text, event_time="at"))
    node = pipeline.compute("lengths", Lengths(), keys={stream: "key"})
    found: list[int] = []
    sink = hr.sinks.Calls(lambda _, rows: found.extend(rows.column("value").to_pylist()))
    pipeline.sink("out", node, sink)
    spied = Spied(local_spark.sparkContext)
    runner = SparkRunner(local_spark.sparkContext)
    runner._properties._sc = spied
    store = LocalStore(tmp_path)
    if where == "in the storage":
        runner._make_spool = lambda: None  # type: ignore[method-assign]
    run_inline(pipeline, store=store, workers=2, rows=12, exchange="driver", runner=runner)
    assert sorted(found) == sorted(700_000 * (n // 3 + 1) for n in range(12))
    assert 0 < spied.longest <= left_bytes.MOST_PROPERTY_BYTES
    assert store.list("probes/") == []
