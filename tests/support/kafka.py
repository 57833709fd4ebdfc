"""Topics of a real Kafka: new ones, and what is written to them and read from them.

The brokers are those of ``scripts/kafka_broker.py``, which demos start, too.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from scripts.kafka_broker import Kafka, start

__all__ = ["Kafka", "NewKafka", "new_topic", "producer", "read", "start", "write"]

#: Starts brokers of a test's own: what :func:`scripts.kafka_broker.start` takes but for the directory.
NewKafka = Callable[..., Kafka]
#: Whatever a client waits for longer does not come.
TIMEOUT_S = 60.0
_NUMBERS = itertools.count()


def new_topic(kafka: Kafka, *, partitions: int = 1, **settings: object) -> str:
    """Make a topic with a name that nobody has used yet, and return the name."""
    name = f"test-{os.getpid()}-{next(_NUMBERS)}"
    return kafka.create_topic(name, partitions=partitions, **settings)


def producer(kafka: Kafka, **settings: Any) -> Producer:
    """Return a producer.

    Args:
        kafka: where to.
        settings: the client's, with ``_`` in place of each dot: ``transactional_id="orders"``.
    """
    return Producer({"bootstrap.servers": kafka.bootstrap, **_dotted(settings)})


def write(
    kafka: Kafka,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    **settings: Any,
) -> None:
    """Write keys and values to a topic; return once the brokers have all of them.

    Args:
        kafka: where to.
        topic: its name.
        records: keys and values.
        settings: the producer's, as :func:`producer` takes them.
    """
    errors: list[KafkaError] = []
    writer = producer(kafka, **settings)
    for key, value in records:
        writer.produce(
            topic, value, key, on_delivery=lambda error, _: error and errors.append(error)
        )
    left = writer.flush(TIMEOUT_S)
    if errors:
        raise KafkaException(errors[0])
    assert left == 0, f"{left} records did not arrive in {TIMEOUT_S} s"


def read(kafka: Kafka, topic: str, *, committed: bool = True) -> list[Message]:
    """Return what is in a topic, in order of partitions and offsets.

    Args:
        kafka: where it is.
        topic: its name.
        committed: leave out what a transaction has not committed, and what comes after the first
            record of a transaction that is still open.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "tests",  # (it must have one; nothing is committed)
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # (that is how long the end takes to come)
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        known = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        consumer.assign([TopicPartition(topic, number, 0) for number in known.partitions])
        found = _until_the_end(consumer, set(known.partitions))
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def _until_the_end(consumer: Consumer, unread: set[int]) -> list[Message]:
    found = []
    while unread:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"the end of partitions {unread} did not come in {TIMEOUT_S} s"
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            unread.discard(message.partition())
        else:
            raise KafkaException(error)
    return found


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}
