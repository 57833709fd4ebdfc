"""Draining hosts: the public methods."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.control.migrations import MovesState
from headrace.coordinator.migrations.drained_hosts import drained_after, remark
from headrace.coordinator.refused import Refused
from headrace.errors import ChangeRefused
from headrace.ledger.commands import Answer, Command
from headrace.ledger.places import Places


class PlacesWorkers(MovesState):
    """Methods about hosts, besides those that move state."""

    @property
    def places(self) -> Places:
        """The hosts with executors, and each worker's preferred host, as of the newest step.

        Empty if all tasks run on one host.
        """
        return self.current().places

    def drain_hosts(self, hosts: str | Sequence[str], *, dry_run: bool = False) -> Answer:
        """Keep workers off some hosts, so that these can be taken away. This survives a restart.

        From the next step on, the workers of these hosts prefer other hosts; :attr:`places` shows
        which. That step is made at once, even without input. No state moves: soft state is read
        again from storage. A preferred host is only a preference. If the other hosts have fewer
        slots than workers, Spark runs some tasks on a drained host as long as it has an executor
        there.

        Args:
            hosts: names of hosts, as Spark knows them.
            dry_run: only report which workers would move, as of the newest step.

        Returns:
            The answer; its ``why`` says which workers move. A dry run has number -1.

        Raises:
            ChangeRefused: if no other host would be left, or all tasks run on one host.
        """
        command = Command("drain_hosts", hosts=_names(hosts))
        if not dry_run:
            return self.ask_for(command)
        head = self.current()
        try:
            drained = drained_after(head.drained_hosts, command, head.places)
        except Refused as refusal:
            raise ChangeRefused(f"{command.text}: {refusal.why}") from refusal
        why = remark(sorted(drained), head.places)
        return Answer(-1, command.text, False, head.step + 1, why)

    def undrain_hosts(self, hosts: str | Sequence[str]) -> Answer:
        """Let workers run on drained hosts again. Some move there if other hosts are crowded.

        Raises:
            ChangeRefused: if one of the hosts is not drained.
        """
        return self.ask_for(Command("undrain_hosts", hosts=_names(hosts)))


def _names(hosts: str | Sequence[str]) -> list[str]:
    return [hosts] if isinstance(hosts, str) else list(hosts)
