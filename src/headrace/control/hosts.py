"""Draining hosts, as a pipeline's owner asks for it."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.control.migrations import MovesState
from headrace.coordinator.migrations.drained_hosts import drained_after, remark
from headrace.errors import ChangeRefused
from headrace.ledger.commands import Answer, Command
from headrace.ledger.places import Places


class PlacesWorkers(MovesState):
    """What can be asked about hosts, besides what can be asked of a layout."""

    @property
    def places(self) -> Places:
        """The hosts that there are, and the host of each worker, as the newest step has noted them.

        There are none where all tasks run on one host.
        """
        return self.current().places

    def drain_hosts(self, hosts: str | Sequence[str], *, dry_run: bool = False) -> Answer:
        """Let no worker live on some hosts, so that they can be taken away; also after a restart.

        Workers that live there live elsewhere from the next step on (which is made at once, also without
        input): :attr:`places` tells. What they remember is read again from storage; no state moves.
        A home is a preference: where the other hosts have fewer slots than workers, Spark runs
        some tasks on a drained host as long as that is there.

        Args:
            hosts: their names, as Spark knows them.
            dry_run: only tell what it would come to, from where workers lived at the newest step.

        Returns:
            The answer; its ``why`` says who moves. A dry run has number -1.

        Raises:
            ChangeRefused: when nothing else would be left, or all tasks run on one host.
        """
        command = Command("drain_hosts", hosts=_names(hosts))
        if not dry_run:
            return self.ask_for(command)
        head = self.current()
        drained = drained_after(head.drained_hosts, command, head.places)
        if isinstance(drained, str):
            raise ChangeRefused(f"{command.text}: {drained}")
        why = remark(sorted(drained), head.places)
        return Answer(-1, command.text, False, head.step + 1, why)

    def undrain_hosts(self, hosts: str | Sequence[str]) -> Answer:
        """Let workers live on hosts again that were drained. Some move there, if others are crowded.

        Raises:
            ChangeRefused: when one of them is not drained.
        """
        return self.ask_for(Command("undrain_hosts", hosts=_names(hosts)))


def _names(hosts: str | Sequence[str]) -> list[str]:
    return [hosts] if isinstance(hosts, str) else list(hosts)
