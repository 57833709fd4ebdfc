"""Drained hosts: which hosts are drained after a command. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.coordinator.refused import Refused
from headrace.ledger.commands import Command
from headrace.ledger.head import Head
from headrace.ledger.places import Places


def drained_after(
    drained: Collection[str], command: Command, places: Places | None
) -> frozenset[str]:
    """Return the hosts on which no worker may run after a command.

    Args:
        drained: the drained hosts before it.
        command: ``drain_hosts`` or ``undrain_hosts``.
        places: where workers run now; None before the pipeline runs, when that is unknown.

    Raises:
        Refused: if a host is not there, or no other would be left.
    """
    if not command.hosts:
        raise Refused("it names no host")
    if command.kind == "undrain_hosts":
        wrong = [host for host in command.hosts if host not in drained]
        if wrong:
            raise Refused(f"{_list(wrong)} is not drained; drained are: {_list(drained) or 'none'}")
        return frozenset(drained) - frozenset(command.hosts)
    after = frozenset(drained) | frozenset(command.hosts)
    if places is None:
        return after
    if not places.there:
        raise Refused("all tasks run on one host, or it is not known yet where")
    if after.issuperset(places.there):
        raise Refused(f"nothing else would be left: there are {_list(places.there)}")
    return after


def remark(hosts: Sequence[str], places: Places | None) -> str:
    """Return a remark on drained hosts: which workers move, and which hosts have no executor."""
    if places is None:
        return ""
    leaving = places.on(list(hosts))
    strange = sorted(set(hosts) - set(places.there))
    numbers = ", ".join(str(worker) for worker in leaving)
    parts = [f"workers {numbers} move" if len(leaving) > 1 else f"worker {numbers} moves"]
    parts = parts if leaving else []
    parts += [f"no executor is on {_list(strange)} now"] if strange else []
    return "; ".join(parts)


def must_move(head: Head) -> bool:
    """Return whether a worker still runs on a drained host, while another host is available."""
    drained, places = head.drained_hosts, head.places
    return bool(drained and set(places.there) - set(drained) and places.on(drained))


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
