"""Hosts, and which worker runs on which, as manifests record it."""

from __future__ import annotations

import msgspec


class Places(msgspec.Struct, frozen=True):
    """The hosts of a run's workers, as far as its runner knows.

    Attributes:
        there: the hosts on which tasks can run, sorted; empty if all run on one.
        homes: the host of each worker; "" for a worker that may run anywhere.
    """

    there: list[str] = []
    homes: list[str] = []

    def on(self, hosts: list[str]) -> list[int]:
        """Return the workers that run on any of these hosts."""
        return [worker for worker, host in enumerate(self.homes) if host in hosts]
