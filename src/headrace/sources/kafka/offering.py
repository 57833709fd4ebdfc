"""What a source of topics offers next: which offsets, of which partitions, and what is new of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from headrace.errors import PipelineError, SourceChanged
from headrace.messages.servers import PATIENCE_S, Servers
from headrace.pipeline.source import Limit, Offer, Part
from headrace.sources.kafka.cluster import Cluster, Stamp
from headrace.sources.kafka.dividing import Sizes, most_rows, shares
from headrace.sources.kafka.looking import Look, deleted
from headrace.sources.kafka.position import (
    KafkaPosition,
    PartitionOf,
    TopicRead,
    encoded,
)
from headrace.sources.kafka.ranges import READERS, Range, gone

log = logging.getLogger("headrace")

#: How many records are looked at to learn how large they are, and at each how many-th offer.
_SAMPLE, _SAMPLE_EVERY = 100, 500


class Offering:
    """Makes offers of what was seen of topics. It is in the driver.

    Args:
        servers: where the topics are.
        cluster: asks about them.
        skips: whether records are skipped that Kafka has deleted before they were read.
        promises: whether the timestamps of records are promises.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        servers: Servers,
        cluster: Cluster,
        *,
        skips: bool,
        promises: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers, self._cluster, self._clock = servers, cluster, clock
        self._skips, self._promises = skips, promises
        self._stamps: dict[PartitionOf, list[Stamp]] = {}
        self._sizes = Sizes()
        self._offers = 0
        self._named: set[str] | None = None  # the partitions that an offer has named
        self._behind: dict[PartitionOf, float] = {}  # since when a partition lacks what was read

    def offer(self, position: KafkaPosition, limit: Limit, seen: Look) -> Offer | None:
        """Return what follows a position in topics as they were seen; None for nothing.

        Raises:
            SourceChanged: if a topic or records are gone.
        """
        at = self.with_news(position, seen)
        self._note_stamps(seen)
        parts = {part.name: Part() for part, _ in at.partitions()}
        waiting = self._waiting(at, seen, limit)
        self._learn_sizes(at, waiting)
        most = most_rows(waiting, limit.rows, limit.bytes, self._sizes)
        taken = shares(waiting, most)
        if not taken:
            if self._named == set(parts) and not at.begun:
                return None
            self._named = set(parts)
            return Offer(encoded(at), 0, 0, empty=True, parts=parts)
        self._named = set(parts)
        of = dict(at.partitions())
        end = at.moved({part: of[part] + count for part, count in taken.items()})
        size = sum(self._sizes.of(part.topic) * count for part, count in taken.items())
        rows = sum(taken.values())
        if self._promises:
            parts = {part.name: self._promised(part, to) for part, to in end.partitions()}
        behind = sum(seen.end.values()) - sum(offset for _, offset in end.partitions())
        return Offer(encoded(end), rows, int(size), parts=parts, waiting=max(0, behind))

    def _note_stamps(self, seen: Look) -> None:
        for part, stamp in seen.newest.items():
            stamps = self._stamps.setdefault(part, [])
            if stamp.offset >= 0 and (not stamps or stamps[-1].offset < stamp.offset):
                stamps.append(stamp)

    def _promised(self, part: PartitionOf, to: int) -> Part:
        """Return what is known of a partition that was read up to an offset.

        No record behind one has an earlier timestamp.
        """
        stamps = self._stamps.get(part, [])
        while len(stamps) > 1 and stamps[1].offset < to:
            stamps.pop(0)
        return Part(promise_us=stamps[0].time_us if stamps and stamps[0].offset < to else None)

    def with_news(self, at: KafkaPosition, seen: Look) -> KafkaPosition:
        """Return a position with the topics and partitions that are new.

        Raises:
            SourceChanged: if a topic is gone, or is another now.
        """
        topics, begun = dict(at.topics), dict[str, int]()
        if self._promises:
            self.check_log_times(seen.topics.keys() - topics.keys())
        for name, topic in seen.topics.items():
            read = topics.get(name, TopicRead(topic.id, []))
            if read.id != topic.id:
                raise deleted(self._cluster, name)
            new = range(len(read.next), topic.partitions)
            begin = [seen.first[PartitionOf(name, number)] for number in new]
            for number, first in zip(new, begin, strict=True):
                if first > 0 and name in at.topics:
                    self._pass_over(PartitionOf(name, number), 0, first)
                begun[PartitionOf(name, number).name] = first
            topics[name] = TopicRead(read.id, [*read.next, *begin])
        for name in topics:
            if name not in seen.topics:
                raise SourceChanged(
                    f"topic {name!r} was read, and is not among the topics any more",
                    place=self._servers.place(name),
                    remedy="name it again in topics=, or give the injector another name. If it was "
                    "deleted, what it had and was not read is gone",
                )
        return self._past_lost(KafkaPosition(topics, begun), seen)

    def _past_lost(self, at: KafkaPosition, seen: Look) -> KafkaPosition:
        """Return a position past the records that are gone, if they are to be skipped."""
        lost = {part: of for part, of in at.partitions() if of < seen.first[part]}
        if not lost:
            return at
        for part, offset in lost.items():
            self._pass_over(part, offset, seen.first[part])
        begun = {part.name: seen.first[part] for part in lost}
        moved = at.moved({part: seen.first[part] for part in lost})
        return KafkaPosition(moved.topics, moved.begun | begun)

    def _pass_over(self, part: PartitionOf, offset: int, first: int) -> None:
        """Skip records that are gone, and count them.

        Raises:
            SourceChanged: if they are not to be skipped.
        """
        if not self._skips:
            raise gone(self._servers, part, offset)
        log.warning(
            "%s: up to %s records of partition %s are skipped: Kafka has deleted them before they "
            "were read",
            self._servers.place(part.topic),
            f"{first - offset:,}",
            part.number,
        )

    def _waiting(self, at: KafkaPosition, seen: Look, limit: Limit) -> dict[PartitionOf, int]:
        """Return how many offsets can be taken of each partition."""
        found = {}
        for part, offset in at.partitions():
            end = seen.end[part]
            if end < offset:
                self._check_behind(part, offset, end)
                continue
            self._behind.pop(part, None)
            if limit.until is not None:
                end = min(end, limit.until.get(part, 0))
            if end > offset and part.name not in limit.paused:
                found[part] = end - offset
        return found

    def _check_behind(self, part: PartitionOf, offset: int, end: int) -> None:
        """Bear for a while that a partition lacks what was read of it: its broker may just start.

        Raises:
            SourceChanged: if it stays so.
        """
        since = self._behind.setdefault(part, self._clock())
        if self._clock() > since + PATIENCE_S / 2:
            raise SourceChanged(
                f"partition {part.number} was read up to offset {offset:,}, and has records up to "
                f"{end:,} only: Kafka has lost some",
                place=self._servers.place(part.topic),
                remedy="restore the topic; or begin anew with a new storage",
            )

    def _learn_sizes(self, at: KafkaPosition, waiting: Mapping[PartitionOf, int]) -> None:
        """Look at some records of topics now and then, to learn how large they are."""
        topics = {part.topic for part in waiting}
        self._offers += bool(topics)
        again = self._offers % _SAMPLE_EVERY == 0
        for topic in topics if again else self._sizes.unknown(topics):
            part = max((of for of in waiting if of.topic == topic), key=lambda of: waiting[of])
            first = dict(at.partitions())[part]
            sample = Range(part, first, first + min(_SAMPLE, waiting[part]))
            with READERS.borrow(self._servers, {part: first}) as reader:
                (messages,) = reader.read([sample])
            size = sum(len(m.value() or b"") + len(m.key() or b"") for m in messages)
            self._sizes.note(topic, len(messages), size)

    def check_log_times(self, topics: Collection[str]) -> None:
        """Check that brokers stamp the records of topics.

        Raises:
            PipelineError: if they do not.
        """
        if not topics:
            return
        for topic, is_stamped in self._cluster.log_times(topics).items():
            if not is_stamped:
                raise PipelineError(
                    "log_append_time=True, and producers stamp the records of the topic",
                    place=self._servers.place(topic),
                    remedy="set message.timestamp.type=LogAppendTime for it, or leave the option out",
                )
