"""Steps that are delivered to topics of a real Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import (
    Fenced,
    NotFound,
    PipelineError,
    SinkConflict,
    StorageError,
    UserCodeError,
)
from headrace.messages import servers as servers_module
from headrace.pipeline.sink import Deliverer, Delivery
from headrace.sinks import kafka_steps
from headrace.sinks.kafka import Kafka as KafkaSink
from tests.faults.tables.deliveries import SCHEMA
from tests.support.kafka_commits import committed
from tests.support.kafka_formats import Lines, Plain

if TYPE_CHECKING:
    from tests.support.kafka import Kafka

pytest.importorskip("confluent_kafka")

STEPS = "headrace.steps"
MS = timedelta(milliseconds=1)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def run(
    lineage: str = "1a", sink: str = "out", newest: int = 10**9, storage: str = "s1"
) -> Deliverer:
    """Return a run to which everything up to a delivery is known."""
    return Deliverer(lineage, storage, "p", sink, -1, frozenset([newest]))


def delivery(number: int, rows: dict[str, int] | pa.Table, epoch: int = 1) -> Delivery:
    """Return a delivery of a row for each key, or of a table."""
    if isinstance(rows, dict):
        times = [NOON] * len(rows)
        rows = pa.table([list(rows), times, list(rows.values())], schema=SCHEMA)
    return Delivery(number, number, rows, {}, epoch=epoch)


class World:
    """A topic of a real Kafka, and sinks that write to it."""

    def __init__(self, kafka: Kafka, **options: Any) -> None:
        from tests.support import kafka as support

        self.kafka, self._support = kafka, support
        self.topic = support.new_topic(kafka, **options)
        self.steps = support.new_topic(kafka, cleanup_policy="compact")

    def sink(
        self, *, schema: pa.Schema = SCHEMA, of: Deliverer | None = None, **options: Any
    ) -> Any:
        """Return a sink that has begun."""
        made = self.unbegun(schema=schema, **options)
        made.begin(of or run())
        return made

    def unbegun(self, *, schema: pa.Schema = SCHEMA, **options: Any) -> KafkaSink:
        usual: dict[str, Any] = {
            "topic": None if "topic_column" in options else self.topic,
            "servers": self.kafka.bootstrap,
            "format": Lines(),
            "key_format": Plain(),
            "steps_topic": self.steps,
        }
        made = KafkaSink(**{**usual, **options})
        made.check(schema)
        return made

    def deliver(self, rows: pa.Table | dict[str, int], **options: Any) -> None:
        """Deliver rows by a sink of their own."""
        given = rows if isinstance(rows, pa.Table) else delivery(0, rows).rows
        sink = self.sink(schema=given.schema, **options)
        sink.receive(delivery(0, given))
        sink.close()

    def messages(self, topic: str | None = None) -> list[Any]:
        return committed(self.kafka, topic or self.topic)

    def uncommitted(self) -> list[Any]:
        return self._support.read(self.kafka, self.topic, committed=False)

    def rows(self) -> list[tuple[str, int]]:
        """Return keys and values of what a reader of committed messages sees."""
        found = [json.loads(message.value()) for message in self.messages()]
        return sorted((row["key"], row["n"]) for row in found)

    def markers(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in self.messages(self.steps)]

    def other_producer(self, **options: Any) -> Any:
        """Return a producer that has begun a transaction."""
        made = self._support.producer(self.kafka, **options)
        made.init_transactions(30)
        made.begin_transaction()
        return made


@pytest.fixture
def world(kafka: Kafka) -> World:
    return World(kafka)


def table(**columns: Any) -> pa.Table:
    """Return rows with a key, a timestamp, and further columns."""
    keys = columns.pop("key", None)
    times = columns.pop("timestamp", None)
    count = len(next(iter(columns.values())))
    first = {
        "key": pa.array(keys or [f"k{n}" for n in range(count)], pa.string()),
        "timestamp": pa.array(times or [NOON] * count, pa.timestamp("us", "UTC")),
    }
    return pa.table({**first, **columns})


# -- once --------------------------------------------------------------------------------------


def test_a_step_is_a_transaction_and_delivering_it_again_changes_nothing(world: World) -> None:
    sink = world.sink()
    sink.receive(delivery(3, {"a": 1, "b": 2}))
    sink.receive(delivery(3, {"a": 1, "b": 2}))
    sink.receive(delivery(7, {"a": 3}))
    for number in (3, 7):
        world.sink().receive(delivery(number, {"a": 1}, epoch=2))
    assert world.rows() == [("a", 1), ("a", 3), ("b", 2)]


@settings(
    max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(back=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_steps_that_come_again_in_any_way_leave_the_rows_of_each_once(
    kafka: Kafka, back: list[int]
) -> None:
    world = World(kafka)
    for newest, steps in enumerate(back):  # each driver begins so many steps before the newest
        sink = world.sink()
        for number in range(max(0, newest - steps), newest + 1):
            sink.receive(delivery(number, {"a": number}, epoch=newest))
        sink.close()
    assert world.rows() == [("a", n) for n in range(len(back))]


def test_a_step_of_many_rows_is_there_whole_and_in_order(world: World) -> None:
    count = 20_000
    keys = [f"k{n % 7}" for n in range(count)]
    world.deliver(table(key=keys, n=list(range(count))))
    found: dict[bytes, list[int]] = {}
    numbers = set()
    for message in world.messages():
        found.setdefault(message.key(), []).append(json.loads(message.value())["n"])
        numbers.add(dict(message.headers())["hr-row"])
    assert sorted(n for of in found.values() for n in of) == list(range(count))
    assert all(of == sorted(of) for of in found.values())
    assert len(numbers) == count


def test_the_marker_says_whose_step_it_is(world: World) -> None:
    world.sink().receive(delivery(5, {"a": 1}, epoch=3))
    (marker,) = world.markers()
    topic_id = marker.pop("topic_id")
    assert topic_id
    assert marker == {
        "lineage": "1a",
        "storage": "s1",
        "pipeline": "p",
        "sink": "out",
        "delivery": 5,
        "step": 5,
        "epoch": 3,
        "topic": world.topic,
        "format": 1,
    }


def test_the_steps_topic_is_made_compacted_and_keeps_its_records(kafka: Kafka) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    world = World(kafka)
    world.steps = f"made-{world.topic}"
    world.sink().receive(delivery(0, {"a": 1}))
    resource = ConfigResource(ResourceType.TOPIC, world.steps)
    admin = kafka.admin()
    found = admin.describe_configs([resource])[resource].result(30)
    assert found["cleanup.policy"].value == "compact"
    assert found["retention.ms"].value == "-1"
    assert len(world.markers()) == 1


def test_a_steps_topic_that_forgets_is_refused(world: World, kafka: Kafka) -> None:
    from tests.support.kafka import new_topic

    world.steps = new_topic(kafka, cleanup_policy="delete")
    with pytest.raises(SinkConflict, match=r"cleanup\.policy is 'delete'"):
        world.sink()


def test_the_newest_marker_is_found_behind_many_of_other_sinks(world: World) -> None:
    from tests.support.kafka import write

    world.sink().receive(delivery(4, {"a": 1}))
    write(world.kafka, world.steps, [(b"other", b"{}")] * (kafka_steps._NEAR_THE_END + 10))
    world.sink().receive(delivery(4, {"a": 1}, epoch=2))
    assert world.rows() == [("a", 1)]


def test_a_marker_is_found_behind_an_open_transaction_of_another_sink(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = world.sink()
    other = world.other_producer(transactional_id=f"other-{world.topic}")
    other.produce(world.steps, b"{}", b"other")
    other.flush()
    sink.receive(delivery(4, {"a": 1}))
    sink.close()
    monkeypatch.setattr(kafka_steps, "_OPEN_S", 1.0)
    with pytest.raises(StorageError, match="end of the topic of the steps cannot be read"):
        world.sink()
    other.abort_transaction()
    world.sink().receive(delivery(4, {"a": 1}, epoch=2))
    assert world.rows() == [("a", 1)]


def test_an_open_transaction_of_another_sink_is_not_waited_for_that_hides_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.sink().receive(delivery(4, {"a": 1}))
    other = world.other_producer(transactional_id=f"other-{world.topic}")
    other.produce(world.steps, b"{}", b"other")
    other.flush()
    monkeypatch.setattr(kafka_steps, "_OPEN_S", 1.0)
    world.sink().receive(delivery(4, {"a": 1}, epoch=2))
    assert world.rows() == [("a", 1)]
    other.abort_transaction()


def test_a_marker_that_cannot_be_read_is_refused(world: World) -> None:
    from tests.support.kafka import write

    key = f"p/out/{world.topic}".encode()
    write(world.kafka, world.steps, [(key, b"not a marker")])
    with pytest.raises(SinkConflict, match="cannot be read"):
        world.sink()


# -- other drivers and other runs --------------------------------------------------------------


def test_an_older_driver_is_refused_once_a_newer_one_has_delivered(world: World) -> None:
    older, newer = world.sink(), world.sink()
    newer.receive(delivery(1, {"a": 1}, epoch=2))
    for _ in range(2):
        with pytest.raises(Fenced, match="epoch 1 is fenced: one of epoch 2"):
            older.receive(delivery(1, {"a": 1}, epoch=1))
    newer.receive(delivery(2, {"b": 2}, epoch=2))
    assert world.rows() == [("a", 1), ("b", 2)]


def test_a_driver_that_lost_its_producer_to_an_older_one_goes_on(world: World) -> None:
    newer = world.sink()
    older = world.sink()
    older.receive(delivery(1, {"a": 1}, epoch=1))
    newer.receive(delivery(1, {"a": 1}, epoch=2))
    newer.receive(delivery(2, {"b": 2}, epoch=2))
    with pytest.raises(Fenced):
        older.receive(delivery(2, {"b": 2}, epoch=1))
    assert world.rows() == [("a", 1), ("b", 2)]


def test_what_an_older_driver_has_sent_and_not_committed_is_not_seen(world: World) -> None:
    older = world.sink()
    sender = older._sender
    sender.begin()
    columns = older._columns
    columns.open(world.topic)
    for portion in columns.portions(delivery(1, {"a": 1}).rows, None):
        sender.send(portion)
    sender.flush()
    world.sink().receive(delivery(1, {"a": 1}, epoch=2))
    assert world.rows() == [("a", 1)]
    with pytest.raises(Fenced):
        older.receive(delivery(2, {"a": 2}, epoch=1))


def test_a_topic_of_another_storage_is_refused_before_anything_is_written(world: World) -> None:
    world.sink().receive(delivery(1, {"a": 1}))
    with pytest.raises(SinkConflict, match=r"another run of pipeline 'p'.*with storage s1"):
        world.sink(of=run("2b"))
    assert world.rows() == [("a", 1)]


def test_a_topic_is_taken_over_on_request_once(world: World) -> None:
    first = world.sink()
    first.receive(delivery(5, {"a": 1}))
    taker = world.sink(of=run("2b"), take_over=True)
    taker.receive(delivery(0, {"b": 2}))
    taker.receive(delivery(0, {"b": 2}))
    assert world.rows() == [("a", 1), ("b", 2)]
    with pytest.raises(SinkConflict):
        first.receive(delivery(6, {"a": 1}))


def test_what_a_topic_had_that_was_deleted_does_not_count(world: World) -> None:
    from tests.support.waiting import until

    world.sink().receive(delivery(5, {"a": 1}))
    admin = world.kafka.admin()
    admin.delete_topics([world.topic])[world.topic].result(30)
    until(lambda: world.topic not in admin.list_topics(timeout=30).topics)
    world.kafka.create_topic(world.topic)
    world.sink(of=run("2b")).receive(delivery(0, {"b": 2}))
    assert world.rows() == [("b", 2)]


def test_a_storage_that_was_put_back_is_refused(world: World) -> None:
    world.sink().receive(delivery(5, {"a": 1}, epoch=1))
    sink = world.sink(of=run(newest=3))
    with pytest.raises(SinkConflict, match="put back to an earlier state"):
        sink.receive(delivery(3, {"x": 1}, epoch=2))


def test_a_driver_that_knows_less_than_a_newer_one_is_fenced(world: World) -> None:
    world.sink().receive(delivery(5, {"a": 1}, epoch=2))
    sink = world.sink(of=run(newest=3))
    with pytest.raises(Fenced):
        sink.receive(delivery(3, {"x": 1}, epoch=1))


def test_sinks_of_one_pipeline_do_not_fence_each_other(world: World) -> None:
    one, other = world.sink(), world.sink(of=run(sink="other"))
    for number in range(3):
        one.receive(delivery(number, {"a": number}))
        other.receive(delivery(number, {"b": number}))
    assert len(world.rows()) == 6


def test_two_sinks_with_one_transactional_id_lose_nothing(world: World) -> None:
    one = world.sink(transactional_id="same")
    other = world.sink(of=run(sink="other"), transactional_id="same")
    for number in range(2):
        one.receive(delivery(number, {"a": number}))
        other.receive(delivery(number, {"b": number}))
    assert len(world.rows()) == 4


def test_a_producer_that_takes_the_transactional_id_each_time_is_named(world: World) -> None:
    sink = world.sink(transactional_id=f"same-{world.topic}")
    mark = sink._mark

    def disturbed(*given: Any) -> None:
        world.other_producer(transactional_id=f"same-{world.topic}").abort_transaction()
        mark(*given)

    sink._mark = disturbed
    with pytest.raises(Fenced, match="another producer writes with the transactional id"):
        sink.receive(delivery(0, {"a": 0}))
    assert world.rows() == []


def test_one_sink_object_is_the_sink_of_one_run(world: World) -> None:
    sink = world.sink()
    with pytest.raises(PipelineError, match="make one for each"):
        sink.begin(run(sink="other"))
    sink.begin(run())
    sink.close()
    with pytest.raises(PipelineError, match="before begin"):
        sink.receive(delivery(0, {"a": 1}))


# -- what is in a message ----------------------------------------------------------------------


def test_a_message_has_key_value_event_time_and_where_it_comes_from(world: World) -> None:
    at = NOON + timedelta(microseconds=1_999)
    world.deliver(table(key=["a"], timestamp=[at], n=[1]))
    (message,) = world.messages()
    assert message.key() == b"a"
    assert json.loads(message.value()) == {"key": "a", "timestamp": str(at), "n": 1}
    assert message.timestamp()[1] == (NOON - datetime(1970, 1, 1, tzinfo=UTC)) // MS + 1
    assert message.headers() == [
        ("hr-pipeline", b"p"),
        ("hr-sink", b"out"),
        ("hr-step", b"0"),
        ("hr-row", b"0"),
    ]


def test_the_headers_that_say_where_it_comes_from_can_be_switched_off(world: World) -> None:
    world.deliver({"a": 1}, audit_headers=False)
    assert world.messages()[0].headers() is None


@pytest.mark.parametrize(
    ("key", "wanted"), [(None, None), ("n", b"7"), (["key", "n"], b'{"key": "a", "n": 7}')]
)
def test_the_key_is_any_column_or_several_or_none(world: World, key: Any, wanted: Any) -> None:
    several = isinstance(key, list)
    world.deliver({"a": 7}, key=key, key_format=Lines() if several else Plain())
    assert world.messages()[0].key() == wanted


def test_by_default_keys_are_text_and_values_json(world: World) -> None:
    usual: dict[str, Any] = {"format": "json", "key_format": None}
    world.deliver({"a": 1}, **usual)
    world.deliver({"b": 2}, key=["key", "n"], of=run(sink="second"), **usual)
    (one, two) = world.messages()
    assert one.key() == b"a"
    assert json.loads(one.value()) == {"key": "a", "timestamp": "2024-05-01T12:00:00Z", "n": 1}
    assert json.loads(two.key()) == {"key": "b", "n": 2}


def test_the_key_of_the_stream_is_found_under_its_other_names(world: World) -> None:
    rows = pa.table(
        {"_key": ["ours"], "timestamp": pa.array([NOON], SCHEMA.field(1).type), "key": ["x"]}
    )
    world.deliver(rows)
    assert world.messages()[0].key() == b"ours"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("n", {"n": 7}), (["n", "key"], {"n": 7, "key": "a"}), ({"n": "count"}, {"count": 7})],
)
def test_the_value_is_of_chosen_columns(world: World, value: Any, wanted: Any) -> None:
    world.deliver({"a": 7}, value=value)
    assert json.loads(world.messages()[0].value()) == wanted


def test_without_an_event_time_a_message_has_the_time_of_sending(world: World) -> None:
    before = time.time() * 1000
    world.deliver({"a": 1}, timestamp=None)
    assert before - 1000 <= world.messages()[0].timestamp()[1] <= time.time() * 1000 + 1000


@pytest.mark.parametrize("at", [datetime(1969, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)])
def test_an_event_time_that_kafka_has_not_is_refused(world: World, at: datetime) -> None:
    with pytest.raises(UserCodeError, match=r"key='a'.*no times before 1970"):
        world.deliver(table(key=["a"], timestamp=[at], n=[1]))
    world.deliver(table(key=["a"], timestamp=[at], n=[1]), timestamp=None)
    assert len(world.messages()) == 1


def test_an_event_time_that_the_topic_refuses_is_named(world: World) -> None:
    late = datetime(2100, 1, 1, tzinfo=UTC)
    with pytest.raises(UserCodeError, match=r"timestamp=None"):
        world.deliver(table(key=["a"], timestamp=[late], n=[1]))
    assert world.messages() == []


def test_headers_come_from_columns(world: World) -> None:
    rows = table(trace=["t1", None], raw=[b"\x00", b"\x01"])
    world.deliver(rows, headers={"trace": "trace-id", "raw": "raw"}, audit_headers=False)
    world.deliver(rows, headers=["trace"], of=run(sink="second"))
    found = [message.headers() for message in world.messages()]
    assert found[:2] == [
        [("trace-id", b"t1"), ("raw", b"\x00")],
        [("trace-id", None), ("raw", b"\x01")],
    ]
    assert found[2][-1] == ("trace", b"t1")
    assert found[2][0] == ("hr-pipeline", b"p")


PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[("a", "1"), ("b", None)], [], None], pa.map_(pa.string(), pa.string())),
        pa.array(
            [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], [], None], pa.list_(PAIR)
        ),
    ],
)
def test_all_headers_of_a_row_may_be_in_one_column(world: World, column: pa.Array) -> None:
    rows = table(h=column, n=[0, 1, 2])
    world.deliver(rows, headers="h", audit_headers=False, value=["n"])
    by_row = {json.loads(m.value())["n"]: m.headers() or [] for m in world.messages()}
    assert by_row == {0: [("a", b"1"), ("b", None)], 1: [], 2: []}


# -- where it goes -----------------------------------------------------------------------------


def murmur2(data: bytes) -> int:
    """Return the hash by which Java clients choose a partition."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ (k >> 24)) * m & mask)
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return (h ^ (h >> 15)) & 0x7FFFFFFF


