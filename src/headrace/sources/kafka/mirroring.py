"""Tells Kafka how far a pipeline has come, for tools that show the lag of consumer groups.

Nothing is read from there: the position is in the pipeline's storage. So what goes wrong is logged,
and no more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.messages.servers import Servers
from headrace.sources.kafka.position import KafkaPosition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

log = logging.getLogger("headrace")


class GroupOffsets:
    """The offsets of a consumer group that has no members.

    Args:
        servers: where they are kept.
        group: the name of the group.
    """

    def __init__(self, servers: Servers, group: str) -> None:
        self._servers, self._group = servers, group
        self._consumer: Consumer | None = None
        self._reported: dict[tuple[str, int], int] = {}
        self._has_failed = False

    def report(self, position: KafkaPosition) -> None:
        """Commit the offsets of a position. Does not wait."""
        from confluent_kafka import KafkaException, TopicPartition

        news = [
            TopicPartition(*part, offset)
            for part, offset in position.partitions()
            if self._reported.get(part) != offset
        ]
        if not news:
            return
        if self._consumer is None:
            fixed = {"group.id": self._group, "enable.auto.commit": False}
            config = self._servers.consumer_config(fixed)
            self._consumer = self._servers.consumer({**config, "on_commit": self._committed})
        try:
            self._consumer.commit(offsets=news, asynchronous=True)
            self._consumer.poll(0)  # calls _committed for earlier ones
        except (KafkaException, RuntimeError) as error:
            self._warn(str(error))
            return
        self._reported |= {(of.topic, of.partition): of.offset for of in news}

    def _committed(self, error: KafkaError | None, parts: list[TopicPartition]) -> None:
        if error is not None:
            self._reported.clear()
            self._warn(error.str())

    def _warn(self, why: str) -> None:
        if not self._has_failed:
            log.warning("the offsets of group %s are not told to Kafka: %s", self._group, why)
        self._has_failed = True

    def close(self) -> None:
        """Wait for the last offsets to be told, and end the connections."""
        if self._consumer is not None:
            self._consumer.close()
