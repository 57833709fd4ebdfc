"""Which worker lives on which host, as pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def placed(hosts: Sequence[str | None], free: Sequence[str]) -> list[str | None]:
    """Return where workers should live: as evenly as possible, with the fewest moves.

    A worker that moves loses its soft state. So only these move: workers without a host that is
    free, and workers of a host that has at least two more than another. A placement that is settled
    stays when it is computed again.

    Args:
        hosts: the host of each worker; None if it has none.
        free: the hosts where workers may live. If there are none, all workers stay.
    """
    found = list(hosts)
    if not free:
        return found
    for number, host in enumerate(hosts):
        if host not in free:
            found[number] = roomiest((host for host in found if host in free), free)
    while True:
        lives = _lives(found, free)
        crowded = max(lives, key=lambda host: (lives[host], host))
        empty = roomiest(found, free)
        if empty is None or lives[crowded] - lives[empty] < 2:
            return found
        found[max(number for number, host in enumerate(found) if host == crowded)] = empty


def roomiest(hosts: Iterable[str | None], free: Sequence[str]) -> str | None:
    """Return the free host with the fewest workers; None if no host is free."""
    lives = _lives(hosts, free)
    return min(free, key=lambda host: (lives[host], host)) if free else None


def _lives(hosts: Iterable[str | None], free: Sequence[str]) -> Counter[str]:
    lives = Counter(dict.fromkeys(free, 0))
    lives.update(host for host in hosts if host is not None and host in lives)
    return lives
