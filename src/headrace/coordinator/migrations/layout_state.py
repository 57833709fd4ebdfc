"""The layout state: the layout in force, the published updates, and the migrations behind them.

A layout state belongs to one manifest that is being made. Decisions are functions from one layout
state to the next. In the end it returns what the manifest must record. So a note that answers a
command and a step that completes a round are made in the same way.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Update, updated
from headrace.ledger.head import Head
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.migrations import Moment, RecordedMigration, under_way
from headrace.migration.sharding import LayoutRules


class LayoutState(msgspec.Struct, frozen=True):
    """The present layout, and where it is going.

    Attributes:
        step: the step of the manifest that is being made.
        clock_us: the time by the driver's clock.
        now: the layout in force in that step, and the updates published for later steps.
        migrations: all migrations that are remembered, by id.
        published: the updates that the manifest publishes.
        withdrawn: whether the manifest withdraws the updates that were published before.
        rules: what later layouts keep to.
    """

    step: int
    clock_us: int
    now: LayoutNow
    migrations: dict[int, RecordedMigration] = {}
    published: list[Update] = []
    withdrawn: bool = False
    rules: LayoutRules = LayoutRules()

    @property
    def layout(self) -> Layout:
        """The layout in force."""
        return Layout.from_wire(self.now.wire)

    @property
    def under_way(self) -> RecordedMigration | None:
        """The migration that has started and has not ended, if any."""
        return under_way(list(self.migrations.values()))

    def is_a_round(self, update: Update) -> bool:
        """Return whether a published update is the round of a migration that is under way."""
        current = self.under_way
        published = current is not None and current.effective == update.step and current.left
        return bool(published) and current is not None and current.left[0].at(update.step) == update

    @property
    def queued(self) -> list[RecordedMigration]:
        """The migrations that wait for their turn, in order."""
        return [one for _, one in sorted(self.migrations.items()) if one.state == "queued"]

    @property
    def next_id(self) -> int:
        """The id of the next migration in the life of the pipeline."""
        return max(self.migrations, default=0) + 1

    @property
    def moment(self) -> Moment:
        """The step and the time, as a migration records them."""
        return Moment(self.step, self.clock_us)

    def knowing(self, migration: RecordedMigration) -> LayoutState:
        """Return it with a new or changed migration."""
        return msgspec.structs.replace(
            self, migrations={**self.migrations, migration.id: migration}
        )

    def keeping_to(self, rules: LayoutRules) -> LayoutState:
        """Return it with other rules for later layouts."""
        return msgspec.structs.replace(self, rules=rules)

    def publishing(self, update: Update) -> LayoutState:
        """Return it with an update for a later step.

        Raises:
            PipelineError: when the update does not fit the layout of that step, or makes an update
                that was published for a later step unfit.
        """
        assert update.step > self.step
        now = self.now.with_published([update], withdrawn=False)
        layout_at(now)
        return msgspec.structs.replace(self, now=now, published=[*self.published, update])

    def withdrawing(self, update: Update) -> LayoutState:
        """Return it without one update that was published for a later step.

        The others stay published.
        """
        kept = [one for one in self.now.updates if one != update]
        now = self.now.with_published(kept, withdrawn=True)
        return msgspec.structs.replace(self, now=now, published=kept, withdrawn=True)

    def manifest_fields(self, head: Head | None) -> dict[str, Any]:
        """Return the fields of the manifest that record it.

        Rounds are included only when they are new.
        """
        before = {one.id: one for one in head.migrations} if head is not None else {}
        changed = [
            _shortened(one, before.get(id_))
            for id_, one in sorted(self.migrations.items())
            if before.get(id_) is not one
        ]
        same = head is not None and head.layout_rules == self.rules
        return {
            "migrations": changed,
            "updates": self.published,
            "withdrawn": self.withdrawn,
            "layout_rules": None if same else self.rules,
        }


def layout_state_of(head: Head, clock_us: int) -> LayoutState:
    """Return the layout state for the manifest after a head."""
    step = head.step + 1
    now, known = head.layout_now.at(step), {m.id: m for m in head.migrations}
    return LayoutState(step, clock_us, now, known, rules=head.layout_rules.within(now.wire.workers))


def layout_at(now: LayoutNow, step: int | None = None) -> Layout:
    """Return the layout that will be in force in a step, by default after all published updates.

    Raises:
        PipelineError: when an update does not fit the layout that is in force by then.
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
