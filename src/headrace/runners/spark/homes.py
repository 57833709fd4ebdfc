"""Where the workers of a Spark session live.

A *home* is an RDD of one element, the worker's number. On a cluster it prefers a host; in every session
its Python processes are the worker's own, which so finds its soft state again. When workers are
added, those that were there keep their homes, and with them all that they remember. When hosts come
or go, or are drained, as few as can be move.
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

#: Executors are looked for so often. A look is some five calls of the gateway.
LOOK_EVERY_S = 5.0


class PreferredHosts:
    """Where workers live: made for as many as anybody asked for, and kept.

    A host has come or gone when two looks in a row agree on it. So an executor that is started again at
    once drives nobody away. (But what it held is gone, and ``version`` tells so.)

    Args:
        context: the SparkContext.
        clock: seconds, of any beginning.
        look: tells the addresses of the executors.

    Attributes:
        version: differs when something of the homes, or of the executors, does.
        lock: to be held while homes are asked for, or used to make RDDs: the environment
            that these are made with is everybody's.
    """

    def __init__(
        self, context: Any, clock: Callable[[], float] = time.monotonic,
        look: Callable[[Any], list[str]] = private_api.executors,
    ) -> None:  # fmt: skip
        self.version = 0
        self.lock = threading.RLock()
        self._sc = context
        self._clock = clock
        self._executors_of = look
        self._homes: list[Any] = []
        self._hosts: list[str | None] = []
        self._drained: frozenset[str] = frozenset()
        self._settled = 0  # for how many workers all is as it should be
        self._executors = look(context)
        self._there = sorted(_hosts_of(self._executors))
        self._look_again_s = clock() + LOOK_EVERY_S

    def of(self, workers: int) -> list[Any]:
        """Return the homes of so many workers; those that are missing are where fewest live."""
        missing = workers - len(self._hosts)
        if missing > 0:
            self._look(believe=True)
            hosts = list(self._hosts)  # (who was there stays, however crowded it is)
            for _ in range(missing):
                hosts.append(roomiest(hosts, self._free))
            self._live(hosts)
        return self._homes[:workers]

    def hosts(self, workers: int) -> list[str] | None:
        """Return the hosts of so many workers; None when one of them has none."""
        found = [host for host in self._hosts[:workers] if host is not None]
        return found if len(found) == workers else None

    def drain(self, hosts: Collection[str]) -> None:
        """Let nobody live on some hosts from the next :meth:`settle` on."""
        self._drained = frozenset(hosts)
        self._settled = 0
        if self._there and not self._free:
            log.warning("all hosts are drained: workers stay where they are")

    def settle(self, workers: int) -> None:
        """Let so many workers live as evenly as can be on the hosts that there are.

        Looks for executors now and then; between two looks it costs a comparison or two.
        """
        if self._clock() >= self._look_again_s:
            self._look()
        if self._settled == workers:
            return
        self._settled = workers
        hosts = placed(self._hosts[:workers], self._free)
        if hosts != self._hosts[:workers]:
            self._live(hosts)  # (others have a place found for them when they are needed)

    def look_at_once(self) -> None:
        """Look for executors the next time: something has gone wrong with one."""
        self._look_again_s = float("-inf")

    def places(self, workers: int) -> Places:
        """Return which hosts there are, and where so many workers live."""
        if not self._there:
            return Places()
        return Places(self._there, [host or "" for host in self._hosts[:workers]])

    @property
    def _free(self) -> list[str]:
        return [host for host in self._there if host not in self._drained]

    def _look(self, *, believe: bool = False) -> None:
        """Look which executors there are, and believe it, or where it agrees with the look before."""
        before, self._executors = self._executors, self._executors_of(self._sc)
        self.version += self._executors != before
        now, last, known = _hosts_of(self._executors), _hosts_of(before), set(self._there)
        there = now if believe else (now & last) | (known & (now | last))
        if there != known:
            self._there, self._settled = sorted(there), 0
        self._look_again_s = self._clock() + LOOK_EVERY_S

    def _live(self, hosts: list[str | None]) -> None:
        """Let workers live on these hosts; of the others nothing is known any more."""
        moved = [at for at, (a, b) in enumerate(zip(self._hosts, hosts, strict=False)) if a != b]
        for number in moved:
            log.info("worker %d moves from %s to %s", number, self._hosts[number], hosts[number])
        homes = [
            self._homes[number]
            if number < len(self._homes) and number not in moved
            else self._home(number, host)
            for number, host in enumerate(hosts)
        ]
        self._hosts, self._homes = hosts, homes
        self.version += bool(moved)

    def _home(self, number: int, host: str | None) -> Any:
        if host is None:
            return self._sc.parallelize([number], 1)
        return private_api.located(self._sc, [number], [host])


def _hosts_of(addresses: list[str]) -> set[str]:
    return {address.rpartition(":")[0] for address in addresses}
