"""A source begins where a query of Structured Streaming has come to, by the query's checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import Damaged, NotFound, PipelineError
from headrace.storage import LocalStore, open_store
from tests.support.kafka import Kafka, new_topic, write

offsets_of = hr.sources.Kafka.offsets_of

#: What Spark 4.3 writes about a batch.
BATCH = (
    '{"batchWatermarkMs":0,"batchTimestampMs":1795847443537,"conf":{"spark.sql.streaming.stateStore'
    '.providerClass":"org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",'
    '"spark.sql.streaming.join.stateFormatVersion":"2","spark.sql.shuffle.partitions":"2"}}'
)
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
HITS = '{"hits":{"0":8,"1":7,"2":0}}'
ORDERS = '{"orders":{"0":15}}'


def batch(checkpoint: Path, number: int, *sources: str, committed: bool = True) -> None:
    """Write a batch as Spark does: without a newline at the end, and with a checksum beside it."""
    put(checkpoint, f"offsets/{number}", "\n".join(["v1", BATCH, *sources]))
    if committed:
        put(checkpoint, f"commits/{number}", COMMIT)


def put(checkpoint: Path, name: str, text: str) -> None:
    path = checkpoint / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\x00")


def test_offsets_are_those_of_the_last_committed_batch(tmp_path: Path) -> None:
    for number in range(12):  # (names are not in order of their numbers)
        batch(tmp_path, number, f'{{"hits":{{"0":{number},"1":{number * 2}}}}}')
    batch(tmp_path, 12, '{"hits":{"0":99,"1":99}}', committed=False)
    assert offsets_of(tmp_path) == {"hits": {0: 11, 1: 22}}


def test_older_batches_may_have_been_purged(tmp_path: Path) -> None:
    batch(tmp_path, 250, HITS)
    assert offsets_of(tmp_path)["hits"] == {0: 8, 1: 7, 2: 0}


def test_a_query_may_have_several_sources_and_sources_several_topics(tmp_path: Path) -> None:
    batch(tmp_path, 0, '{"hits":{"0":8},"pages":{"0":3}}', '{"logOffset":0}', "-", "5", ORDERS)
    hits, pages, orders = {0: 8}, {0: 3}, {0: 15}
    assert offsets_of(tmp_path) == {"hits": hits, "pages": pages, "orders": orders}
    assert offsets_of(tmp_path, "orders") == {"orders": orders}
    assert offsets_of(tmp_path, ["pages", "orders"]) == {"pages": pages, "orders": orders}
    assert offsets_of(tmp_path, re.compile(".*s")) == offsets_of(tmp_path)
    assert offsets_of(tmp_path, re.compile("hit|pag..")) == {"pages": pages}


def test_sources_have_names_in_version_2(tmp_path: Path) -> None:
    put(tmp_path, "offsets/0", "\n".join(["v2", BATCH, f"orders_in:{ORDERS}", f"0:{HITS}", "1:-"]))
    put(tmp_path, "commits/0", COMMIT)
    assert offsets_of(tmp_path) == {"orders": {0: 15}, "hits": {0: 8, 1: 7, 2: 0}}


def test_a_topic_that_is_read_twice_is_returned_if_both_have_come_as_far(tmp_path: Path) -> None:
    batch(tmp_path, 0, HITS, HITS)
    assert offsets_of(tmp_path) == {"hits": {0: 8, 1: 7, 2: 0}}
    batch(tmp_path, 1, HITS, '{"hits":{"0":8,"1":7,"2":1}}', ORDERS)
    with pytest.raises(PipelineError, match="'hits' twice, and has come to different offsets"):
        offsets_of(tmp_path)
    assert offsets_of(tmp_path, "orders") == {"orders": {0: 15}}


@pytest.mark.parametrize(
    ("topics", "problem"),
    [
        ("clicks", r"does not read topic 'clicks' of Kafka"),
        (["hits", "clicks", "views"], r"does not read topic 'clicks', topic 'views' of Kafka"),
        (re.compile("c.*"), r"does not read one of 'c\.\*' of Kafka"),
    ],
)
def test_topics_that_the_query_does_not_read_are_refused_with_those_that_it_reads(
    tmp_path: Path, topics: Any, problem: str
) -> None:
    batch(tmp_path, 0, HITS, ORDERS)
    with pytest.raises(PipelineError, match=problem) as refused:
        offsets_of(tmp_path, topics)
    assert refused.value.remedy == "it reads: hits, orders"


def test_a_query_of_other_sources_is_refused(tmp_path: Path) -> None:
    batch(tmp_path, 0, '{"logOffset":0}')
    with pytest.raises(PipelineError, match="does not read a topic of Kafka"):
        offsets_of(tmp_path)


@pytest.mark.parametrize("there", ["nothing", "uncommitted", "other"])
def test_where_no_batch_is_committed_nothing_is_found_and_nothing_is_written(
    tmp_path: Path, there: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    if there == "uncommitted":
        batch(checkpoint, 0, HITS, committed=False)
    elif there == "other":
        put(checkpoint, "commits/_metadata", "{}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotFound, match="no batch of a query is committed there"):
        offsets_of(checkpoint)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_batch_that_lost_its_offsets_is_not_found(tmp_path: Path) -> None:
    batch(tmp_path, 3, HITS)
    put(tmp_path, "commits/4", COMMIT)
    with pytest.raises(NotFound, match="batch 4 is committed, and its offsets are not there"):
        offsets_of(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        f"v1\n{BATCH}",
        f"v1\n{BATCH}\n" + HITS[:-3],
        f"v2\n{BATCH}\n{HITS}",
        f"version 1\n{BATCH}\n{HITS}",
        f"v1\n{BATCH}\n{HITS}\n\n",
    ],
)
def test_offsets_that_are_cut_or_strange_are_damage(tmp_path: Path, text: str) -> None:
    batch(tmp_path, 0, HITS)
    put(tmp_path, "offsets/0", text)
    with pytest.raises(Damaged, match="the offsets of a batch cannot be read") as refused:
        offsets_of(tmp_path)
    assert refused.value.place.endswith("offsets/0")


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    batch(tmp_path, 0, HITS)
    (tmp_path / "offsets/0").write_bytes(b"v1\n\xff\xfe")
    with pytest.raises(Damaged):
        offsets_of(tmp_path)


def test_a_later_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    batch(tmp_path, 0, HITS)
    put(tmp_path, "offsets/0", f"v3\n{BATCH}\n{HITS}")
    with pytest.raises(PipelineError, match="version 3, of which nothing is known") as refused:
        offsets_of(tmp_path)
    assert "start={topic: {partition: offset}}" in str(refused.value)


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_a_checkpoint_may_be_in_an_object_store_or_in_hdfs(
    request: pytest.FixtureRequest, kind: str
) -> None:
    location = request.getfixturevalue(kind).location()
    store = open_store(location)
    for number in (9, 10):
        store.create(f"offsets/{number}", f"v1\n{BATCH}\n{HITS}".encode())
        store.create(f"commits/{number}", COMMIT.encode())
    assert offsets_of(location) == offsets_of(store) == {"hits": {0: 8, 1: 7, 2: 0}}


def test_a_store_and_a_path_are_taken_too(tmp_path: Path) -> None:
    batch(tmp_path, 0, HITS)
    assert offsets_of(LocalStore(tmp_path)) == offsets_of(str(tmp_path)) == offsets_of(tmp_path)


def test_spark_s_names_of_places_are_answered_with_ours() -> None:
    for place, ours in (("s3a://bucket/c", "s3://"), ("hdfs://name/c", "webhdfs://")):
        with pytest.raises(PipelineError, match=ours):
            offsets_of(place)


def test_a_source_goes_on_where_the_query_was(kafka: Kafka, tmp_path: Path) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, [(None, msgspec.json.encode({"n": n})) for n in range(10)])
    batch(tmp_path, 0, f'{{"{topic}":{{"0":7}}}}')
    source = hr.sources.Kafka(
        topic, servers=kafka.bootstrap, schema={"n": int}, start=offsets_of(tmp_path, topic)
    )
    offer = source.offer(source.start(), hr.Limit(100, 1 << 20))
    assert offer is not None and offer.rows == 3