def test_a_key_goes_to_the_partition_to_which_java_clients_send_it(kafka: Kafka) -> None:
    world = World(kafka, partitions=5)
    world.deliver({f"key{n}": n for n in range(50)})
    assert all(m.partition() == murmur2(m.key()) % 5 for m in world.messages())


def test_a_column_may_say_the_partition(kafka: Kafka) -> None:
    world = World(kafka, partitions=3)
    world.deliver(table(key=list("abcd"), part=[2, 0, 1, None]), partition="part")
    found = {m.key().decode(): m.partition() for m in world.messages()}
    assert found == {"a": 2, "b": 0, "c": 1, "d": murmur2(b"d") % 3}


@pytest.mark.parametrize(
    ("number", "why"), [(3, "partition 3, and the topic has 3"), (-1, "partition is negative")]
)
def test_a_partition_that_is_not_there_is_refused(kafka: Kafka, number: int, why: str) -> None:
    world = World(kafka, partitions=3)
    with pytest.raises(UserCodeError, match=rf"key='b'.*{why}"):
        world.deliver(table(key=["a", "b"], part=[0, number]), partition="part")
    assert world.messages() == []


def test_partitions_that_a_topic_gets_later_are_known(kafka: Kafka) -> None:
    from confluent_kafka.admin import NewPartitions

    from tests.support.waiting import until

    world = World(kafka, partitions=1)
    rows = table(key=["a"], part=[0])
    sink = world.sink(schema=rows.schema, partition="part")
    sink.receive(delivery(0, rows))
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(world.topic, 2)])[world.topic].result(30)
    until(
        lambda: len(admin.list_topics(world.topic, timeout=30).topics[world.topic].partitions) == 2
    )
    sink.receive(delivery(1, table(key=["b"], part=[1])))
    assert [(m.key(), m.partition()) for m in world.messages()] == [(b"a", 0), (b"b", 1)]


