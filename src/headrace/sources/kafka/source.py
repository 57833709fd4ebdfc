"""The source of topics: its declaration, what it offers, and reading in tasks."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.eventtime.parsing import TimeUnit
from headrace.eventtime.zones import Ambiguous
from headrace.messages.base import MessageFormat
from headrace.messages.servers import Servers
from headrace.pipeline.sifting import Sifted
from headrace.pipeline.source import Limit, Offer, Position, Source, Split
from headrace.schema import ValueType
from headrace.schema.reserved import PARTITION_COLUMN
from headrace.sources.columns import TimeOptions
from headrace.sources.kafka import checkpoints
from headrace.sources.kafka.cluster import Cluster
from headrace.sources.kafka.decoding import TIMESTAMP, MessageRecords
from headrace.sources.kafka.following import Following
from headrace.sources.kafka.formats import format_of
from headrace.sources.kafka.looking import Looking
from headrace.sources.kafka.mirroring import GroupOffsets
from headrace.sources.kafka.offering import Offering
from headrace.sources.kafka.position import PartitionOf, decoded, encoded
from headrace.sources.kafka.ranges import READERS, Message, Range
from headrace.sources.kafka.starting import Start, check_start, started
from headrace.storage.base import Store

#: About how many offsets one task reads.
_OFFSETS_PER_SPLIT = 50_000


class Kafka(Source):
    """The records of topics of Kafka.

    Args:
        topics: a topic or several; or a pattern of names, compiled by ``re.compile``. Topics that
            come later and match it are read, too, from their start.
        servers: some of the brokers, ``"one:9092,two:9092"``.
        type: the type of the records: a class whose fields are columns of the message.
        schema: instead of ``type``, a dict of column → Python or Arrow type. Neither is needed for
            formats that say what the columns are, such as Avro.
        event_time: the column that holds the event time; by default the message's own timestamp.
        format: how values are written: ``"json"``, ``"text"``, ``"bytes"``, or one of
            :mod:`headrace.messages`.
        key_format: how keys are written, as for ``format``.
        columns: field → column of the message, where the two differ, or for what is not in the
            value: ``kafka.key`` (or ``kafka.key.NAME``), ``kafka.topic``, ``kafka.partition``,
            ``kafka.offset``, ``kafka.timestamp``, ``kafka.headers`` (a list of structs of ``key``
            and ``value``) and ``kafka.tombstone``.
        start: where to begin: ``"earliest"``, ``"latest"``, at the first records since a
            ``datetime``, or at offsets: ``{topic: {partition: offset}}``. Only the first start of a
            pipeline asks for it.
        tombstones: ``"keep"`` records without a value, whose columns are null, or ``"drop"`` them.
        lost: what to do about records that Kafka has deleted before they were read: ``"stop"``,
            or ``"skip"`` them with a warning that counts them.
        log_append_time: whether brokers stamp records when they append them
            (``message.timestamp.type=LogAppendTime``), which is checked. Then ``hr.exact()`` can rely
            on the timestamps of each partition, as long as no clock of a broker goes back.
        group_id: the consumer group whose offsets tell how far the pipeline has come, for tools
            that show lag. The pipeline itself does not read them.
        settings: settings of librdkafka, such as ``{"security.protocol": "SASL_SSL", …}``. They are
            not stored, and secrets are not shown.
        time_zone, time_unit, ambiguous, time_format: how to read incomplete times, as for
            :class:`Files`.

    Guarantees: each record once, as long as Kafka keeps it until the step that reads it is
    committed. Records of transactions that are not committed are not read. Each partition is one of
    the watermark, named ``TOPIC/NUMBER``; new ones are noticed within seconds, and read from their
    start. A topic that was deleted and made again, and offsets that are gone, end in a
    ``SourceChanged`` error. From a topic that is compacted, a step that is repeated after a crash
    may read fewer records than in the first try, of which nothing was committed.

    Cost: a fetch a step while the pipeline keeps up, and two requests for offsets while it does not.
    Tasks read ranges of offsets at the brokers, 50,000 records in about 0.12 s; small steps are read
    in the driver. The limit in bytes goes by the mean size of records. A position has a number for
    each partition.

    Example::

        source = hr.sources.Kafka("hits", servers="localhost:9092", type=Hit, event_time="at")
        clicks = p.inject("clicks", source, watermark=hr.bounded_delay(timedelta(seconds=10)))
    """

    source_kind = "Kafka"
    partitioned = sifts = holds_back = True

    def __init__(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        servers: str | Sequence[str],
        type: Any = None,
        schema: dict[str, Any] | pa.Schema | None = None,
        event_time: str = TIMESTAMP,
        format: str | MessageFormat = "json",
        key_format: str | MessageFormat = "bytes",
        columns: Mapping[str, str] | None = None,
        start: Start = "earliest",
        tombstones: Literal["keep", "drop"] = "keep",
        lost: Literal["stop", "skip"] = "stop",
        log_append_time: bool = False,
        group_id: str | None = None,
        settings: Mapping[str, Any] | None = None,
        time_zone: str = "UTC",
        time_unit: TimeUnit | None = None,
        ambiguous: Ambiguous = "earliest",
        time_format: str | Mapping[str, str] | None = None,
    ) -> None:
        self._servers = Servers(servers, settings)
        self._topics = _checked_topics(topics)
        check_start(start)
        _check_choice("tombstones", tombstones, ("keep", "drop"))
        _check_choice("lost", lost, ("stop", "skip"))
        self._start, self._drops = start, tombstones == "drop"
        value, key = format_of(format, "format"), format_of(key_format, "key_format")
        self._formats = value, key
        if type is None and schema is None:
            self._open_formats()  # (which then say what the columns are)
        self._records = MessageRecords(
            value,
            key,
            type if type is not None else schema,
            event_time,
            columns=columns,
            times=TimeOptions(time_zone, time_unit, ambiguous),
            time_format=time_format,
            place=f"Kafka at {self._servers.addresses}",
        )
        self._read_by = (
            repr(value),
            repr(key),
            event_time,
            columns,
            tombstones,
            time_zone,
            time_unit,
            ambiguous,
            time_format,
        )
        self._cluster = Cluster(self._servers)
        self.promises = log_append_time
        if log_append_time and event_time != TIMESTAMP:
            raise PipelineError(
                f"log_append_time=True with event_time={event_time!r}",
                remedy=f"leave event_time= out: it is {TIMESTAMP!r} then",
            )
        self._looking = Looking(self._cluster, self._topics, stamps=log_append_time)
        self._following = Following(self._servers, self._looking)
        self._offering = Offering(
            self._servers, self._cluster, skips=lost == "skip", promises=log_append_time
        )
        self._group = None if group_id is None else GroupOffsets(self._servers, group_id)

    def __repr__(self) -> str:
        shown = self._topics.pattern if isinstance(self._topics, re.Pattern) else self._topics
        return f"Kafka({shown!r}, servers={self._servers.addresses!r})"

    @staticmethod
    def offsets_of(
        checkpoint: str | os.PathLike[str] | Store,
        topics: str | Sequence[str] | re.Pattern[str] | None = None,
    ) -> checkpoints.Offsets:
        """Return where a query of Structured Streaming would go on, for ``start=``.

        So a pipeline takes over from a query: it reads what the query has not read in batches that
        it has committed. Stop the query first.

        Args:
            checkpoint: the query's ``checkpointLocation``: a directory, or a location of
                :func:`headrace.storage.open_store`, such as ``s3://BUCKET/PREFIX``.
            topics: the topics to return, or a pattern of names; by default all that the query reads.

        Returns:
            topic → partition → the offset of the next record.

        Raises:
            NotFound: if no batch is committed there.
            Damaged: if the offsets cannot be read.
            PipelineError: for topics that the query does not read, or reads twice up to different
                offsets; and for a checkpoint of an unknown version.

        Example::

            begin = hr.sources.Kafka.offsets_of("checkpoints/hits", "hits")
            source = hr.sources.Kafka("hits", servers="localhost:9092", type=Hit, start=begin)
        """
        return checkpoints.offsets_of(checkpoint, topics)

    # -- declaration --------------------------------------------------------------------------

    def values(self) -> ValueType:
        return self._records.values

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._records.times_of(values)

    def read_by(self) -> Any:
        return self._read_by

    def for_tasks(self) -> Source:
        other = copy.copy(self)
        del other._cluster, other._looking, other._following, other._offering, other._group
        return other

    # -- dividing -----------------------------------------------------------------------------

    def start(self) -> Position:
        return encoded(started(self._cluster, self._start, self._looking.look_now()))

    def open(self, store: Store) -> None:
        self._open_formats()
        if self.promises:
            self._offering.check_log_times(self._looking.look_now().topics)

    def _open_formats(self) -> None:
        topic = self._topics[0] if isinstance(self._topics, tuple) else self._topics.pattern
        for format, part in zip(self._formats, ("value", "key"), strict=True):
            format.open(topic, part, None)

    def now(self, position: Position) -> Any:
        return self._looking.look_now().end

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        at = decoded(position)
        if limit.until is None:
            seen = self._following.look(dict(at.partitions()))
        else:
            seen = self._looking.look()
        if seen is None:
            return Offer(position, 0, 0, empty=True, pending=True)
        return self._offering.offer(at, limit, seen)

    def splits(self, start: Position, end: Position) -> list[Split]:
        before, after = dict(decoded(start).partitions()), decoded(end)
        found: list[Split] = []
        some: list[Range] = []
        left = _OFFSETS_PER_SPLIT
        for part, last in after.partitions():
            first = after.begun.get(part.name, before.get(part, last))
            while first < last:
                upto = min(last, first + left)
                some.append(Range(part, first, upto))
                left -= upto - first
                first = upto
                if left == 0:
                    found.append(_split(some))
                    some, left = [], _OFFSETS_PER_SPLIT
        return [*found, _split(some)] if some else found

    def recover(self, start: Position, end: Position) -> bool:
        seen = self._looking.look()
        if seen is None:
            return False
        self._offering.with_news(decoded(start), seen)
        return True

    def committed(self, position: Position) -> None:
        if self._group is not None:
            self._group.report(decoded(position))

    def close(self) -> None:
        self._cluster.close()
        READERS.close(self._servers)
        if self._group is not None:
            self._group.close()

    # -- reading ------------------------------------------------------------------------------

    def read(self, split: Split) -> pa.Table:
        messages, names = self._messages(split)
        return _named(self._records.read(messages), names)

    def sift(self, split: Split) -> Sifted:
        messages, names = self._messages(split)
        return self._records.sift(messages, names)

    def _messages(self, split: Split) -> tuple[list[Message], list[str] | None]:
        """Return the messages of a split, and the partitions of each if there are several."""
        ranges = [Range(PartitionOf(topic, n), first, end) for topic, n, first, end in split.spec]
        firsts = {part: first for part, first, _ in ranges}
        with READERS.borrow(self._servers, firsts) as reader:
            found = reader.read(ranges)
        if self._drops:
            found = [[message for message in of if message.value() is not None] for of in found]
        names = None
        if split.partition is None:
            counts = zip(ranges, map(len, found), strict=True)
            names = list(chain.from_iterable([of.part.name] * count for of, count in counts))
        return list(chain.from_iterable(found)), names


def _split(ranges: Sequence[Range]) -> Split:
    topics = sorted({of.part.topic for of in ranges})
    names = {of.part.name for of in ranges}
    return Split(
        [[*of.part, of.first, of.end] for of in ranges],
        place=f"topic {', '.join(topics)}",
        partition=ranges[0].part.name if len(names) == 1 else None,
    )


def _checked_topics(
    topics: str | Sequence[str] | re.Pattern[str],
) -> tuple[str, ...] | re.Pattern[str]:
    """Return topics as they were given, after checking that they can be topics.

    Raises:
        PipelineError: if they cannot.
    """
    if isinstance(topics, re.Pattern):
        return topics
    found = (topics,) if isinstance(topics, str) else tuple(topics)
    for name in found:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
            raise PipelineError(
                f"{name!r} cannot be the name of a topic",
                remedy="a topic has letters, digits, dots, dashes and underscores. For a pattern of "
                "names give re.compile(…)",
            )
    if not found or len(set(found)) < len(found):
        raise PipelineError(f"topics={topics!r}", remedy="give one topic or several, each once")
    return found


def _check_choice(option: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        raise PipelineError(f"{option}={given!r}", remedy=f"use {' or '.join(map(repr, choices))}")


def _named(records: pa.Table, names: list[str] | None) -> pa.Table:
    return records if names is None else records.append_column(PARTITION_COLUMN, pa.array(names))
