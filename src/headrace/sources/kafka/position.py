"""How far topics were read, as plain data: for each partition the offset that comes next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec

from headrace.errors import Damaged
from headrace.pipeline.source import Position
from headrace.storage.bounds import Whole


class PartitionOf(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    @property
    def name(self) -> str:
        """Its name in a watermark. Names of topics have no slash."""
        return f"{self.topic}/{self.number}"


class TopicRead(msgspec.Struct, frozen=True):
    """How far a topic was read.

    Attributes:
        id: what Kafka calls the topic. One that was deleted and made again has another.
        next: for each partition the offset of the next record.
    """

    id: str
    next: list[Whole]


class KafkaPosition(msgspec.Struct, frozen=True):
    """How far all topics were read.

    Attributes:
        topics: how far each was read.
        begun: where the division that ends here begins in partitions in which it does not go on
            from where the one before ended: those that are new, and those of which records were
            skipped. By the name of the partition.
        form: the version of this form.
    """

    topics: dict[str, TopicRead]
    begun: dict[str, Whole] = {}
    form: Literal["kafka-1"] = "kafka-1"

    def partitions(self) -> Iterator[tuple[PartitionOf, int]]:
        """Yield each partition with its next offset, in the order in which they are read."""
        for topic, read in self.topics.items():
            for number, offset in enumerate(read.next):
                yield PartitionOf(topic, number), offset

    def moved(self, to: dict[PartitionOf, int]) -> KafkaPosition:
        """Return the position with other next offsets for some partitions."""
        topics = {
            topic: TopicRead(
                read.id,
                [to.get(PartitionOf(topic, n), offset) for n, offset in enumerate(read.next)],
            )
            for topic, read in self.topics.items()
        }
        return KafkaPosition(topics, self.begun)


def encoded(position: KafkaPosition) -> Position:
    """Return a position as plain data."""
    return msgspec.to_builtins(position)


def decoded(position: Position) -> KafkaPosition:
    """Return a position that was encoded.

    Raises:
        Damaged: if it is none of this source.
    """
    try:
        return msgspec.convert(position, KafkaPosition)
    except msgspec.ValidationError as error:
        raise Damaged(
            f"the position of a Kafka source cannot be read: {error}",
            remedy="restore the storage from a copy",
        ) from error
