"""The layout in force at each step, as claims and configuration updates change it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.keyspace.layout import Layout, LayoutWire
from headrace.keyspace.updates import Relocated, Update, relocated, updated
from headrace.storage.bounds import Whole


class LayoutNow(msgspec.Struct, frozen=True, array_like=True):
    """The layout in force after a step, with its history.

    Attributes:
        wire: the bins and their owners.
        lineage: digest of the layout with which this history of changes started. Within one
            lineage, ``relocated`` says which worker's files hold which hashes.
        version: how many changes of the layout there have been in the pipeline's life.
        relocated: the changes of this lineage that concern files which are still needed.
        updates: published updates that take effect at later steps.
    """

    wire: LayoutWire
    lineage: str = ""
    version: Whole = 0
    relocated: list[Relocated] = []
    updates: list[Update] = []

    def begun_with(self, wire: LayoutWire, step: int) -> LayoutNow:
        """Return the layout after a claim that starts with a layout of its own.

        This is a change like any other. Updates published for later steps are dropped, because they
        referred to the layout before.
        """
        now = self.at(step)
        if now.wire == wire:
            lineage = now.lineage or Layout.from_wire(wire).digest
            return msgspec.structs.replace(now, lineage=lineage, updates=[])
        return now._changed_to(Layout.from_wire(now.wire), Layout.from_wire(wire), step, [])

    def at(self, step: int) -> LayoutNow:
        """Return the layout in force at a step, after all updates published up to it."""
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
        """Return this with another layout in force from a step on, and later updates published."""
        change = Relocated(self.version + 1, step, relocated(before, after))
        lineage = self.lineage or before.digest  # (older heads have none)
        return LayoutNow(after.to_wire(), lineage, change.version, [*self.relocated, change], later)

    def with_published(self, updates: Sequence[Update], withdrawn: bool) -> LayoutNow:
        """Return this with more published updates, and without withdrawn ones."""
        kept = [] if withdrawn else self.updates
        if not updates and kept is self.updates:
            return self
        published = sorted([*kept, *updates], key=lambda update: update.step)
        return msgspec.structs.replace(self, updates=published)

    def since(self, floor: int) -> LayoutNow:
        """Return this without the changes that concern only files of steps up to the floor."""
        if not self.relocated or self.relocated[0].step > floor:
            return self
        needed = [change for change in self.relocated if change.step > floor]
        return msgspec.structs.replace(self, relocated=needed)
