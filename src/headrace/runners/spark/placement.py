"""Which worker lives on which host. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def placed(homes: Sequence[str | None], free: Sequence[str]) -> list[str | None]:
    """Return where workers are to live: as evenly as can be, with the least moves.

    Who moves finds nothing there of what it remembers here, so only those do who must: whose host is
    not free (or who have none), and so many of a crowded host that no other has two fewer. So what is
    placed stays as it is when it is placed again.

    Args:
        homes: the host of each worker; None for one that has none.
        free: the hosts that there are to live on; without any, all stay where they are.
    """
    found = list(homes)
    if not free:
        return found
    for number, host in enumerate(homes):
        if host not in free:
            found[number] = roomiest((home for home in found if home in free), free)
    while True:
        lives = _lives(found, free)
        crowded = max(lives, key=lambda host: (lives[host], host))
        empty = roomiest(found, free)
        if empty is None or lives[crowded] - lives[empty] < 2:
            return found
        found[max(number for number, host in enumerate(found) if host == crowded)] = empty


def roomiest(homes: Iterable[str | None], free: Sequence[str]) -> str | None:
    """Return the free host where fewest live; None when none is free."""
    lives = _lives(homes, free)
    return min(free, key=lambda host: (lives[host], host)) if free else None


def _lives(homes: Iterable[str | None], free: Sequence[str]) -> Counter[str]:
    lives = Counter(dict.fromkeys(free, 0))
    lives.update(host for host in homes if host is not None and host in lives)
    return lives