def test_a_column_may_say_the_topic(world: World, kafka: Kafka) -> None:
    from tests.support.kafka import new_topic

    other = new_topic(kafka)
    rows = table(key=list("abc"), to=[world.topic, other, world.topic], n=[1, 2, 3])
    sink = world.sink(schema=rows.schema, topic_column="to")
    for _ in range(2):
        sink.receive(delivery(0, rows))
    assert [m.key() for m in world.messages()] == [b"a", b"c"]
    assert [dict(m.headers())["hr-row"] for m in world.messages()] == [b"0", b"2"]
    assert [m.key() for m in world.messages(other)] == [b"b"]


@pytest.mark.parametrize("to", [None, ""])
def test_a_row_that_names_no_topic_is_refused(world: World, to: str | None) -> None:
    rows = table(key=["a", "b"], to=[world.topic, to])
    with pytest.raises(UserCodeError, match=r"key='b'.*names no topic"):
        world.deliver(rows, topic_column="to")


def test_a_topic_that_does_not_exist_is_refused_with_its_name(world: World) -> None:
    with pytest.raises(NotFound, match="'nowhere' does not exist"):
        world.sink(topic="nowhere")
    rows = table(key=["a"], to=["nowhere"])
    with pytest.raises(NotFound, match="'nowhere' does not exist"):
        world.deliver(rows, topic_column="to")
    assert "nowhere" not in world.kafka.admin().list_topics(timeout=30).topics


