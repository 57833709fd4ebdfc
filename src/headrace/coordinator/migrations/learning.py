"""What each round teaches, and rounds that are planned anew when an objective asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headrace.coordinator.load.measured import Measured
from headrace.coordinator.load.round_times import RoundMeter
from headrace.coordinator.migrations.goals import way_to
from headrace.coordinator.migrations.layout_state import LayoutState
from headrace.errors import ChangeRefused
from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import updated
from headrace.ledger.migrations import RecordedMigration, RecordedRound
from headrace.migration.reading import RoundKind
from headrace.migration.rounds import Batched
from headrace.protocol.loads import OpenedState

#: Rounds that are expected to fill less of the spare time than this are planned anew, with more bins.
_TOO_SMALL = 0.5
#: Until then, rounds get this many times fewer bins.
_CAUTION = 8
#: A migration ends because of its objective only after this many rounds. A single step may be slow for
#: other reasons.
_LEAST_ROUNDS = 3


def kind_of(migration: RecordedMigration, done: RecordedRound) -> RoundKind | None:
    """Return what kind of round it is that has just taken place; None if it teaches nothing.

    Args:
        migration: the migration, of which ``next`` is the round after it.
        done: the round.
    """
    if not done.moves:
        grows = done.workers > _workers_before(migration)
        return ("grow" if grows else "shrink") if done.workers else None
    if migration.state == "aborting":
        return None  # what goes back may be at hand still
    if migration.prepare:
        return "prepared"
    earlier = (migration.rounds or [])[: max(0, migration.next - 1)]
    return "later" if any(part.moves for part in earlier) else "first"


def note_round(
    meter: RoundMeter,
    migration: RecordedMigration,
    done: RecordedRound,
    measured: Measured,
    took_us: int,
    opened: Sequence[OpenedState] = (),
) -> None:
    """Note how long the step of a round took.

    Args:
        meter: where it is noted.
        migration: the migration, of which ``next`` is the round after it.
        done: the round.
        measured: what is known.
        took_us: how long its step took.
        opened: what each worker has opened in the step. Bins that nothing touches stay closed, so it
            may be less than what has moved. What was read ahead is not in it.
    """
    kind = kind_of(migration, done)
    before = migration.before.p50_us
    if kind is None or not before:
        return
    fixed = measured.fixed_us(kind)
    if kind not in ("grow", "shrink") and done.workers:
        grows = done.workers > _workers_before(migration)
        fixed += measured.fixed_us("grow" if grows else "shrink")
    work = [(done.most_bins, done.most_bytes)]
    if kind != "prepared":
        work = [(of.bins, of.nbytes) for of in opened]
    opening = max((measured.opening_us(kind, *of) for of in work), default=0.0)
    meter.note(kind, fixed, opening, took_us - before)


def _workers_before(migration: RecordedMigration) -> int:
    return 0 if migration.origin is None else migration.origin.workers


def with_rounds_left(
    layout_state: LayoutState,
    migration: RecordedMigration,
    measured: Callable[[], Measured],
    expected: Measured,
) -> tuple[RecordedMigration, str]:
    """Return a migration with the rounds that its objective asks for, by what is known now.

    Args:
        layout_state: the layout state, in which the newest round is in force.
        migration: the migration, with the rounds as planned.
        measured: returns all that is known of bins, at a cost that is proportional to their number.
        expected: what is known but for single bins.

    Returns:
        The migration, and why it has to end; "" if it goes on.
    """
    goal = migration.goal
    if goal is None or not goal.objective_us or migration.state == "aborting":
        return migration, ""
    moving = [part for part in migration.left if part.moves]
    if not moving or not _differs(moving, migration, expected):
        return migration, ""
    layout = layout_state.layout
    try:
        target = _target(layout, migration.left, layout_state.step)
        gap = msgspec.structs.replace(goal.strategy, gap=migration.gap)
        wanted = msgspec.structs.replace(goal, strategy=gap, prepare=migration.prepare)
        planned = way_to(layout, target, wanted, measured(), under_way=True)
    except ChangeRefused as refused:
        if migration.next >= _LEAST_ROUNDS:
            return migration, f"{refused.what}; what it had moved stays where it is"
        fewer = Batched(max(1, max(of.bins for of in moving) // _CAUTION), gap=migration.gap)
        wanted = msgspec.structs.replace(wanted, strategy=fewer, objective_us=0)
        planned = way_to(layout, target, wanted, measured(), under_way=True)
    done = (migration.rounds or [])[: migration.next]
    return msgspec.structs.replace(migration, rounds=[*done, *planned.rounds]), ""


def _differs(moving: list[RecordedRound], migration: RecordedMigration, expected: Measured) -> bool:
    """Return whether rounds are too large or too small by what is known now."""
    assert migration.goal is not None
    kind: RoundKind = "prepared" if migration.prepare else "later"
    base = max(expected.steps.p50_us, expected.scatter.high_us)
    spare = (migration.goal.objective_us - base) / (1 if migration.gap else 2)
    spare -= expected.rounds.kind(kind).excess_us
    # (rounds without these numbers were planned by an older version)
    times = [
        expected.expected_us(kind, part.most_bins, part.most_bytes)
        for part in moving[:-1] or moving
        if part.most_bins
    ]
    if not times:
        return False
    return max(times) > spare or (len(moving) > 1 and max(times) < _TOO_SMALL * spare)


def _target(layout: Layout, left: list[RecordedRound], step: int) -> Layout:
    """Return the layout to which rounds lead."""
    for round_ in left:
        layout = updated(layout, round_.at(step))
    return layout
