"""Which workers share a Python process, as pure functions.

A *seat* is a Python process of Spark, and a task slot while it is at work. It serves one worker, or
several in turn where there are more workers than slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class Place(NamedTuple):
    """What tells a seat's process from others: its name, and the host that it prefers."""

    name: int
    host: str | None


class Seat(msgspec.Struct, frozen=True):
    """A Python process, and the workers that it serves in turn.

    Attributes:
        workers: their numbers, ascending.
        host: the host that it prefers; None for any.
    """

    workers: tuple[int, ...]
    host: str | None = None

    @property
    def name(self) -> int:
        """The number by which Spark knows its process: that of its first worker."""
        return self.workers[0]

    @property
    def place(self) -> Place:
        """Where it is. It may serve more workers there, or fewer, when their number changes."""
        return Place(self.name, self.host)


def seats_of(hosts: Sequence[str | None], slots: int | None) -> list[Seat]:
    """Return the seats of workers, in ascending order of their names.

    On each host there are as many as it has slots, or as it has workers if these are fewer. When
    workers are added with higher numbers, those that are there keep their seats, and with them their
    soft state.

    Args:
        hosts: the host of each worker; None if they run anywhere.
        slots: how many tasks can run at once on all hosts, which count alike. None if that is not
            settled; then each worker has a seat of its own.

    >>> [seat.workers for seat in seats_of([None] * 5, 2)]
    [(0, 2, 4), (1, 3)]
    >>> [seat.workers for seat in seats_of(["a", "b", "a", "a"], 4)]
    [(0, 3), (1,), (2,)]
    """
    each = len(hosts) if slots is None else max(1, slots // max(1, len(set(hosts))))
    found: dict[tuple[str | None, int], list[int]] = {}
    lives: dict[str | None, int] = {}
    for worker, host in enumerate(hosts):
        rank = lives.get(host, 0)
        lives[host] = rank + 1
        found.setdefault((host, rank % each), []).append(worker)
    seats = [Seat(tuple(workers), host) for (host, _), workers in found.items()]
    return sorted(seats, key=lambda seat: seat.name)
