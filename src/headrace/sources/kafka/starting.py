"""Where a pipeline begins to read topics that it has not read before."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias

from headrace.errors import PipelineError
from headrace.eventtime.timestamps import to_micros
from headrace.sources.kafka.cluster import Cluster
from headrace.sources.kafka.looking import Look
from headrace.sources.kafka.position import KafkaPosition, PartitionOf, TopicRead

#: Where to begin: at the oldest record, behind the newest one, at the first record since a time, or
#: at an offset for each partition of each topic.
Start: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[str, Mapping[int, int]]


def check_start(start: Start) -> None:
    """Check that a start is one.

    Raises:
        PipelineError: if it is not.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise PipelineError(
                f"start={start!r} has no time zone", remedy="add one: tzinfo=timezone.utc"
            )
        return
    by_offsets = isinstance(start, Mapping) and all(
        isinstance(of, Mapping)
        and all(type(n) is int and type(at) is int and at >= 0 for n, at in of.items())
        for of in start.values()
    )
    if start not in ("earliest", "latest") and not by_offsets:
        raise PipelineError(
            f"start={start!r} is no start",
            remedy='use "earliest", "latest", a datetime, or {topic: {partition: offset}}',
        )


def started(cluster: Cluster, start: Start, seen: Look) -> KafkaPosition:
    """Return the position from which topics are read that have not been read before.

    Raises:
        PipelineError: for offsets that are not those of the topics.
        StorageError: if the servers do not answer.
    """
    if isinstance(start, datetime):
        since = cluster.request_since(list(seen.end), -(-to_micros(start) // 1_000)).answers()
        at = {
            p: seen.end[p] if found < 0 else max(found, seen.first[p]) for p, found in since.items()
        }
    elif isinstance(start, Mapping):
        at = _given(cluster, start, seen)
    else:
        at = seen.first if start == "earliest" else seen.end
    return KafkaPosition(
        {
            name: TopicRead(topic.id, [at[PartitionOf(name, n)] for n in range(topic.partitions)])
            for name, topic in seen.topics.items()
        },
    )


def _given(
    cluster: Cluster, start: Mapping[str, Mapping[int, int]], seen: Look
) -> dict[PartitionOf, int]:
    given = {PartitionOf(topic, n): at for topic, of in start.items() for n, at in of.items()}
    for part in [*given, *seen.end]:
        if part not in seen.end or part not in given:
            what = "names no offset of" if part in seen.end else "names"
            what += f" partition {part.number} of topic {part.topic!r}"
            raise PipelineError(
                f"start= {what}" + ("" if part in seen.end else ", which does not exist"),
                place=cluster.servers.place(part.topic),
                remedy="give an offset for each partition that there is",
            )
        if not seen.first[part] <= given[part] <= seen.end[part]:
            raise PipelineError(
                f"start= names offset {given[part]:,} of partition {part.number} of topic "
                f"{part.topic!r}, which has records from {seen.first[part]:,} to before "
                f"{seen.end[part]:,}",
                place=cluster.servers.place(part.topic),
                remedy="give an offset among these",
            )
    return given
