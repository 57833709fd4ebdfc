"""The layout in force, step by step: what claims and configuration updates make of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.keyspace.layout import Layout, LayoutWire
from headrace.keyspace.updates import Relocated, Update, relocated, updated


class LayoutNow(msgspec.Struct, frozen=True, array_like=True):
    """The layout that is in force after a step, and where it comes from.

    Attributes:
        wire: bins and owners.
        lineage: names the layout with which the newest claim that changed it began, and after how many live
            changes: files of one lineage can be told apart by owner, with ``relocated``.
        version: how many live changes there were in the pipeline's life.
        relocated: the live changes of this lineage that concern files which are still needed.
        updates: what is published, and takes effect at later steps.
    """

    wire: LayoutWire
    lineage: str = ""
    version: int = 0
    relocated: list[Relocated] = []
    updates: list[Update] = []

    def begun_with(self, wire: LayoutWire) -> LayoutNow:
        """Return what a claim with another layout makes of it: all begins anew.

        A layout may come back, after live changes of its first time of which nobody knows any more.
        """
        digest = Layout.from_wire(wire).digest
        lineage = f"{digest}-{self.version}" if self.version else digest
        return LayoutNow(wire, lineage, self.version)

    def at(self, step: int) -> LayoutNow:
        """Return what is in force in a step: with all that was published for it, or before it."""
        due = [update for update in self.updates if update.step <= step]
        if not due:
            return self
        layout = Layout.from_wire(self.wire)
        moves = list(self.relocated)
        version = self.version
        for update in due:
            after = updated(layout, update)
            version += 1
            moves.append(Relocated(version, step, relocated(layout, after)))
            layout = after
        later = [update for update in self.updates if update.step > step]
        lineage = self.lineage or Layout.from_wire(self.wire).digest  # (older heads do not say)
        return LayoutNow(layout.to_wire(), lineage, version, moves, later)

    def with_published(self, updates: Sequence[Update], withdrawn: bool) -> LayoutNow:
        """Return it with updates of later steps; without those before, if they are withdrawn."""
        kept = [] if withdrawn else self.updates
        if not updates and kept is self.updates:
            return self
        published = sorted([*kept, *updates], key=lambda update: update.step)
        return msgspec.structs.replace(self, updates=published)

    def since(self, floor: int) -> LayoutNow:
        """Return it without what concerns only files of steps that are not needed any more."""
        if not self.relocated or self.relocated[0].step > floor:
            return self
        needed = [change for change in self.relocated if change.step > floor]
        return msgspec.structs.replace(self, relocated=needed)