def test_a_topic_is_made_on_request(world: World, kafka: Kafka) -> None:
    name = f"made-{world.topic}"
    options = {"partitions": 3, "replication_factor": 1, "cleanup.policy": "compact"}
    world.deliver({"a": 1}, topic=name, create=options)
    assert len(kafka.admin().list_topics(name, timeout=30).topics[name].partitions) == 3
    assert len(world.messages(name)) == 1


# -- upsert ------------------------------------------------------------------------------------


def test_upsert_sends_the_last_row_of_each_key(world: World) -> None:
    rows = table(key=["a", "b", "a"], n=[1, 2, 3])
    world.deliver(rows, mode="upsert")
    assert world.rows() == [("a", 3), ("b", 2)]


def test_upsert_deletes_a_key_whose_value_is_null(world: World) -> None:
    rows = table(key=list("abc"), n=pa.array([1, None, None]), m=pa.array([None, None, 3]))
    world.deliver(rows, mode="upsert")
    assert {m.key(): m.value() is None for m in world.messages()} == {
        b"a": False,
        b"b": True,
        b"c": False,
    }


def test_upsert_deletes_a_key_where_a_column_says_so(world: World) -> None:
    rows = table(key=list("abc"), n=pa.array([1, 2, None]), gone=pa.array([False, True, None]))
    world.deliver(rows, mode="upsert", deletes="gone")
    found = {m.key(): m.value() for m in world.messages()}
    assert found[b"b"] is None
    assert json.loads(found[b"c"]) == {"key": "c", "timestamp": str(NOON), "n": None}


