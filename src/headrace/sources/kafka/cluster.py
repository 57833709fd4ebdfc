"""What there is in a cluster: topics, and from where to where their partitions have records.

Questions are requested without waiting for the answers. So a cluster that is away for a while holds up
nobody, and is requested again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from headrace.messages.servers import PATIENCE_S, Servers, kafka_error
from headrace.sources.kafka.position import PartitionOf

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Of = TypeVar("Of")
Answer = TypeVar("Answer")


class Topic(NamedTuple):
    """A topic as it is now.

    Attributes:
        id: what Kafka calls it, whatever its name.
        partitions: how many it has.
    """

    id: str
    partitions: int


class Stamp(NamedTuple):
    """The time of a record.

    Attributes:
        offset: the offset of the record; -1 if there is none.
        time_us: its timestamp.
    """

    offset: int
    time_us: int


class Requests(Generic[Of, Answer]):
    """Requests of one kind, and the answers that come to them.

    Args:
        servers: who answers.
        what: what is missing without an answer, for errors.
        futures: what is wanted → what the client will answer.
        read: turns an answer of the client into ours.
        instead: name of an error → the answer that it stands for.
    """

    def __init__(
        self,
        servers: Servers,
        what: str,
        futures: Mapping[Of, Future[Any]],
        read: Callable[[Any], Answer],
        instead: Mapping[str, Answer] | None = None,
    ) -> None:
        self._servers, self._what, self._futures = servers, what, futures
        self._read, self._instead = read, instead or {}

    def come(self, within_s: float) -> bool:
        """Wait for the answers for a time; return whether they are there."""
        return not wait(self._futures.values(), within_s).not_done

    def answers(self) -> dict[Of, Answer]:
        """Return all answers. Waits for them.

        Raises:
            StorageError: if a question was not answered.
        """
        return {of: self._answer(of, future) for of, future in self._futures.items()}

    def _answer(self, of: Of, future: Future[Any]) -> Answer:
        from confluent_kafka import KafkaException

        try:
            return self._read(future.result(PATIENCE_S + 5))
        except KafkaException as error:
            found = kafka_error(error)
            if found is not None and found.name() in self._instead:
                return self._instead[found.name()]
            topic = of.topic if isinstance(of, PartitionOf) else str(of)
            raise self._servers.failed(error, self._what, topic=topic) from None


class Cluster:
    """Asks a cluster what it has.

    Args:
        servers: where it is.
    """

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._made: AdminClient | None = None

    @property
    def _admin(self) -> AdminClient:
        if self._made is None:
            self._made = self.servers.admin()
        return self._made

    def close(self) -> None:
        """End the connections."""
        self._made = None

    def names(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the topics whose whole names match a pattern, in order, without Kafka's own.

        Raises:
            StorageError: if the servers do not answer.
        """
        from confluent_kafka import KafkaException

        try:
            found = self._admin.list_topics(timeout=PATIENCE_S).topics
        except KafkaException as error:
            raise self.servers.failed(error, "topics cannot be listed") from None
        return sorted(n for n in found if not n.startswith("__") and pattern.fullmatch(n))

    def request_topics(self, names: Collection[str]) -> Requests[str, Topic | None]:
        """Ask for topics by name. The answer for one that does not exist is None."""
        from confluent_kafka import TopicCollection

        requested: dict[str, Future[Any]] = {}
        if names:
            requested = self._admin.describe_topics(
                TopicCollection(list(names)), request_timeout=PATIENCE_S
            )

        def read(found: Any) -> Topic | None:
            return Topic(str(found.topic_id), len(found.partitions))

        what = "the topic cannot be looked at"
        return Requests(self.servers, what, requested, read, {"UNKNOWN_TOPIC_OR_PART": None})

    def request_first(self, parts: Collection[PartitionOf]) -> Requests[PartitionOf, int]:
        """Ask for the offsets of the oldest records that there are."""
        from confluent_kafka.admin import OffsetSpec

        return self._request_offsets(parts, OffsetSpec.earliest())

    def request_end(self, parts: Collection[PartitionOf]) -> Requests[PartitionOf, int]:
        """Ask for the offsets behind the last records that are committed."""
        from confluent_kafka.admin import OffsetSpec

        return self._request_offsets(parts, OffsetSpec.latest())

    def request_newest(self, parts: Collection[PartitionOf]) -> Requests[PartitionOf, Stamp]:
        """Ask for the records with the highest timestamps."""
        from confluent_kafka.admin import OffsetSpec

        def read(found: Any) -> Stamp:
            return Stamp(int(found.offset), int(found.timestamp) * 1_000)

        return self._request_offsets(parts, OffsetSpec.max_timestamp(), read)

    def request_since(
        self, parts: Collection[PartitionOf], at_ms: int
    ) -> Requests[PartitionOf, int]:
        """Ask for the offsets of the first records that are not before a time; -1 for none."""
        from confluent_kafka.admin import OffsetSpec

        return self._request_offsets(parts, OffsetSpec.for_timestamp(at_ms))

    def _request_offsets(
        self,
        parts: Collection[PartitionOf],
        spec: Any,
        read: Callable[[Any], Any] = lambda found: int(found.offset),
    ) -> Requests[PartitionOf, Any]:
        from confluent_kafka import IsolationLevel, TopicPartition

        requested: dict[Any, Future[Any]] = {}
        if parts:
            requested = self._admin.list_offsets(
                {TopicPartition(*part): spec for part in parts},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=PATIENCE_S,
            )
        named = {PartitionOf(of.topic, of.partition): future for of, future in requested.items()}
        return Requests(self.servers, "offsets are not known", named, read)

    def log_times(self, topics: Iterable[str]) -> dict[str, bool]:
        """Return for each topic whether its brokers stamp records when they append them.

        Raises:
            StorageError: if the servers do not answer.
        """
        from confluent_kafka.admin import ConfigResource, ResourceType

        by_name = {name: ConfigResource(ResourceType.TOPIC, name) for name in topics}
        found = self._admin.describe_configs(list(by_name.values()), request_timeout=PATIENCE_S)
        futures = {name: found[resource] for name, resource in by_name.items()}

        def read(settings: Any) -> bool:
            return bool(settings["message.timestamp.type"].value == "LogAppendTime")

        what = "the settings of the topic are not known"
        return Requests(self.servers, what, futures, read).answers()
