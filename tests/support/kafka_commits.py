"""What consumers of committed messages see, once all transactions have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.kafka import Kafka


def committed(kafka: Kafka, topic: str) -> list[Any]:
    """Return the committed messages of a topic, in order of partitions and offsets.

    A commit returns when it is decided. Readers see it some milliseconds later: this waits until
    nothing is hidden behind an open transaction.
    """
    from tests.support.kafka import read

    until(lambda: ends(kafka, topic, committed=True) == ends(kafka, topic, committed=False))
    return read(kafka, topic)


def ends(kafka: Kafka, topic: str, *, committed: bool) -> dict[int, int]:
    """Return the offset behind the last message of each partition, for one kind of reader."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    admin = kafka.admin()
    known = admin.list_topics(topic, timeout=30).topics[topic].partitions
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in known}
    asked = admin.list_offsets(wanted, isolation_level=level, request_timeout=30)
    return {of.partition: future.result(30).offset for of, future in asked.items()}
