"""Reads ranges of offsets: the records that are committed in them, and no others.

Between two offsets there may be fewer records than the offsets tell: compaction removes some, and
transactions have marks of their own. So a range has been read when a record behind it comes, or
when Kafka says that the partition ends there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from headrace.errors import HeadraceError, SourceChanged
from headrace.messages.servers import PATIENCE_S, Heard, Servers
from headrace.sources.kafka.position import PartitionOf

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

#: The most records that the client hands over at once.
_AT_ONCE = 10_000
#: Of so many records that came ahead, the client fetches no more of their partition.
_MOST_AHEAD = 20_000
#: The client fetches more of a partition while it has fewer records of it.
_FETCHED_AHEAD = 10_000
#: How long the client waits for more records before it hands over those that it has, in seconds.
_MOMENT_S = 0.002


class Range(NamedTuple):
    """Offsets of a partition: from the first, up to the one before ``end``."""

    part: PartitionOf
    first: int
    end: int


class Message(Protocol):
    """A record of a topic, as the client hands it over, or news of a partition."""

    def topic(self) -> str: ...

    def partition(self) -> int: ...

    def offset(self) -> int: ...

    def key(self) -> bytes | None: ...

    def value(self) -> bytes | None: ...

    def headers(self) -> list[tuple[str, bytes | None]] | None: ...

    def timestamp(self) -> tuple[int, int]: ...

    def error(self) -> KafkaError | None: ...


class RangeReader:
    """Reads ranges of offsets with one consumer. Not for several threads at once.

    If a range goes on where the last one of its partition ended, what the client has fetched ahead
    is used.

    Args:
        servers: where the topics are.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._heard = Heard()
        fixed = {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        usual = {
            "group.id": "headrace",
            "fetch.wait.max.ms": 20,
            "queued.min.messages": _FETCHED_AHEAD,
            "queued.max.messages.kbytes": 32768,
            "fetch.queue.backoff.ms": 2,  # (1,000 by default: reading would stop for a second)
        }
        config = servers.consumer_config(fixed, usual)
        self._consumer: Consumer = servers.consumer({**config, "error_cb": self._heard.note})
        self._ahead: dict[PartitionOf, list[Message]] = {}  # come already, for later ranges
        self._next: dict[PartitionOf, int] = {}  # up to where records were taken
        self._ended: dict[PartitionOf, int] = {}  # where Kafka said that a partition ends
        self._paused: set[PartitionOf] = set()

    def close(self) -> None:
        """End the connections."""
        self._consumer.close()

    def read(self, ranges: Collection[Range]) -> list[list[Message]]:
        """Return the records of each range, in order.

        Raises:
            SourceChanged: if records of a range are gone.
            StorageError: if the servers do not answer.
        """
        if any(self._next.get(part) != first for part, first, _ in ranges):
            self._assign(ranges)
        try:
            return self._read(ranges)
        except BaseException:
            self._forget()
            raise

    def _assign(self, ranges: Collection[Range]) -> None:
        from confluent_kafka import TopicPartition

        # A paused partition stays paused when it is assigned anew.
        self._resume(self._paused)
        self._ahead = {part: [] for part, _, _ in ranges}
        self._next = {part: first for part, first, _ in ranges}
        self._ended = {}
        self._consumer.unassign()
        self._consumer.assign([TopicPartition(*part, first) for part, first, _ in ranges])

    def _forget(self) -> None:
        with contextlib.suppress(Exception):
            self._resume(self._paused)
            self._consumer.unassign()
        self._ahead, self._next, self._ended, self._paused = {}, {}, {}, set()

    def _read(self, ranges: Collection[Range]) -> list[list[Message]]:
        ends = {part: end for part, _, end in ranges}
        found: dict[PartitionOf, list[Message]] = {part: [] for part in ends}
        todo = {part for part, end in ends.items() if not self._take(part, end, found[part])}
        self._resume(todo)
        deadline = time.monotonic() + PATIENCE_S
        while todo:
            wanted = sum(ends[part] - self._next[part] for part in todo)
            messages = self._consume(max(1, min(wanted, _AT_ONCE)))
            if messages:
                deadline = time.monotonic() + PATIENCE_S
            elif time.monotonic() > deadline:
                raise self._silent(next(iter(todo)))
            for message in messages:
                part = PartitionOf(message.topic(), message.partition())
                error = message.error()
                if error is not None:
                    self._note_error(part, message.offset(), error)
                elif part in self._ahead:
                    self._ahead[part].append(message)
            todo = {part for part in todo if not self._take(part, ends[part], found[part])}
            self._pause_those_ahead(todo)
        return [found[part] for part, _, _ in ranges]

    def _take(self, part: PartitionOf, end: int, found: list[Message]) -> bool:
        """Move what came of a range to what was found; return whether the range has been read."""
        ahead = self._ahead[part]
        taken = 0
        for message in ahead:
            if message.offset() >= end:
                break
            taken += 1
        found += ahead[:taken]
        del ahead[:taken]
        if found:
            self._next[part] = max(self._next[part], found[-1].offset() + 1)
        if ahead or self._ended.get(part, -1) >= end:
            self._next[part] = max(self._next[part], end)
        return self._next[part] >= end

    def _consume(self, most: int) -> list[Message]:
        return cast(Any, self._consumer.consume(most, timeout=_MOMENT_S))  # type: ignore[no-any-return]

    def _note_error(self, part: PartitionOf, offset: int, error: KafkaError) -> None:
        """Note where a partition ends, or raise an error."""
        if error.name() == "_PARTITION_EOF":
            self._ended[part] = offset
            return
        if error.name() in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            raise gone(self._servers, part, self._next.get(part, 0))
        if error.fatal() or not error.retriable():
            raise self._servers.failed(
                error, "records cannot be read", topic=part.topic, heard=self._heard.last
            )

    def _silent(self, part: PartitionOf) -> HeadraceError:
        from confluent_kafka import KafkaError

        return self._servers.failed(
            KafkaError(KafkaError._TIMED_OUT),
            f"no record came for {PATIENCE_S:.0f} s",
            topic=part.topic,
            heard=self._heard.last,
        )

    def _pause_those_ahead(self, todo: Collection[PartitionOf]) -> None:
        """Let the client fetch no more of partitions of which much has come ahead."""
        from confluent_kafka import TopicPartition

        much = {
            part
            for part, ahead in self._ahead.items()
            if len(ahead) > _MOST_AHEAD and part not in todo
        } - self._paused
        if much:
            self._consumer.pause([TopicPartition(*part) for part in much])
            self._paused |= much

    def _resume(self, todo: Collection[PartitionOf]) -> None:
        from confluent_kafka import TopicPartition

        again = self._paused & set(todo)
        if again:
            self._consumer.resume([TopicPartition(*part) for part in again])
            self._paused -= again


def gone(servers: Servers, part: PartitionOf, offset: int) -> SourceChanged:
    """Return the error for records that are not there any more."""
    return SourceChanged(
        f"the records of partition {part.number} from offset {offset:,} on are gone: Kafka has "
        "deleted them before they were read",
        place=servers.place(part.topic),
        remedy="keep records longer (retention.ms, retention.bytes). To go on without them, and count "
        'what is missing: sources.Kafka(…, lost="skip")',
    )


class Readers:
    """The readers of this process. One is made when all that there are read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Servers, list[RangeReader]] = {}

    @contextlib.contextmanager
    def borrow(self, servers: Servers) -> Iterator[RangeReader]:
        """Lend a reader, in a ``with`` block."""
        with self._lock:
            idle = self._idle.setdefault(servers, [])
            reader = idle.pop() if idle else None
        reader = reader or RangeReader(servers)
        try:
            yield reader
        finally:
            with self._lock:
                self._idle[servers].append(reader)

    def close(self, servers: Servers) -> None:
        """End the connections to some servers."""
        with self._lock:
            idle = self._idle.pop(servers, [])
        for reader in idle:
            reader.close()


READERS = Readers()
