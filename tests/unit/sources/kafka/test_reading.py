"""The Kafka source reads each committed record once, on a real broker, whatever the topics go through."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import BadInput, HeadraceError, NotFound, PipelineError, SourceChanged
from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN
from headrace.sources.kafka.dividing import shares
from headrace.sources.kafka.position import PartitionOf, decoded
from headrace.storage import MemoryStore
from tests.support.kafka import Kafka, NewKafka, new_topic, producer, read, write

LIMIT = hr.sources.Limit(1_000_000, 1 << 30)


class Hit(msgspec.Struct):
    """A record: its page, with where it was."""

    page: str
    partition: int
    offset: int


WHERE = {"partition": "kafka.partition", "offset": "kafka.offset"}


def source(kafka: Kafka, topics: Any, **options: Any) -> hr.sources.Kafka:
    given: dict[str, Any] = {"type": Hit, "columns": WHERE, **options}
    return hr.sources.Kafka(topics, servers=kafka.bootstrap, **given)


def hit(page: object) -> bytes:
    return msgspec.json.encode({"page": str(page)})


def offered(of: hr.sources.Kafka, position: Any, limit: hr.sources.Limit = LIMIT) -> Any:
    """Return the next offer that has records, or None if nothing is waiting."""
    while True:
        found = of.offer(position, limit)
        if found is not None and not found.empty:
            return found
        if found is None and not _is_behind(of, position, limit):
            return None
        position = position if found is None else found.end


def _is_behind(of: hr.sources.Kafka, position: Any, limit: hr.sources.Limit) -> bool:
    """Return whether there are records behind a position. (They may not have come yet.)"""
    end: dict[PartitionOf, int] = of.now(position)
    if limit.until is not None:
        end = {part: min(offset, limit.until.get(part, 0)) for part, offset in end.items()}
    at = dict(decoded(position).partitions())
    return any(
        at.get(part, 0) < offset for part, offset in end.items() if part.name not in limit.paused
    )


def everything(
    of: hr.sources.Kafka, limit: hr.sources.Limit = LIMIT, position: Any = None
) -> tuple[list[dict[str, Any]], Any]:
    """Return all records that there are, division by division, each read twice; and the position."""
    position = of.start() if position is None else position
    rows: list[dict[str, Any]] = []
    while (found := offered(of, position, limit)) is not None:
        splits = of.splits(position, found.end)
        tables = [of.read(split) for split in splits]
        assert tables == [of.for_tasks().read(split) for split in reversed(splits)][::-1]
        rows += [row for table in tables for row in table.to_pylist()]
        position = found.end
    return rows, position


def where(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows]


def test_records_have_the_columns_of_the_value_and_of_the_message(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    writer = producer(kafka)
    writer.produce(
        topic,
        b'{"page": "/", "n": 3}',
        b"k\xff",
        timestamp=1_500,
        headers=[("a", b"1"), ("a", None)],
    )
    writer.flush()
    schema = {"page": str, "n": int, "key": bytes, "at": datetime}
    columns = {"key": "kafka.key", "at": "kafka.timestamp"}
    (rows, _) = everything(source(kafka, topic, type=None, schema=schema, columns=columns))
    at = datetime.fromtimestamp(1.5, UTC)
    assert rows == [{TIMESTAMP_COLUMN: 1_500_000, "page": "/", "n": 3, "key": b"k\xff", "at": at}]


def test_json_over_several_lines_is_one_record(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, [(None, b'{\n "page":\r\n "a\\nb"}\n'), (None, hit("c"))])
    rows, _ = everything(source(kafka, topic))
    assert [row["page"] for row in rows] == ["a\nb", "c"]


@given(st.data())
def test_what_is_read_is_what_was_committed(kafka: Kafka, data: st.DataObject) -> None:
    topic = new_topic(kafka, partitions=3)
    of = source(kafka, topic)
    position: Any = None
    rows: list[dict[str, Any]] = []
    writer = producer(kafka, transactional_id=topic)
    writer.init_transactions()
    for _ in range(data.draw(st.integers(1, 3), "rounds")):
        for kind in data.draw(st.lists(st.sampled_from(["plain", "commit", "abort"]), max_size=3)):
            records = data.draw(st.lists(st.integers(0, 2), max_size=6), "partitions")
            to = writer if kind != "plain" else producer(kafka)
            if kind != "plain":
                writer.begin_transaction()
            for partition in records:
                to.produce(topic, hit(kind), partition=partition)
            to.flush()
            if kind == "commit":
                writer.commit_transaction()
            elif kind == "abort":
                writer.abort_transaction()
        limit = hr.sources.Limit(data.draw(st.integers(1, 10), "limit"), 1 << 30)
        more, position = everything(of, limit, position)
        rows += more
    committed = [(m.partition(), m.offset()) for m in read(kafka, topic)]
    assert sorted(where(rows)) == committed
    for number in range(3):  # in the order of each partition
        assert [w for w in where(rows) if w[0] == number] == [
            w for w in committed if w[0] == number
        ]
    of.close()


def test_a_step_takes_as_much_as_the_limit_allows_and_all_partitions_share(kafka: Kafka) -> None:
    topic = new_topic(kafka, partitions=4)
    for partition in range(4):
        writer = producer(kafka)
        for n in range(100 * partition):
            writer.produce(topic, hit(n), partition=partition)
        writer.flush()
    of = source(kafka, topic)
    found = offered(of, of.start(), hr.sources.Limit(90, 1 << 30))
    assert found.end["topics"][topic]["next"] == [0, 30, 30, 30]
    assert set(found.parts) == {f"{topic}/{n}" for n in range(4)}
    size = len(hit(10))
    found = offered(of, of.start(), hr.sources.Limit(1_000, 60 * size))
    assert 50 <= found.rows <= 70
    paused = hr.sources.Limit(90, 1 << 30, paused=frozenset({f"{topic}/3", f"{topic}/2"}))
    assert offered(of, of.start(), paused).end["topics"][topic]["next"] == [0, 90, 0, 0]


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 200))
def test_shares_take_all_that_the_limit_allows_and_none_more_than_it_has(
    waiting: list[int], most: int
) -> None:
    of = {PartitionOf("t", n): count for n, count in enumerate(waiting)}
    found = shares(of, most)
    assert sum(found.values()) == min(most, sum(waiting))
    assert all(0 < found[part] <= of[part] for part in found)
    smallest = min(found.values(), default=0)
    for part, count in of.items():
        if len(found) == sum(map(bool, waiting)):  # who gets less than others has no more
            assert found.get(part, 0) >= min(count, smallest)


def test_a_run_that_catches_up_reads_what_was_there_when_it_began(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, [(None, hit(n)) for n in range(3)])
    of = source(kafka, topic)
    mark = of.now(of.start())
    write(kafka, topic, [(None, hit(n)) for n in range(3)])
    until = hr.sources.Limit(100, 1 << 30, until=mark)
    found = offered(of, of.start(), until)
    assert found.rows == 3
    assert offered(of, found.end, until) is None


def test_partitions_and_topics_that_come_later_are_read_from_their_start(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    of = source(kafka, re.compile(re.escape(topic) + "(-more)?"))
    write(kafka, topic, [(None, hit("a"))])
    rows, position = everything(of)
    from confluent_kafka.admin import NewPartitions

    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    kafka.create_topic(topic + "-more", partitions=2)
    writer = producer(kafka)
    writer.produce(topic, hit("b"), partition=2)
    writer.produce(topic + "-more", hit("c"), partition=1)
    writer.flush()
    again = source(kafka, re.compile(re.escape(topic) + "(-more)?"))  # (which looks at once)
    more, position = everything(again, position=position)
    assert [row["page"] for row in rows + more] == ["a", "b", "c"]
    assert position["topics"][topic]["next"] == [1, 0, 1]
    assert position["topics"][topic + "-more"]["next"] == [0, 1]


def test_a_partition_is_named_to_the_watermark_before_it_has_records(kafka: Kafka) -> None:
    topic = new_topic(kafka, partitions=2)
    of = source(kafka, topic)
    first = of.offer(of.start(), LIMIT)
    assert first is not None
    assert first.empty
    assert set(first.parts) == {f"{topic}/0", f"{topic}/1"}
    assert of.offer(first.end, LIMIT) is None


def test_a_thousand_partitions_are_read_in_few_splits(kafka: Kafka) -> None:
    topic = new_topic(kafka, partitions=1_000)
    write(kafka, topic, [(str(n).encode(), hit(n)) for n in range(3_000)])
    of = source(kafka, topic)
    found = offered(of, of.start())
    assert found.rows == 3_000
    assert len(of.splits(of.start(), found.end)) == 1
    rows, position = everything(of)
    assert len(set(where(rows))) == 3_000
    assert {row["page"] for row in rows} == {str(n) for n in range(3_000)}
    assert len(msgspec.json.encode(position)) < 8_000


def test_a_start_can_be_the_end_a_time_or_offsets(kafka: Kafka) -> None:
    topic = new_topic(kafka, partitions=2)
    writer = producer(kafka)
    for n in range(10):
        writer.produce(topic, hit(n), partition=n % 2, timestamp=1_000 * (n + 1))
    writer.flush()

    def begun(start: Any) -> list[int]:
        found: list[int] = source(kafka, topic, start=start).start()["topics"][topic]["next"]
        return found

    assert begun("earliest") == [0, 0]
    assert begun("latest") == [5, 5]
    assert begun(datetime.fromtimestamp(5, UTC)) == [2, 2]
    assert begun(datetime.fromtimestamp(6.0001, UTC)) == [3, 3]
    assert begun(datetime.fromtimestamp(100, UTC)) == [5, 5]
    assert begun({topic: {0: 1, 1: 5}}) == [1, 5]
    for wrong, what in [
        ({topic: {0: 1}}, "names no offset of partition 1"),
        ({topic: {0: 1, 1: 2, 2: 0}}, "partition 2"),
        ({topic: {0: 6, 1: 2}}, "offset 6"),
    ]:
        with pytest.raises(PipelineError, match=what):
            begun(wrong)
    with pytest.raises(PipelineError, match="no start"):
        source(kafka, topic, start="first")
    with pytest.raises(PipelineError, match="no time zone"):
        source(kafka, topic, start=datetime(2026, 1, 1))  # noqa: DTZ001


def test_records_that_are_gone_are_an_error_and_never_skipped_unless_that_is_said(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, [(None, hit(n)) for n in range(10)])
    of = source(kafka, topic)
    begin = of.start()
    found = offered(of, begin)
    admin = kafka.admin()
    [future] = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    future.result()
    with pytest.raises(SourceChanged, match=r"partition 0 from offset 0 on are gone"):
        offered(source(kafka, topic), begin)
    with pytest.raises(SourceChanged, match=r"partition 0 from offset 0 on are gone"):
        source(kafka, topic).recover(begin, found.end)
    with pytest.raises(SourceChanged, match=r"partition 0 from offset 0 on are gone"):
        of.for_tasks().read(of.splits(begin, found.end)[0])
    skipping = source(kafka, topic, lost="skip")
    with caplog.at_level(logging.WARNING, "headrace"):
        rows, _ = everything(skipping, position=begin)
    assert [row["page"] for row in rows] == ["4", "5", "6", "7", "8", "9"]
    assert "up to 4 records of partition 0 are skipped" in caplog.text


def test_a_topic_that_was_deleted_or_made_again_is_an_error(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, [(None, hit(1))])
    _, position = everything(source(kafka, topic))
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result()
    with pytest.raises((SourceChanged, NotFound)):
        offered(source(kafka, topic), position)
    kafka.create_topic(topic)
    write(kafka, topic, [(None, hit(n)) for n in range(5)])
    with pytest.raises(SourceChanged, match="it was deleted since"):
        offered(source(kafka, topic), position)


def test_a_topic_that_is_added_begins_at_its_oldest_record_and_none_may_be_left_out(
    kafka: Kafka,
) -> None:
    one, two = new_topic(kafka), new_topic(kafka)
    write(kafka, one, [(None, hit("a"))])
    write(kafka, two, [(None, hit(n)) for n in range(5)])
    admin = kafka.admin()
    [future] = admin.delete_records([TopicPartition(two, 0, 3)]).values()
    future.result()
    _, position = everything(source(kafka, [one]))
    rows, position = everything(source(kafka, [one, two]), position=position)
    assert [row["page"] for row in rows] == ["3", "4"]
    with pytest.raises(SourceChanged, match="was read, and is not among the topics any more"):
        offered(source(kafka, [one]), position)


def test_a_topic_that_is_not_there_is_named(kafka: Kafka) -> None:
    with pytest.raises(NotFound, match="'nowhere' does not exist"):
        source(kafka, "nowhere").start()


def test_a_record_that_cannot_be_read_is_named_or_put_aside(kafka: Kafka) -> None:
    topic = new_topic(kafka, partitions=2)
    writer = producer(kafka)
    values = [hit(0), b'{"page": 7}', hit(1), b"{", b"", None, hit(2), b"\xff"]
    for value in values:
        writer.produce(topic, value, partition=1)
    writer.produce(topic, hit(3), partition=0)
    writer.flush()
    of = source(kafka, topic)
    begin = of.start()
    found = offered(of, begin)
    (split,) = of.splits(begin, found.end)
    with pytest.raises(BadInput, match=r"page") as error:
        of.read(split)
    assert f"topic {topic!r}, partition 1, offset 1" in str(error.value)
    good, bad = of.for_tasks().sift(split)
    assert good is not None
    assert [row["page"] for row in good.to_pylist()] == ["3", "0", "1", "2"]
    assert good.column(PARTITION_COLUMN).to_pylist() == [f"{topic}/0", *[f"{topic}/1"] * 3]
    assert [letter.place for letter in bad] == [
        f"topic {topic!r}, partition 1, offset {n}" for n in (1, 3, 4, 5, 7)
    ]
    assert bad[0].text == '{"page": 7}'


def test_tombstones_are_records_without_a_value_or_dropped(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, [(b"a", hit(1)), (b"b", None), (b"c", hit(2))])
    schema = {"page": str | None, "key": bytes, "gone": bool}
    columns = {"key": "kafka.key", "gone": "kafka.tombstone"}
    of: dict[str, Any] = {"type": None, "schema": schema, "columns": columns}
    rows, _ = everything(source(kafka, topic, **of))
    assert [(row["key"], row["page"], row["gone"]) for row in rows] == [
        (b"a", "1", False),
        (b"b", None, True),
        (b"c", "2", False),
    ]
    rows, _ = everything(source(kafka, topic, tombstones="drop", **of))
    assert [row["key"] for row in rows] == [b"a", b"c"]


def test_a_consumer_group_tells_how_far_the_pipeline_has_come(kafka: Kafka) -> None:
    topic = new_topic(kafka, partitions=2)
    write(kafka, topic, [(None, hit(n)) for n in range(10)], partitioner="consistent_random")
    of = source(kafka, topic, group_id=f"lag-{topic}")
    _, position = everything(of)
    of.committed(position)
    of.close()  # (waits for the answer)
    from confluent_kafka import ConsumerGroupTopicPartitions

    group = ConsumerGroupTopicPartitions(f"lag-{topic}")
    admin = kafka.admin()
    found = admin.list_consumer_group_offsets([group])[f"lag-{topic}"].result()
    told = {of.partition: of.offset for of in found.topic_partitions}
    next_ = position["topics"][topic]["next"]
    assert told == {n: offset for n, offset in enumerate(next_) if offset}


@pytest.mark.drawn(4, "Kafka under faults")
def test_a_broker_that_was_killed_and_is_back_is_read_again(new_kafka: NewKafka) -> None:
    kafka = new_kafka()
    topic = new_topic(kafka)
    write(kafka, topic, [(None, hit(1))])
    of = source(kafka, topic)
    rows, position = everything(of)
    for n in (2, 3):
        kafka.kill()
        while of.offer(position, LIMIT) is None:  # until it says that it is looking
            pass
        kafka.restart()
        write(kafka, topic, [(None, hit(n))])
        while not any(row["page"] == str(n) for row in rows):
            more, position = everything(of, position=position)
            rows += more
    assert [row["page"] for row in rows] == ["1", "2", "3"]


def test_records_of_ten_megabytes_are_read(new_kafka: NewKafka) -> None:
    kafka = new_kafka(message_max_bytes=20_000_000)
    topic = new_topic(kafka, max_message_bytes=20_000_000)
    large = msgspec.json.encode({"page": "x" * 10_000_000})
    write(
        kafka, topic, [(None, large), (None, hit(1)), (None, large)], message_max_bytes=20_000_000
    )
    rows, _ = everything(source(kafka, topic))
    assert [len(row["page"]) for row in rows] == [10_000_000, 1, 10_000_000]


def test_a_compacted_topic_has_gaps_that_are_no_losses(new_kafka: NewKafka) -> None:
    kafka = new_kafka(log_cleaner_backoff_ms=50)
    topic = new_topic(
        kafka,
        cleanup_policy="compact",
        segment_bytes=1_048_576,
        segment_ms=100,
        min_cleanable_dirty_ratio=0.01,
    )
    pages = [(b"%d" % (n % 5), hit("x" * 20_000 + str(n))) for n in range(400)]
    write(kafka, topic, pages)
    write(kafka, topic, [(b"last", hit("end"))])
    while len(read(kafka, topic)) > 300:  # the broker compacts in the background
        write(kafka, topic, [(b"last", hit("end"))])
    of = source(kafka, topic)
    left = {(m.partition(), m.offset()) for m in read(kafka, topic)}
    rows, _ = everything(of, hr.sources.Limit(50, 1 << 30))
    # Compaction goes on while it is read: what is gone by now was there or not.
    still = {(m.partition(), m.offset()) for m in read(kafka, topic)}
    assert still <= set(where(rows)) <= left | still
    assert len(where(rows)) == len(set(where(rows)))


def test_a_source_tells_no_secrets(kafka: Kafka) -> None:
    settings = {
        "sasl.password": "hunter2",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "u",
    }
    of = source(kafka, "topic", settings={**settings, "sasl.mechanism": "PLAIN"})
    assert "hunter2" not in repr(of) + repr(of.read_by()) + repr(of.__dict__)
    assert not isinstance(of, HeadraceError)


def test_csv_and_texts_and_change_events_are_read(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    write(kafka, topic, [(b"k", b'1;"a;b\nc"'), (None, b"2;"), (None, b"x;y"), (None, b"")])
    of: dict[str, Any] = {"type": None, "schema": {"n": int, "text": str | None}, "columns": None}
    csv = source(kafka, topic, format=hr.messages.Csv(["n", "text"], delimiter=";"), **of)
    found = offered(csv, csv.start())
    good, bad = csv.sift(csv.splits(csv.start(), found.end)[0])
    assert good is not None
    rows = good.drop_columns([TIMESTAMP_COLUMN]).to_pylist()
    assert rows == [{"n": 1, "text": "a;b\nc"}, {"n": 2, "text": None}]
    assert [letter.place[-1] for letter in bad] == ["2", "3"]
    texts = source(kafka, topic, format="text", type=str, columns=None)
    rows, _ = everything(texts)
    assert [row["value"] for row in rows] == ['1;"a;b\nc"', "2;", "x;y", ""]


def test_change_events_of_debezium_are_rows_and_what_happened_to_them(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    events = [
        {"op": "c", "before": None, "after": {"id": 1, "name": "a"}},
        {"op": "u", "before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": "b"}},
        {"op": "d", "before": {"id": 1, "name": "b"}, "after": None},
    ]
    write(kafka, topic, [(b"1", msgspec.json.encode(event)) for event in events])
    schema = {"id": int, "name": str, "op": str}
    of: dict[str, Any] = {"type": None, "schema": schema, "columns": None}
    rows, _ = everything(
        source(kafka, topic, format=hr.messages.Debezium(hr.messages.Json()), **of)
    )
    assert [(row["op"], row["id"], row["name"]) for row in rows] == [
        ("insert", 1, "a"),
        ("update", 1, "b"),
        ("delete", 1, "b"),
    ]


def test_times_of_brokers_are_promises(kafka: Kafka) -> None:
    topic = new_topic(kafka, partitions=2, message_timestamp_type="LogAppendTime")
    of = source(kafka, topic, log_append_time=True)
    of.open(MemoryStore())
    position = of.start()
    for count in (3, 2):
        write(kafka, topic, [(None, hit(n)) for n in range(count)])
        found = offered(of, position)
        stamps: dict[str, int] = {}
        for message in read(kafka, topic):
            stamps[f"{topic}/{message.partition()}"] = message.timestamp()[1] * 1_000
        promised = {name: part.promise_us for name, part in found.parts.items()}
        assert promised == {name: stamps.get(name) for name in promised}
        position = found.end


def test_times_of_producers_are_no_promises(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    with pytest.raises(PipelineError, match="producers stamp"):
        source(kafka, topic, log_append_time=True).open(MemoryStore())
    with pytest.raises(PipelineError, match="event_time"):
        of: dict[str, Any] = {"type": None, "schema": {"at": datetime}, "columns": None}
        source(kafka, topic, log_append_time=True, event_time="at", **of)
