"""NEXMark's events for Spark's own batches and streams."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from benchmarks.nexmark.events import columns_of, read
from benchmarks.nexmark.spark_source import register
from benchmarks.nexmark.timeline import Kind, Timeline

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(local_spark: Any) -> Any:
    register(local_spark)
    return local_spark


def made(timeline: Timeline, kind: Kind) -> pa.Table:
    assert timeline.events is not None
    return pa.concat_tables(read(timeline, kind, 0, timeline.events, columns_of(kind, None)))


def test_spark_reads_the_same_events_as_a_batch_and_as_a_stream(spark: Any, tmp_path: Any) -> None:
    options = {"kind": "bid", "events": "30000", "disorder": "64", "seed": "3"}
    expected = made(Timeline(events=30_000, disorder=64, seed=3), Kind.BID)
    batch = spark.read.format("nexmark").options(**options).load().toArrow()
    assert batch.sort_by("event").equals(expected.sort_by("event").cast(batch.schema))
    stream = spark.readStream.format("nexmark").options(**options, eventsPerTrigger="12000").load()
    query = (
        stream.writeStream.format("memory").queryName("nexmark_bids").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path)).start()
    )  # fmt: skip
    query.awaitTermination(120)
    assert len([p for p in query.recentProgress if p["numInputRows"]]) == 3
    found = spark.sql("select * from nexmark_bids").toArrow()
    assert found.sort_by("event").equals(batch.sort_by("event").cast(found.schema))


def test_what_spark_is_asked_for_and_cannot_be_is_refused(spark: Any) -> None:
    for options in ({"colour": "red"}, {"events": "many"}, {"columns": "id,colour"}):
        with pytest.raises(Exception, match="nexmark"):
            spark.read.format("nexmark").options(kind="bid", **options).load()
    endless = spark.read.format("nexmark").option("kind", "bid").load()
    with pytest.raises(Exception, match="a batch has an end"):
        endless.count()
