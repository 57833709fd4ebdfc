"""Hosts, and which worker runs on which, as manifests record it."""

from __future__ import annotations

import msgspec


class Places(msgspec.Struct, frozen=True):
    """The hosts of a run's workers, as far as its runner knows.

    Attributes:
        there: the hosts on which tasks can run, sorted; empty if all run on one.
        worker_hosts: the host of each worker; "" for a worker that may run anywhere.
    """

    there: list[str] = []
    worker_hosts: list[str] = msgspec.field(default_factory=list, name="homes")

    def on(self, hosts: list[str]) -> list[int]:
        """Return the workers that run on any of these hosts."""
        return [worker for worker, host in enumerate(self.worker_hosts) if host in hosts]
