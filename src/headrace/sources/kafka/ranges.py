"""Reads ranges of offsets: the records that are committed in them, and no others.

Between two offsets there may be fewer records than the offsets tell: compaction removes some, and
transactions have marks of their own. So a range has been read when a record behind it comes, or
when Kafka says that the partition ends there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
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
#: Of so many bytes that came ahead, no more are taken from the client before they are wanted.
_MOST_BYTES_AHEAD = 32 << 20
#: The client fetches more of a partition while it has fewer records of it.
_FETCHED_AHEAD = 10_000
#: How many readers wait in a process for ranges that go on where theirs have ended.
_MOST_IDLE = 4
#: How long a fetch of records that are there may take before a step does without them, in seconds.
_FETCH_S = 0.005
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

    def __len__(self) -> int: ...


class RangeReader:
    """Reads ranges of offsets with one consumer. Not for several threads at once.

    If a range goes on where the last one of its partition ended, what the client has fetched ahead
    is used.

    Args:
        servers: where the topics are.
        follows: whether it reads records as they come. Then the client does not fetch a few at a
            time, but what there is whenever those before have been taken.
    """

    def __init__(self, servers: Servers, *, follows: bool = False) -> None:
        self.follows = follows
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
            "queued.min.messages": 1 if follows else _FETCHED_AHEAD,
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
        firsts = {part: first for part, first, _ in ranges}
        with self._from(firsts):
            return self._read(ranges)

    def come(self, after: Mapping[PartitionOf, int]) -> dict[PartitionOf, Message]:
        """Return the last record that has come of each partition so far.

        A partition of which none has come is left out. What has come is kept for :meth:`read`.

        Args:
            after: for each partition, up to where it was read.

        Raises:
            SourceChanged: if the records behind that are gone.
            StorageError: if the servers refuse to give them.
        """
        with self._from(after):
            self._collect()
        return {part: ahead[-1] for part in after if (ahead := self._ahead[part])}

    @contextlib.contextmanager
    def _from(self, firsts: Mapping[PartitionOf, int]) -> Iterator[None]:
        """Let the client read from some offsets on. After an error it begins anew."""
        try:
            if not self.goes_on_from(firsts):
                self._assign(firsts)
            yield
        except BaseException:
            self._forget()
            raise

    def _collect(self) -> None:
        """Take what the client has fetched, and what it fetches at once thereafter."""
        if self._is_full():
            return
        messages = self._consume(_AT_ONCE, 0)
        self._keep(messages)
        if messages:
            self._keep(self._consume(1, _FETCH_S))
            self._keep(self._consume(_AT_ONCE, 0))

    def _is_full(self) -> bool:
        kept = list(self._ahead.values())
        if sum(map(len, kept)) >= _MOST_AHEAD:
            return True
        return sum(sum(map(len, ahead)) for ahead in kept) >= _MOST_BYTES_AHEAD

    def goes_on_from(self, firsts: Mapping[PartitionOf, int]) -> bool:
        """Return whether partitions were read up to these offsets, and can be read further."""
        return all(self._next.get(part) == first for part, first in firsts.items())

    def has_any(self, parts: Collection[PartitionOf]) -> bool:
        """Return whether it reads one of some partitions."""
        return not self._next.keys().isdisjoint(parts)

    def _assign(self, firsts: Mapping[PartitionOf, int]) -> None:
        from confluent_kafka import TopicPartition

        # A paused partition stays paused when it is assigned anew.
        self._resume(self._paused)
        self._ahead = {part: [] for part in firsts}
        self._next = dict(firsts)
        self._ended = {}
        self._consumer.unassign()
        self._consumer.assign([TopicPartition(*part, first) for part, first in firsts.items()])

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
            self._keep(messages)
            todo = {part for part in todo if not self._take(part, ends[part], found[part])}
            self._pause_those_ahead(todo)
        return [found[part] for part, _, _ in ranges]

    def _keep(self, messages: Collection[Message]) -> None:
        for message in messages:
            part = PartitionOf(message.topic(), message.partition())
            error = message.error()
            if error is not None:
                self._note_error(part, message.offset(), error)
            elif part in self._ahead:
                self._ahead[part].append(message)

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

    def _consume(self, most: int, within_s: float = _MOMENT_S) -> list[Message]:
        return cast(Any, self._consumer.consume(most, timeout=within_s))  # type: ignore[no-any-return]

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
    """The readers of this process. One is made when those that there are read, or read elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Servers, list[RangeReader]] = {}  # the one that was used last comes last

    @contextlib.contextmanager
    def borrow(
        self, servers: Servers, firsts: Mapping[PartitionOf, int], *, follows: bool = False
    ) -> Iterator[RangeReader]:
        """Lend a reader, in a ``with`` block.

        Args:
            servers: what it reads from.
            firsts: from where it will read. A reader that comes from there is preferred.
            follows: whether it shall read records as they come.
        """
        with self._lock:
            reader = self._chosen(self._idle.setdefault(servers, []), firsts, follows)
        reader = reader or RangeReader(servers, follows=follows)
        try:
            yield reader
        finally:
            with self._lock:
                self._idle.setdefault(servers, []).append(reader)

    def _chosen(
        self, idle: list[RangeReader], firsts: Mapping[PartitionOf, int], follows: bool
    ) -> RangeReader | None:
        """Take a reader from those that are idle, so that the others can go on where they are."""
        some = [reader for reader in idle if reader.follows or not follows]
        fitting = [reader for reader in some if reader.goes_on_from(firsts)]
        fitting = fitting or [reader for reader in some if reader.has_any(firsts)]
        if not fitting and len(some) < _MOST_IDLE:
            return None
        found = fitting[-1] if fitting else some[0]
        idle.remove(found)
        return found

    def close(self, servers: Servers) -> None:
        """End the connections to some servers."""
        with self._lock:
            idle = self._idle.pop(servers, [])
        for reader in idle:
            reader.close()


READERS = Readers()
