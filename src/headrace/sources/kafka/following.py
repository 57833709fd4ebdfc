"""Following topics that have been read to their end: the records themselves say that they have come.

Requests for offsets would cost each step as much time as reading does. They are sent once a second
then, to notice what records do not say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headrace.errors import HeadraceError
from headrace.messages.servers import Servers
from headrace.sources.kafka.cluster import Stamp
from headrace.sources.kafka.looking import MOMENT_S, OFTEN_S, Look, Looking
from headrace.sources.kafka.position import PartitionOf
from headrace.sources.kafka.ranges import READERS, Message

#: With more records to read than this, a pipeline has not come to the end.
_NEAR = 10_000
#: Without replies for so long, nothing is known.
_OVERDUE_S = 2 * OFTEN_S


class Following:
    """Looks at topics: by requests, or at what has come of them to this process.

    Args:
        servers: where they are.
        looking: sends the requests.
        clock: seconds that never go back.
    """

    def __init__(
        self, servers: Servers, looking: Looking, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._servers, self._looking, self._clock = servers, looking, clock
        self._seen: Look | None = None  # the last look, while topics are followed
        self._looked = 0.0

    def look(self, at: Mapping[PartitionOf, int]) -> Look | None:
        """Return what there is; None if that is not known yet.

        Args:
            at: for each partition the offset of the next record.

        Raises:
            HeadraceError: as :meth:`Looking.look`.
        """
        since = self._clock() - self._looked
        if self._seen is None or since > _OVERDUE_S:
            self._seen = None
            return self._look(at)
        if since > OFTEN_S:
            self._look(at, within_s=0.0)
        return self._seen and self._with_what_came(self._seen, at)

    def _look(self, at: Mapping[PartitionOf, int], within_s: float = MOMENT_S) -> Look | None:
        """Look by requests. Follow if there is little to read."""
        found = self._looking.look(within_s)
        if found is not None:
            waiting = sum(end - at.get(part, 0) for part, end in found.end.items())
            self._seen = found if waiting <= _NEAR else None
            self._looked = self._clock()
        return found

    def _with_what_came(self, seen: Look, at: Mapping[PartitionOf, int]) -> Look | None:
        try:
            with READERS.borrow(self._servers, at, follows=True) as reader:
                last = reader.come(at)
        except HeadraceError:  # the requests will say what it is
            self._seen = None
            return self._look(at)
        ends = {part: max(seen.end[part], message.offset() + 1) for part, message in last.items()}
        stamps = {part: _stamp(message) for part, message in last.items()}
        return seen._replace(end=seen.end | ends, newest=seen.newest | stamps)


def _stamp(message: Message) -> Stamp:
    return Stamp(message.offset(), message.timestamp()[1] * 1_000)
