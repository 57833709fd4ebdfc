"""Whether a file is still being written, judged by its modification time."""

from __future__ import annotations

import time
from collections import OrderedDict

from headrace.sources.files.folders import Facts

#: A file that has not changed for this time is taken to be finished.
SETTLED_NS = 60_000_000_000
#: Maximum number of files with times in the future that are remembered.
_REMEMBERED = 10_000


class Settling:
    """Recognises files that have not changed for a while.

    A modification time in the future comes from another clock. It counts as the time when the file
    was first seen with it.
    """

    def __init__(self) -> None:
        self._first_seen: OrderedDict[Facts, int] = OrderedDict()

    def is_settled(self, facts: Facts) -> bool:
        """Return whether a file has not changed for a while."""
        now = time.time_ns()
        since = facts.modified if facts.modified <= now else self._seen(facts, now)
        return now - since > SETTLED_NS

    def _seen(self, facts: Facts, now: int) -> int:
        first = self._first_seen.setdefault(facts, now)
        if len(self._first_seen) > _REMEMBERED:
            self._first_seen.popitem(last=False)
        return first


#: The instance of this process.
SETTLING = Settling()


def is_settled(facts: Facts) -> bool:
    """Return whether a file has not changed for a while."""
    return SETTLING.is_settled(facts)
