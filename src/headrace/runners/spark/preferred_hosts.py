"""The hosts on which the workers of a Spark session run.

When workers are added, the others keep their hosts and their soft state. When hosts come or go or
are drained, as few workers as possible move.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from headrace.ledger.places import Places
from headrace.runners.spark import private_api
from headrace.runners.spark.placement import placed, roomiest

log = logging.getLogger("headrace.spark")

#: How often to look for executors. A look takes about five gateway calls.
LOOK_EVERY_S = 5.0


class PreferredHosts:
    """The preferred hosts of workers. They are kept for the largest number of workers that was
    requested.

    A host has come or gone when two looks in a row agree on it. So an executor that is restarted at
    once moves no worker. But its contents are lost, which ``version`` shows.

    Args:
        context: the SparkContext.
        clock: a monotonic clock, in seconds.
        look: returns the addresses of the executors.

    Attributes:
        version: changes when a preferred host or an executor changes.
        lock: hold it while you build RDDs. They are built with an environment that all threads share.
    """

    def __init__(
        self,
        context: Any,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[Any], list[str]] = private_api.executors,
    ) -> None:
        self.version = 0
        self.lock = threading.RLock()
        self._sc = context
        self._clock = clock
        self._executors_of = look
        self._hosts: list[str | None] = []
        self._drained: frozenset[str] = frozenset()
        self._settled = 0  # the number of workers for which all is settled
        self._executors = look(context)
        self._there = sorted(_hosts_of(self._executors))
        self._look_again_s = clock() + LOOK_EVERY_S

    def of(self, workers: int) -> list[str | None]:
        """Return where this many workers live. New ones go to hosts with the fewest workers."""
        missing = workers - len(self._hosts)
        if missing > 0:
            self._look(at_face_value=True)
            hosts = list(self._hosts)  # existing workers stay, however crowded their host is
            for _ in range(missing):
                hosts.append(roomiest(hosts, self._free))
            self._place(hosts)
        return self._hosts[:workers]

    def drain(self, hosts: Collection[str]) -> None:
        """Keep workers away from some hosts, from the next :meth:`settle` on."""
        self._drained = frozenset(hosts)
        self._settled = 0
        if self._there and not self._free:
            log.warning("all hosts are drained: workers stay where they are")

    def settle(self, workers: int) -> None:
        """Distribute this many workers over the hosts as evenly as possible.

        Looks for executors now and then. Between two looks it costs a few comparisons.
        """
        if self._clock() >= self._look_again_s:
            self._look()
        if self._settled == workers:
            return
        self._settled = workers
        hosts = placed(self._hosts[:workers], self._free)
        if hosts != self._hosts[:workers]:
            self._place(hosts)  # others get a place when they are needed

    def look_at_once(self) -> None:
        """Make the next :meth:`settle` look for executors, since something is wrong with one."""
        self._look_again_s = float("-inf")

    def places(self, workers: int) -> Places:
        """Return which hosts exist, and where this many workers live."""
        if not self._there:
            return Places()
        return Places(self._there, [host or "" for host in self._hosts[:workers]])

    @property
    def _free(self) -> list[str]:
        return [host for host in self._there if host not in self._drained]

    def _look(self, *, at_face_value: bool = False) -> None:
        """Look which executors exist.

        Args:
            at_face_value: whether one look is enough. Otherwise a host counts as come or gone when
                this look agrees with the one before.
        """
        before, self._executors = self._executors, self._executors_of(self._sc)
        self.version += self._executors != before
        now, last, known = _hosts_of(self._executors), _hosts_of(before), set(self._there)
        there = now if at_face_value else (now & last) | (known & (now | last))
        if there != known:
            self._there, self._settled = sorted(there), 0
        self._look_again_s = self._clock() + LOOK_EVERY_S

    def _place(self, hosts: list[str | None]) -> None:
        """Place workers on these hosts, and forget any others."""
        moved = [at for at, (a, b) in enumerate(zip(self._hosts, hosts, strict=False)) if a != b]
        for number in moved:
            log.info("worker %d moves from %s to %s", number, self._hosts[number], hosts[number])
        self._hosts = hosts
        self.version += bool(moved)


def _hosts_of(addresses: list[str]) -> set[str]:
    return {address.rpartition(":")[0] for address in addresses}