def test_upsert_refuses_a_key_that_is_null(world: World) -> None:
    rows = pa.table([[None], [NOON], [1]], schema=SCHEMA)
    with pytest.raises(UserCodeError, match="its key 'key' is null"):
        world.deliver(rows, mode="upsert")


def test_append_refuses_a_value_that_would_delete(world: World) -> None:
    rows = table(key=["a", "b"], n=pa.array([1, None]))
    with pytest.raises(UserCodeError, match=r"key='b'.*deletes its key"):
        world.deliver(rows, value="n", format=Plain())
    assert world.messages() == []


def test_append_sends_a_null_key_as_none(world: World) -> None:
    world.deliver(pa.table([[None], [NOON], [1]], schema=SCHEMA))
    assert world.messages()[0].key() is None


# -- rows and steps that fail ------------------------------------------------------------------


def test_a_row_that_cannot_be_written_is_named_and_the_step_is_not_seen(world: World) -> None:
    count = 20_000
    rows = table(n=list(range(count)))
    bad = rows.set_column(2, "n", pa.array([*range(count - 1), -13]))
    sink = world.sink(schema=rows.schema)
    with pytest.raises(UserCodeError, match=rf"key='k{count - 1}'.*unlucky"):
        sink.receive(delivery(0, bad))
    assert world.messages() == []
    assert world.uncommitted(), "some rows had been sent"
    sink.receive(delivery(0, rows.slice(0, 2)))
    assert len(world.messages()) == 2, "no open transaction hides the next step"


