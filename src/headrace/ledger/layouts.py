"""The layout in force, step by step: what claims and configuration updates make of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.keyspace.layout import Layout, LayoutWire
from headrace.keyspace.updates import Relocated, Update, relocated, updated
from headrace.storage.bounds import Whole


class LayoutNow(msgspec.Struct, frozen=True, array_like=True):
    """The layout that is in force after a step, and where it comes from.

    Attributes:
        wire: bins and owners.
        lineage: names the layout that the changes since began with: files of one lineage can be told apart
            by owner, with ``relocated``.
        version: how many changes there were in the pipeline's life.
        relocated: the changes of this lineage that concern files which are still needed.
        updates: what is published, and takes effect at later steps.
    """

    wire: LayoutWire
    lineage: str = ""
    version: Whole = 0
    relocated: list[Relocated] = []
    updates: list[Update] = []

    def begun_with(self, wire: LayoutWire, step: int) -> LayoutNow:
        """Return what a claim with another layout makes of it, which is a change like any other.

        What was published for later steps was about the layout before, and is forgotten.
        """
        now = self.at(step)
        if now.wire == wire:
            lineage = now.lineage or Layout.from_wire(wire).digest
            return msgspec.structs.replace(now, lineage=lineage, updates=[])
        return now._changed_to(Layout.from_wire(now.wire), Layout.from_wire(wire), step, [])

    def at(self, step: int) -> LayoutNow:
        """Return what is in force in a step: with all that was published for it, or before it."""
        due = [update for update in self.updates if update.step <= step]
        if not due:
            return self
        later = [update for update in self.updates if update.step > step]
        now, layout = self, Layout.from_wire(self.wire)
        for update in due:
            after = updated(layout, update)
            now, layout = now._changed_to(layout, after, step, later), after
        return now

    def _changed_to(
        self, before: Layout, after: Layout, step: int, later: list[Update]
    ) -> LayoutNow:
        """Return what is in force from a step on with another layout, and what is published then."""
        change = Relocated(self.version + 1, step, relocated(before, after))
        lineage = self.lineage or before.digest  # (older heads do not say)
        return LayoutNow(after.to_wire(), lineage, change.version, [*self.relocated, change], later)

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
