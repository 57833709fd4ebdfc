"""A reader returns exactly the records of each range, in whatever order ranges follow each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
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