def test_a_message_that_the_client_finds_too_large_is_named(world: World) -> None:
    rows = table(key=["small", "large"], text=["x", "y" * 2_000_000])
    with pytest.raises(UserCodeError, match=r"too large: key='large', 2,000,\d+ bytes") as found:
        world.deliver(rows)
    assert "message.max.bytes" in found.value.remedy
    assert world.messages() == []


def test_a_message_that_the_topic_finds_too_large_is_named(kafka: Kafka) -> None:
    world = World(kafka, max_message_bytes=2000)
    noise = "".join(chr(33 + n * n % 7919 % 90) for n in range(20_000))
    rows = table(key=["small", "large"], text=["x", noise])
    with pytest.raises(UserCodeError, match=r"too large.*key 'large' and 20,\d+ bytes") as found:
        world.deliver(rows, settings={"compression.type": "none"})
    assert "max.message.bytes" in found.value.remedy
    assert world.messages() == []


def test_brokers_that_are_away_are_an_error_that_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "PATIENCE_S", 1.0)
    with pytest.raises(StorageError, match="cannot be looked at") as found:
        world.sink(servers="127.0.0.1:1")
    assert "can be reached" in found.value.remedy


def test_a_time_for_transactions_that_the_brokers_do_not_allow_is_refused(world: World) -> None:
    with pytest.raises(StorageError, match="no transaction can begin") as found:
        world.sink(settings={"transaction.timeout.ms": 10**9})
    assert "transaction.max.timeout.ms" in found.value.remedy


