"""A reader returns exactly the records of each range, in whatever order ranges follow each other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.messages.servers import Servers
from headrace.sources.kafka import ranges
from headrace.sources.kafka.position import PartitionOf
from headrace.sources.kafka.ranges import Range, RangeReader
from tests.support.kafka import Kafka, new_topic, producer

PARTITIONS, RECORDS = 3, 400


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    name = new_topic(kafka, partitions=PARTITIONS)
    writer = producer(kafka)
    for number in range(PARTITIONS * RECORDS):
        writer.produce(name, b"%d" % (number // PARTITIONS), partition=number % PARTITIONS)
    writer.flush()
    return name


@pytest.fixture(scope="module")
def reader(kafka: Kafka) -> Iterator[RangeReader]:
    made = RangeReader(Servers(kafka.bootstrap))
    yield made
    made.close()


@given(data=st.data())
def test_each_range_has_its_records(
    reader: RangeReader, topic: str, data: st.DataObject, paused_soon: None
) -> None:
    goes_on = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(data.draw(st.integers(8, 20), "reads")):
        wanted = []
        for number in data.draw(st.sets(st.integers(0, PARTITIONS - 1), min_size=1), "partitions"):
            anywhere = st.integers(0, RECORDS - 1)
            first = data.draw(st.just(goes_on[number] % RECORDS) | anywhere, "first")
            end = data.draw(st.integers(first + 1, RECORDS), "end")
            wanted.append(Range(PartitionOf(topic, number), first, end))
            goes_on[number] = end
        found = reader.read(wanted)
        for (part, first, end), messages in zip(wanted, found, strict=True):
            assert [message.offset() for message in messages] == list(range(first, end))
            assert [message.value() for message in messages] == [
                b"%d" % n for n in range(first, end)
            ]
            assert {message.partition() for message in messages} == {part.number}


@pytest.fixture(scope="module")
def paused_soon() -> Iterator[None]:
    """Let partitions be paused soon, of which records come ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_MOST_AHEAD", 20)
        yield


@pytest.fixture(scope="module")
def followers(kafka: Kafka) -> Iterator[dict[bool, RangeReader]]:
    made = {
        follows: RangeReader(Servers(kafka.bootstrap), follows=follows) for follows in (False, True)
    }
    yield made
    for one in made.values():
        one.close()


@given(data=st.data(), follows=st.booleans())
@settings(max_examples=15)
def test_what_has_come_is_read_once_and_nothing_of_aborted_transactions(
    kafka: Kafka,
    followers: dict[bool, RangeReader],
    data: st.DataObject,
    follows: bool,
    paused_soon: None,
) -> None:
    reader = followers[follows]
    name = new_topic(kafka, partitions=PARTITIONS)
    parts = [PartitionOf(name, number) for number in range(PARTITIONS)]
    writer = producer(kafka, transactional_id=name)
    writer.init_transactions()
    at = dict.fromkeys(parts, 0)
    sent: dict[PartitionOf, list[bytes]] = {part: [] for part in parts}
    found: dict[PartitionOf, list[bytes]] = {part: [] for part in parts}

    def read_what_came() -> None:
        last = reader.come(at)
        ranges = [Range(part, at[part], last[part].offset() + 1) for part in last]
        for (part, _, end), messages in zip(ranges, reader.read(ranges), strict=True):
            found[part] += [message.value() or b"" for message in messages]
            at[part] = end

    for _ in range(data.draw(st.integers(1, 6), "transactions")):
        writer.begin_transaction()
        some = data.draw(st.dictionaries(st.sampled_from(parts), st.integers(1, 60)), "records")
        aborted = data.draw(st.booleans(), "aborted")
        for part, count in some.items():
            values = [b"%d" % (len(sent[part]) + number) for number in range(count)]
            for value in values:
                writer.produce(name, b"aborted" if aborted else value, partition=part.number)
            sent[part] += [] if aborted else values
        if aborted:
            writer.flush()
            writer.abort_transaction()
        else:
            writer.commit_transaction()
        if data.draw(st.booleans(), "read now"):
            read_what_came()
    deadline = time.monotonic() + 30
    while found != sent and time.monotonic() < deadline:
        read_what_came()
    assert found == sent
