"""Looks at topics while they are read: what is new in them, and what is gone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from headrace.errors import NotFound, SourceChanged, StorageDenied, StorageError
from headrace.messages.servers import PATIENCE_S
from headrace.sources.kafka.cluster import Cluster, Requests, Stamp, Topic
from headrace.sources.kafka.position import PartitionOf

#: How often topics are looked for, in seconds. Their records are, whenever more are wanted.
OFTEN_S = 1.0
#: How long the answers of a look are waited for before the pipeline goes on without them.
MOMENT_S = 0.25


class Look(NamedTuple):
    """What was seen.

    Attributes:
        topics: the topics.
        first: for each partition the offset of its oldest record.
        end: for each partition the offset behind its last record that is committed.
        newest: for each partition the record with the highest timestamp, if that was requested for.
    """

    topics: dict[str, Topic]
    first: dict[PartitionOf, int]
    end: dict[PartitionOf, int]
    newest: dict[PartitionOf, Stamp]


class _Offsets(NamedTuple):
    first: Requests[PartitionOf, int]
    end: Requests[PartitionOf, int]
    newest: Requests[PartitionOf, Stamp]


class Looking:
    """Looks at topics.

    Args:
        cluster: where they are.
        topics: their names, or a pattern of names.
        stamps: whether to ask for the newest timestamps.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str] | re.Pattern[str],
        *,
        stamps: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._given, self._clock = cluster, topics, clock
        self._stamps = stamps
        self._topics: dict[str, Topic] = {}
        self._looked = -OFTEN_S
        self._requested_topics: Requests[str, Topic | None] | None = None
        self._requested: _Offsets | None = None
        self._failing_since: float | None = None

    def look(self, within_s: float = MOMENT_S) -> Look | None:
        """Return what there is; None if the answers have not come yet.

        Raises:
            NotFound: if a topic that has a name here does not exist.
            StorageError: if the servers have not answered for a while, or refuse to.
        """
        try:
            found = self._look(within_s)
        except (NotFound, StorageDenied):
            raise
        except StorageError as error:
            self._bear(error)
            return None
        if found is not None:
            self._failing_since = None
        return found

    def look_now(self) -> Look:
        """Return what there is. Waits for the answers; see :meth:`look`."""
        found = self.look(PATIENCE_S)
        while found is None:
            found = self.look(PATIENCE_S)
        return found

    def _bear(self, error: StorageError) -> None:
        """Ask again with new connections, unless nothing was answered for too long.

        A client whose broker was restarted may be refused from then on (``FENCED_LEADER_EPOCH``).
        """
        since = self._failing_since = self._failing_since or self._clock()
        if self._clock() > since + PATIENCE_S:
            raise error
        self._cluster.close()
        self._requested, self._requested_topics = None, None

    def _look(self, within_s: float) -> Look | None:
        deadline = self._clock() + within_s
        if not self._look_for_topics(deadline):
            return None
        if self._requested is None:
            parts = self._partitions()
            self._requested = _Offsets(
                self._cluster.request_first(parts),
                self._cluster.request_end(parts),
                self._cluster.request_newest(parts if self._stamps else []),
            )
        for requested in self._requested:
            if not requested.come(max(0.0, deadline - self._clock())):
                return None
        done, self._requested = self._requested, None
        found = done.first.answers(), done.end.answers(), done.newest.answers()
        return Look(self._topics, *found)

    def _partitions(self) -> list[PartitionOf]:
        return [
            PartitionOf(name, number)
            for name, topic in self._topics.items()
            for number in range(topic.partitions)
        ]

    def _look_for_topics(self, deadline: float) -> bool:
        """Look for topics if that is due; return whether they are known."""
        if self._requested_topics is None:
            if self._clock() < self._looked + OFTEN_S or self._requested is not None:
                return True
            self._requested_topics = self._cluster.request_topics(self._names())
        if not self._requested_topics.come(max(0.0, deadline - self._clock())):
            return False
        done, self._requested_topics = self._requested_topics, None
        self._looked = self._clock()
        self._topics = self._found(done.answers())
        return True

    def _names(self) -> Collection[str]:
        if isinstance(self._given, re.Pattern):
            return sorted({*self._cluster.names(self._given), *self._topics})
        return self._given

    def _found(self, answers: dict[str, Topic | None]) -> dict[str, Topic]:
        """Return the topics, after checking that none is gone or another.

        Raises:
            NotFound: for one that was never there.
            SourceChanged: for one that was.
        """
        found: dict[str, Topic] = {}
        for name, topic in sorted(answers.items()):
            before = self._topics.get(name)
            if topic is None:
                if before is not None:
                    raise deleted(self._cluster, name)
                raise NotFound(
                    f"topic {name!r} does not exist",
                    place=self._cluster.servers.place(),
                    remedy="make it, or correct its name",
                )
            if before is not None and before.id != topic.id:
                raise deleted(self._cluster, name)
            found[name] = topic
        return found


def deleted(cluster: Cluster, topic: str) -> SourceChanged:
    """Return the error for a topic that was deleted, and perhaps made again."""
    return SourceChanged(
        f"topic {topic!r} is not the one that was read: it was deleted since",
        place=cluster.servers.place(topic),
        remedy="what it had and was not read is gone. To read a topic of this name from its start, "
        "begin anew with a new storage, or give the injector another name",
    )
