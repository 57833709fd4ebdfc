"""The course of a layout: what is in force, what is published, and the migrations that are behind it.

A course belongs to one manifest that is being made. Decisions are functions from a course to the next
one; at the end it says what of it the manifest must tell. So a note that answers a command and
a step that completes a round are made in one way.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Update, updated
from headrace.ledger.head import Head
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.migrations import Moment, RecordedMigration, under_way


class LayoutState(msgspec.Struct, frozen=True):
    """Where the layout is, and where it is headed.

    Attributes:
        step: of the manifest that is being made.
        clock_us: what the driver's clock says.
        now: the layout that is in force in that step, with what is published for later ones.
        migrations: all that are remembered, by id.
        published: the updates that the manifest publishes.
        withdrawn: whether those that were published before are taken back by it.
    """

    step: int
    clock_us: int
    now: LayoutNow
    migrations: dict[int, RecordedMigration] = {}
    published: list[Update] = []
    withdrawn: bool = False

    @property
    def layout(self) -> Layout:
        """The layout in force."""
        return Layout.from_wire(self.now.wire)

    @property
    def under_way(self) -> RecordedMigration | None:
        """The migration that has begun and has not ended."""
        return under_way(list(self.migrations.values()))

    def is_a_round(self, update: Update) -> bool:
        """Say whether an update that is published is the round of a migration that is under way."""
        current = self.under_way
        published = current is not None and current.effective == update.step and current.left
        return bool(published) and current is not None and current.left[0].at(update.step) == update

    @property
    def queued(self) -> list[RecordedMigration]:
        """Those that wait for their turn, in order."""
        return [one for _, one in sorted(self.migrations.items()) if one.state == "queued"]

    @property
    def next_id(self) -> int:
        """The id of the next migration in the pipeline's life."""
        return max(self.migrations, default=0) + 1

    @property
    def moment(self) -> Moment:
        """The step and the time, as a migration notes them."""
        return Moment(self.step, self.clock_us)

    def knowing(self, migration: RecordedMigration) -> LayoutState:
        """Return it with what has become of a migration."""
        return msgspec.structs.replace(
            self, migrations={**self.migrations, migration.id: migration}
        )

    def publishing(self, update: Update) -> LayoutState:
        """Return it with an update of a later step.

        Raises:
            PipelineError: when it does not fit what will be in force then, or something that was
                published for later would not fit any more.
        """
        assert update.step > self.step
        now = self.now.with_published([update], withdrawn=False)
        layout_at(now)
        return msgspec.structs.replace(self, now=now, published=[*self.published, update])

    def withdrawing(self, update: Update) -> LayoutState:
        """Return it without an update that was published for a later step; the rest stays published."""
        kept = [one for one in self.now.updates if one != update]
        now = self.now.with_published(kept, withdrawn=True)
        return msgspec.structs.replace(self, now=now, published=kept, withdrawn=True)

    def told(self, head: Head | None) -> dict[str, Any]:
        """Return what the manifest says of it, as its fields (rounds only when they are new)."""
        before = {one.id: one for one in head.migrations} if head is not None else {}
        changed = [
            _shortened(one, before.get(id_))
            for id_, one in sorted(self.migrations.items())
            if before.get(id_) is not one
        ]
        return {"migrations": changed, "updates": self.published, "withdrawn": self.withdrawn}


def course_of(head: Head, clock_us: int) -> LayoutState:
    """Return the course at the manifest after a head."""
    step = head.step + 1
    return LayoutState(step, clock_us, head.layout_now.at(step), {m.id: m for m in head.migrations})


def layout_at(now: LayoutNow, step: int | None = None) -> Layout:
    """Return the layout that will be in force in a step; by default when all that is published is.

    Raises:
        PipelineError: when some update does not fit what is in force by then.
    """
    layout = Layout.from_wire(now.wire)
    for update in now.updates:
        if step is None or update.step <= step:
            layout = updated(layout, update)
    return layout


def _shortened(migration: RecordedMigration, before: RecordedMigration | None) -> RecordedMigration:
    if before is None:
        return migration
    known = {
        name: None
        for name in ("rounds", "origin")
        if getattr(migration, name) == getattr(before, name)
    }
    return msgspec.structs.replace(migration, **known)
