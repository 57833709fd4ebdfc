"""Whether a file is still being written, as far as its time of change says it."""

from __future__ import annotations

import time
from collections import OrderedDict

from headrace.sources.files.folders import Facts

#: A file that has not changed for so long is not being written any more.
SETTLED_NS = 60_000_000_000
#: Files whose times are to come, and that are remembered.
_REMEMBERED = 10_000


class Settling:
    """Tells files that have not changed for a while.

    A time that is to come, of another clock, counts as the time when the file was first seen with it.
    """

    def __init__(self) -> None:
        self._first_seen: OrderedDict[Facts, int] = OrderedDict()

    def is_settled(self, facts: Facts) -> bool:
        """Say whether a file has not changed for a while."""
        now = time.time_ns()
        since = facts.modified if facts.modified <= now else self._seen(facts, now)
        return now - since > SETTLED_NS

    def _seen(self, facts: Facts, now: int) -> int:
        first = self._first_seen.setdefault(facts, now)
        if len(self._first_seen) > _REMEMBERED:
            self._first_seen.popitem(last=False)
        return first


#: Of this process.
SETTLING = Settling()


def is_settled(facts: Facts) -> bool:
    """Say whether a file has not changed for a while."""
    return SETTLING.is_settled(facts)
