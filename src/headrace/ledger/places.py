"""Hosts, and which worker lives on which, as manifests tell it."""

from __future__ import annotations

import msgspec


class Places(msgspec.Struct, frozen=True):
    """Where the workers of a run live, as far as its runner knows.

    Attributes:
        there: the hosts that tasks can run on, sorted; none where all run on one.
        homes: the host of each worker; "" for one that may be anywhere.
    """

    there: list[str] = []
    homes: list[str] = []

    def on(self, hosts: list[str]) -> list[int]:
        """Return the workers that live on some hosts."""
        return [worker for worker, host in enumerate(self.homes) if host in hosts]