# -- without transactions ----------------------------------------------------------------------


def test_at_least_once_needs_no_transactions(world: World) -> None:
    sink = world.sink(at_least_once=True)
    for number in (0, 0, 1):
        sink.receive(delivery(number, {"a": number}))
    assert world.rows() == [("a", 0), ("a", 0), ("a", 1)]
    assert world.markers() == []
    assert not sink.idempotent


def test_at_least_once_a_message_that_is_not_taken_is_an_error(kafka: Kafka) -> None:
    world = World(kafka, max_message_bytes=200)
    noise = "".join(chr(33 + n * n % 7919 % 90) for n in range(2_000))
    with pytest.raises(UserCodeError, match="too large"):
        world.deliver(
            table(key=["a"], text=[noise]),
            at_least_once=True,
            settings={"compression.type": "none"},
        )


# -- options -----------------------------------------------------------------------------------


def sink(**options: Any) -> KafkaSink:
    usual = {"topic": "t", "servers": "a:1", "format": Lines(), "key_format": Plain()}
    return KafkaSink(**{**usual, **options})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"topic": None}, "topic=None with topic_column=None"),
        ({"topic_column": "x"}, "topic='t' with topic_column='x'"),
        ({"mode": "overwrite"}, "mode='overwrite'"),
        ({"timestamp": "now"}, "timestamp='now'"),
        ({"deletes": "x"}, "deletes='x' with mode='append'"),
        ({"format": "xml"}, "format='xml' is no format"),
        ({"key": []}, "names no column"),
        ({"key": ["a", "a"]}, "names no column, or one twice"),
        ({"value": {"a": "x", "b": "x"}}, "names no column, or one twice"),
        ({"create": {}}, "does not say how many partitions"),
        ({"servers": ""}, "no addresses of Kafka"),
        ({"settings": {"nonsense": "1"}}, "No such configuration property"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        sink(**options)


WIDE = table(
    n=[1], text=["x"], flags=[[True]], hs=pa.array([[1]], pa.list_(pa.int64())), gone=["x"]
).schema


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": "none"}, "key: the stream has no column 'none'"),
        ({"value": ["none"]}, "value: the stream has no column 'none'"),
        ({"topic": None, "topic_column": "n"}, "topic_column='n': the column is of type int64"),
        ({"partition": "text"}, "partition='text': the column is of type string"),
        ({"mode": "upsert", "deletes": "gone"}, "deletes='gone': the column is of type string"),
        ({"mode": "upsert", "key": None}, 'mode="upsert" without a key'),
        ({"headers": ["n"]}, "headers: column 'n' is of type int64"),
        ({"headers": {"text": "hr-x"}}, "Headrace's own"),
        ({"headers": "hs"}, "headers='hs': the column is of type list"),
        ({"format": "text"}, "messages in text hold one"),
        ({"format": "text", "value": "flags"}, "messages in text cannot hold"),
        ({"key": "flags", "key_format": None}, "messages in text cannot hold"),
        ({"headers": ["none"]}, "headers: the stream has no column 'none'"),
    ],
)
def test_columns_that_cannot_be_are_refused_when_the_pipeline_is_built(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(PipelineError, match=why):
        sink(**options).check(WIDE)


def test_a_setting_that_the_protocol_needs_cannot_be_changed(world: World) -> None:
    with pytest.raises(PipelineError, match=r"transactional\.id is set by Headrace"):
        world.sink(settings={"transactional.id": "mine"})
    with pytest.raises(PipelineError, match=r"enable\.idempotence is set by Headrace"):
        world.sink(settings={"enable.idempotence": False})


def test_no_secret_is_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers_module, "PATIENCE_S", 1.0)
    secret = "geheim-4711"
    settings_ = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": secret,
    }
    made = world.unbegun(settings=settings_)
    shown: list[str] = [repr(made), made.occupies()]
    refused: list[Callable[[], object]] = [
        lambda: made.begin(run()),
        lambda: sink(settings=settings_ | {"nonsense": secret}),
        lambda: sink(settings=settings_ | {"sasl.mechanism": "NONE"}),
    ]
    for call in refused:
        with pytest.raises((StorageError, PipelineError)) as found:
            call()
        shown.append(str(found.value))
    assert all(secret not in text for text in shown), shown
