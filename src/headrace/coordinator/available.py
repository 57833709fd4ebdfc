"""Runs that catch up: they read what is available now, and end.

Such a run says nothing about what comes later. An injector that was asked and had nothing more is
not asked again in this run. So input that arrives faster than it is read does not keep the run
going. Spark calls such a run a query with ``availableNow``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from headrace.coordinator.messages import Offered, Poll
from headrace.pipeline.source import Limit, Offer


class AvailableNow:
    """The progress of a run that catches up.

    Attributes:
        read: the injectors of which everything available has been read.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self._held: set[str] = set()  # injectors of which a limit on skew holds something back
        self._without_skew = False

    def paused(self, partitions: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
        """Return the partitions that a poll leaves out because they are far ahead of others.

        Once nothing else is left to read, none is left out: what they wait for does not come in
        this run.
        """
        return {} if self._without_skew else partitions

    def limits(self, limits: Mapping[str, Limit]) -> dict[str, Limit]:
        """Return how much may be taken, for the injectors that are still to be read."""
        return {
            name: msgspec.structs.replace(limit, open_ended=True)
            for name, limit in limits.items()
            if name not in self.read
        }

    def heard(self, poll: Poll, event: Offered) -> dict[str, Offer]:
        """Note what was offered. Return the offers, without the ends that they declare."""
        self._held = set(poll.limits) - set(poll.positions)
        found: dict[str, Offer] = {}
        for name in poll.positions:
            offer = event.offers.get(name)
            if offer is not None:
                found[name] = offer = msgspec.structs.replace(offer, final=False)
            if offer is not None and (not offer.empty or offer.pending):
                continue
            if poll.limits[name].paused:
                self._held.add(name)
            else:
                self.read.add(name)
        if any(not offer.empty for offer in found.values()):
            self._without_skew = False
        return found

    def lift_skew(self) -> bool:
        """Let partitions be read that a limit on skew holds back. Return whether there are any."""
        self._without_skew = bool(self._held)
        return self._without_skew

    def is_done(self, injectors: Collection[str]) -> bool:
        """Return whether everything available of these injectors has been read."""
        return self.read.issuperset(injectors)
