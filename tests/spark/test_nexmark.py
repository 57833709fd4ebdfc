"""NEXMark's events for Spark's own batches and streams, and its queries in plain PySpark."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from benchmarks.nexmark.by_batches import QUERIES as BY_BATCHES

from headrace.nexmark.queries import module_of
from headrace.nexmark.queries.spark_market import SparkMarket, native_writer
from headrace.nexmark.spark_source import register
from headrace.nexmark.timeline import Kind, Timeline
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.support.nexmark_runs import PREPARED, check_against
from tests.unit.nexmark.oracle import QUERIES as SQL
from tests.unit.nexmark.oracle import Oracle, all_events, difference, last_of

pytestmark = pytest.mark.spark

QUERIES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]
#: What the key of an answer is called here.
KEYS = {
    **{number: {"auction": "key"} for number in (1, 13, 14, 17, 19, 20, 21, 22)},
    9: {"id": "key"},
    11: {"bidder": "key"},
    15: {"day": "key"},
    16: {"channel": "key0", "day": "key1"},
    18: {"bidder": "key0", "auction": "key1"},
}


MANY = Timeline(events=2_000_000, rate=10_000, in_flight=1_000, disorder=20_000, seed=1)


@pytest.fixture(scope="module")
def spark(local_spark: Any) -> Any:
    register(local_spark)
    local_spark.conf.set("spark.sql.shuffle.partitions", "2")
    return local_spark


def test_what_the_page_shows_runs(spark: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/run-nexmark.md").read_text()
    for block in (found := re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        exec(compile(block, "run-nexmark.md", "exec", dont_inherit=True), {"spark": spark})
    assert len(found) == 2


def test_spark_reads_the_same_events_as_a_batch_and_as_a_stream(spark: Any, tmp_path: Any) -> None:
    options = {"kind": "bid", "events": "30000", "disorder": "64", "seed": "3"}
    expected = all_events(Timeline(events=30_000, disorder=64, seed=3), Kind.BID)
    batch = spark.read.format("nexmark").options(**options).load().toArrow()
    assert batch.sort_by("event").equals(expected.sort_by("event").cast(batch.schema))
    stream = spark.readStream.format("nexmark").options(**options, eventsPerTrigger="12000").load()
    query = (
        stream.writeStream.format("memory")
        .queryName("nexmark_bids")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    query.awaitTermination(120)
    assert len([p for p in query.recentProgress if p["numInputRows"]]) == 3
    found = spark.sql("select * from nexmark_bids").toArrow()
    assert found.sort_by("event").equals(batch.sort_by("event").cast(found.schema))


def test_what_spark_is_asked_for_and_cannot_be_is_refused(spark: Any) -> None:
    for options in (
        {"colour": "red"},
        {"kind": "bid", "events": "1", "beginMicros": "1"},
        {"kind": "colour"},
        {"events": "many"},
        {"parts": "0"},
        {"columns": "id,colour"},
    ):
        with pytest.raises(Exception, match="nexmark"):
            spark.read.format("nexmark").options(**{"kind": "bid", **options}).load()
    endless = spark.read.format("nexmark").option("kind", "bid").load()
    with pytest.raises(Exception, match="a batch has an end"):
        endless.count()


def answers(query: Any, market: SparkMarket, folder: Path) -> tuple[pa.Table, str]:
    """Return all that a query answers, and the watermark that it came to."""
    found: list[pa.Table] = []
    running = (
        native_writer(query, market)
        .foreachBatch(lambda batch, _: found.append(batch.toArrow()))
        .trigger(availableNow=True)
        .option("checkpointLocation", str(folder))
        .start()
    )
    running.awaitTermination()
    return pa.concat_tables(found), running.lastProgress["eventTime"].get("watermark", "")


def answers_by_batches(
    number: int, market: SparkMarket, folder: Path, answered: list[pa.Table]
) -> None:
    """Run a query whose last part is by micro-batches; each is computed twice, as after a crash."""
    kept = BY_BATCHES[f"q{number}"](folder / "kept")

    def take(batch: Any, number: int) -> None:
        first, again = (kept.answer(batch, number).toArrow() for _ in range(2))
        assert difference(first, again) == (0, 0)
        answered.append(again)

    market.spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    writer = kept.stream(market).writeStream.outputMode("append").foreachBatch(take)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def over(answer: pa.Table, number: int, watermark: str, found: pa.Table) -> pa.Table:
    """Return the answers of windows that are over; Spark's watermark stays behind the newest event.

    (Of auctions those that have closed by the newest that is answered: that is half a minute at least.)
    """
    if number == 9:
        newest = pc.max(found["expires"])
        assert newest.as_py() > pc.min(answer["expires"]).as_py() + timedelta(seconds=30)
        return answer.filter(pc.less_equal(answer["expires"], newest))
    end = answer["window_end"] if "window_end" in answer.column_names else None
    if number == 8:
        end = pc.add(answer["window_start"], pa.scalar(timedelta(seconds=10)))
    if end is None:
        return answer
    return answer.filter(pc.less_equal(end, pa.scalar(datetime.fromisoformat(watermark))))


def check(spark: Any, number: int, folder: Path, times: int = 1) -> None:
    """Check a query in plain PySpark against SQL over the same events, a minute of them, out of order."""
    knobs = {
        "events": 30_000 * times,
        "rate": 500 * times,
        "in_flight": 300 * times,
        "disorder": 64,
    }
    spark.conf.set(
        "spark.sql.session.timeZone", "Asia/Kathmandu"
    )  # (events are of UTC all the same)
    options = {**knobs, "inFlight": knobs["in_flight"], "eventsPerTrigger": 12_000 * times}
    del options["in_flight"]
    query = module_of(f"q{number}")
    found, watermark = answers(query, SparkMarket(spark, options, delay="1 second"), folder)
    names = KEYS.get(number, {})
    found = found.rename_columns([names.get(name, name) for name in found.column_names])
    if hasattr(query, "LATEST"):
        found = last_of(found, query.LATEST)
    oracle = Oracle(Timeline(**knobs))
    if number in (4, 6):
        check_of_closed(oracle, number, found)
        return
    expected = over(oracle.answer(f"q{number}"), number, watermark, found)
    assert expected.num_rows
    assert difference(expected, found) == (0, 0)


def check_of_closed(oracle: Oracle, number: int, found: pa.Table) -> None:
    """Check what is told of auctions that have closed: it is what was right at one of the closings."""
    sold = oracle.answer("q9").sort_by("expires")
    newest = pc.min(sold["expires"]).as_py()
    if number == 6:
        newest = pc.max(sold.filter(pc.is_in(sold["key"], found["auction"]))["expires"]).as_py()
        told = sold.filter(pc.less_equal(sold["expires"], newest))["key"]
        expected = oracle.answer("q6")
        expected = expected.filter(pc.is_in(expected["auction"], told))
        assert difference(expected, found) == (0, 0)
    else:
        means = {row["key"]: row["average"] for row in found.to_pylist()}
        prices: dict[int, list[int]] = {}
        for one in sold.to_pylist():
            prices.setdefault(one["category"], []).append(one["price"])
            if means == {of: sum(each) / len(each) for of, each in prices.items()}:
                newest = one["expires"]
    assert newest > pc.min(sold["expires"]).as_py() + timedelta(seconds=30)


@pytest.mark.soak
@pytest.mark.parametrize("number", [4, 6])
def test_means_that_are_kept_by_batches_are_those_of_sql(
    spark: Any, tmp_path: Path, number: int
) -> None:
    """(The benchmark holds ours against the faster of two forms in plain PySpark: this is one.)"""
    knobs = {"events": 30_000, "rate": 500, "in_flight": 300, "disorder": 64}
    options = {"events": 30_000, "rate": 500, "inFlight": 300, "disorder": 64}
    found: list[pa.Table] = []
    market = SparkMarket(spark, {**options, "eventsPerTrigger": 12_000}, delay="1 second")
    answers_by_batches(number, market, tmp_path, found)
    told = pa.concat_tables(found)
    assert len([table for table in found if table.num_rows]) > 1
    check_of_closed(
        Oracle(Timeline(**knobs)), number, told if number == 6 else last_of(told, ["key"])
    )


def test_windows_of_the_clock_count_every_bid_once(spark: Any, tmp_path: Path) -> None:
    options = {"events": 30_000, "eventsPerTrigger": 12_000}
    query = module_of("q12")
    found = last_of(answers(query, SparkMarket(spark, options), tmp_path)[0], query.LATEST)
    counts = found.group_by("key").aggregate([("bids", "sum")])
    bids = all_events(Timeline(events=30_000), Kind.BID)
    expected = bids.group_by("bidder").aggregate([("bidder", "count")])
    assert dict(zip(*counts.to_pydict().values(), strict=True)) == dict(
        zip(*expected.to_pydict().values(), strict=True)
    )


def check_of_ours(spark: Any, query: str, timeline: Timeline, step: int, folder: Path) -> None:
    """Check a query while its state moves, on Spark, against SQL over the same events."""
    runner, store = SparkRunner(spark.sparkContext), LocalStore(folder)
    how = {"moves": PREPARED, "store": store, "runner": runner}
    check_against(Oracle(timeline), query, timeline, 2, step, **how)


def test_a_query_answers_as_sql_does_while_its_state_moves(spark: Any, tmp_path: Path) -> None:
    timeline = Timeline(events=20_000, rate=1_000, in_flight=300, disorder=2_048, seed=1)
    check_of_ours(spark, "q4", timeline, 1_000, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("query", SQL)
def test_queries_answer_two_million_events_as_sql_does_while_their_state_moves(
    spark: Any, query: str, tmp_path: Path
) -> None:
    check_of_ours(spark, query, MANY, 50_000, tmp_path)


def test_a_query_in_plain_pyspark_answers_as_sql_does(spark: Any, tmp_path: Path) -> None:
    check(spark, 5, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("number", QUERIES)
def test_queries_in_plain_pyspark_answer_as_sql_does(
    spark: Any, number: int, tmp_path: Path
) -> None:
    check(spark, number, tmp_path, times=10)
