"""The steps topic of Kafka sinks: which delivery of each sink is the last that is committed.

A sink writes a marker there in the transaction that writes its rows. Offsets of consumer groups
would be the usual place for it, but Kafka forgets those of a group that nobody uses after seven
days. The topic is compacted and keeps its records for ever. All markers are in partition 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import NOT_DECODED, SinkConflict, StorageError
from headrace.messages.servers import PATIENCE_S, Heard, Servers, raised_by_client
from headrace.pipeline.sink import Deliverer, Delivery
from headrace.sinks.kafka_errors import outlook_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

#: The partition of the markers.
PARTITION = 0
#: The settings with which the topic is made. Small segments, so that there is little to read.
_SETTINGS = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "600000",
}
#: So many offsets from the end are read first: in most cases the newest marker is among them.
_NEAR_THE_END = 2_000
#: How long transactions of other producers are waited for that hide the end of the topic.
_OPEN_S = 120.0
_POLL_S = 1.0
_PAUSE_S = 0.1


class Marker(msgspec.Struct, frozen=True):
    """What the topic says of a sink: the last delivery that was committed, and whose it was.

    Attributes:
        lineage, storage, pipeline, sink: the run; see :class:`~headrace.sinks.Deliverer`.
        delivery, step, epoch: see :class:`~headrace.sinks.Delivery`.
        topic: the topic of the rows; "" if a column says it.
        topic_id: what Kafka calls that topic, whatever its name; "" for unknown.
        format: of this record.
    """

    lineage: str
    storage: str
    pipeline: str
    sink: str
    delivery: int
    step: int
    epoch: int
    topic: str = ""
    topic_id: str = ""
    format: int = 1


def marker_of(run: Deliverer, delivery: Delivery, topic: str, topic_id: str) -> Marker:
    """Return the marker of a delivery."""
    return Marker(
        run.lineage,
        run.location,
        run.pipeline,
        run.sink,
        delivery.id,
        delivery.step,
        delivery.epoch,
        topic,
        topic_id,
    )


class StepsTopic:
    """The topic with the markers.

    Args:
        servers: where it is.
        name: its name.
    """

    def __init__(self, servers: Servers, name: str) -> None:
        self.name = name
        self._servers = servers

    def prepare(self, admin: AdminClient, replicas: int) -> None:
        """Make the topic if it is missing. Check that it keeps the markers.

        Args:
            admin: a client.
            replicas: how many brokers shall have it; -1 for what they use by default.

        Raises:
            SinkConflict: if it forgets them.
            StorageError: if it cannot be made or looked at.
        """
        if self._servers.partitions_of(self.name, admin) is None:
            self._servers.create_topic(admin, self.name, 1, replicas, _SETTINGS)
        settings = self._servers.settings_of(admin, self.name)
        if settings.get("cleanup.policy") != "compact":
            raise SinkConflict(
                "the topic of the steps forgets them: its cleanup.policy is "
                f"{settings.get('cleanup.policy')!r}",
                place=self._servers.place(self.name),
                remedy="set cleanup.policy=compact, or name another topic: steps_topic=",
            )

    def newest(self, key: bytes) -> Marker | None:
        """Return the newest committed marker of a sink; None if there is none.

        Args:
            key: the key of its markers.

        Raises:
            StorageError: if it cannot be read.
            SinkConflict: if it is none.
        """
        found = self._with_patience(lambda: self._last_value(key))
        if found is None:
            return None
        try:
            return msgspec.json.decode(found, type=Marker)
        except NOT_DECODED as error:
            raise SinkConflict(
                f"what the topic of the steps has for {key.decode()!r} cannot be read: {error}",
                place=self._servers.place(self.name),
                remedy="a newer version of Headrace or another program wrote it. Name another "
                "topic: steps_topic=",
            ) from None

    def _with_patience(self, read: Callable[[], bytes | None]) -> bytes | None:
        """Read, again and again while that fails in a way that passes.

        Raises:
            StorageError: if it does not pass.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return read()
            except raised_by_client() as error:
                if outlook_of(error) == "lasts" or time.monotonic() > deadline:
                    failed = "the topic of the steps cannot be read"
                    raise self._servers.failed(error, failed, topic=self.name) from None
            time.sleep(_PAUSE_S)

    def _last_value(self, key: bytes) -> bytes | None:
        """Return the last committed value of a key."""
        first, end = self._offsets()
        for start in dict.fromkeys([max(first, end - _NEAR_THE_END), first]):
            found, read_to = self._read(key, start, end, waits=False)
            if read_to < end and self._read(key, read_to, end, committed=False)[0] is not None:
                found, _ = self._read(key, start, end)
            if found is not None:
                return found
        return None

    def _consumer(self, heard: Heard, *, committed: bool) -> Consumer:
        fixed = {
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "error_cb": heard.note,
        }
        usual = {"group.id": "headrace", "fetch.wait.max.ms": 10}
        return self._servers.consumer(self._servers.consumer_config(fixed, usual))

    def _offsets(self) -> tuple[int, int]:
        """Return the first offset, and that behind the last record, committed or not.

        The client is a new one each time: one that has seen a broker before its restart goes on to
        ask for offsets by what it knows of then, and is refused.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        of = TopicPartition(self.name, PARTITION)
        admin = self._servers.admin()
        found = []
        for where in (OffsetSpec.earliest(), OffsetSpec.latest()):
            request = admin.list_offsets(
                {of: where},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=PATIENCE_S,
            )
            found.append(int(request[of].result(PATIENCE_S + 5).offset))
        return found[0], found[1]

    def _read(
        self, key: bytes, start: int, end: int, *, committed: bool = True, waits: bool = True
    ) -> tuple[bytes | None, int]:
        """Return the last value of a key between two offsets, and the offset behind what was read.

        What follows the first record of an open transaction is not there yet for who reads what is
        committed, though it may be committed.

        Args:
            key: the key.
            start, end: the offsets.
            committed: read only what is committed.
            waits: wait until such transactions have ended, rather than read up to the first of them.

        Raises:
            StorageError: if they do not end in time.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        heard = Heard()
        consumer = self._consumer(heard, committed=committed)
        deadline = time.monotonic() + _OPEN_S
        found, position = None, start
        try:
            consumer.assign([TopicPartition(self.name, PARTITION, start)])
            while position < end:
                if time.monotonic() > deadline:
                    raise self._hidden(heard, position, end)
                message = consumer.poll(_POLL_S)
                if message is None:
                    continue
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    position = offset + 1
                    found = message.value() if message.key() == key else found
                elif error.code() == KafkaError._PARTITION_EOF:
                    position = offset
                    if not waits:
                        break
                elif not error.retriable():
                    raise KafkaException(error)
        finally:
            consumer.close()
        return found, position

    def _hidden(self, heard: Heard, position: int, end: int) -> StorageError:
        why = f" ({heard.last})" if heard.last else ""
        return StorageError(
            f"the end of the topic of the steps cannot be read for {_OPEN_S:.0f} s: "
            f"offset {position:,} of {end:,}{why}",
            place=self._servers.place(self.name),
            remedy="start again. If the brokers can be reached, a transaction of another producer is "
            "open there: it ends at its transaction.timeout.ms, or when its pipeline starts again",
        )
