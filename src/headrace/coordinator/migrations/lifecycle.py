"""The life of a migration, as decisions: how it changes with a manifest, and what is published.

::

    queued ──► preparing ──► moving ──► gap ──► preparing | moving ──► … ──► done
                  ▲  └────────►│ ▲       │
                  └── paused ◄─┘ └───────┘          any of these ──► aborting ──► aborted

**Preparing.** Before a round, the migration waits until the runner is ready for new workers. If
preparing was asked for, it also waits until the new owners have read their bins ahead.

**Moving.** A round is published in the manifest of a step, for the step after it. It has taken
place with the first step that is computed on the new layout, and the manifest of that step says so.
So after a crash the head says exactly where a migration is. No round is published twice, and none
is forgotten.

**Gap.** After a round, the migration waits until nothing is left of what the round has held up
(Megaphone §4.4). No more input may be waiting than before the migration. And steps must take no
longer than before it, or no longer get shorter: they may have become longer for other reasons, such
as more state or more input. A gap ends after a bounded number of steps in any case.

If another update has changed the layout so that a round no longer fits, the migration ends, and the
pipeline goes on. While the pipeline is paused, no step is made, so migrations wait. During a
backfill they go on, since its steps have a layout like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from headrace.coordinator.migrations.layout_state import LayoutState
from headrace.coordinator.migrations.step_times import LEVEL_STEPS, SLOW, RecentStepTimes, StepStats
from headrace.coordinator.refused import Refused
from headrace.errors import HeadraceError
from headrace.keyspace.layout import HASH_BITS, Layout
from headrace.ledger.head import Head
from headrace.ledger.migrations import Latency, MigrationState, RecordedMigration, RecordedRound
from headrace.migration.objective import Estimate

#: Maximum number of steps of a gap. Then the next round comes, even if the backlog has not drained.
MOST_GAP_STEPS = 64
#: Maximum number of steps of preparing. Then the round comes, even if not everything is prepared.
MOST_PREPARING_STEPS = 1_024

#: What is known of the readiness for the next round between two steps: nothing.
_NOTHING_READY = StepStats(0, prepared=False)

_replace = msgspec.structs.replace

#: What becomes of a migration when a round of it has taken place: the migration, perhaps with other
#: rounds left, and why it ends; "" if it goes on.
AfterRound = Callable[
    [LayoutState, RecordedMigration, RecordedRound, StepStats], tuple[RecordedMigration, str]
]


def _as_planned(
    layout_state: LayoutState, after: RecordedMigration, done: RecordedRound, stats: StepStats
) -> tuple[RecordedMigration, str]:
    return after, ""


class Planned(msgspec.Struct, frozen=True):
    """The way to a goal.

    Attributes:
        rounds: the rounds, in order.
        estimate: the expected cost.
        gap: whether each round is followed by a gap.
        prepare: whether rounds wait until the new owners have read ahead what moves.
        why: if there are no rounds, why nothing needs to be done.
    """

    rounds: list[RecordedRound]
    estimate: Estimate | None = None
    gap: bool = True
    prepare: bool = False
    why: str = ""


# -- with a step ------------------------------------------------------------------------------


def after_step(
    layout_state: LayoutState,
    stats: StepStats,
    times: RecentStepTimes,
    after_round: AfterRound = _as_planned,
) -> LayoutState:
    """Return the layout state for the manifest of a step that was computed.

    Args:
        layout_state: the layout state before, as of that manifest.
        stats: statistics of the step.
        times: recent step times; this step is noted there.
        after_round: called when a round has taken place. It may plan the rounds that are left anew.
    """
    current = layout_state.under_way
    if current is None:
        return _noted_after(layout_state, times.quiet(stats))
    times.moving(current.id, stats, current.during, paused=current.state == "paused")
    moved = _go_on(layout_state, current, stats, times, after_round)
    after = moved.migrations[current.id]
    if after is current:
        return layout_state
    moved = moved.knowing(_replace(after, during=times.during(current.id)))
    if after.is_over:
        times.ended(current.id)
    return moved


def _go_on(
    layout_state: LayoutState,
    current: RecordedMigration,
    stats: StepStats,
    times: RecentStepTimes,
    after_round: AfterRound,
) -> LayoutState:
    if current.effective > layout_state.step:
        return layout_state
    if current.effective >= 0:
        return _completed(layout_state, current, stats, after_round)
    match current.state:
        case "preparing":
            late = layout_state.step - current.since >= MOST_PREPARING_STEPS
            return proceed(layout_state, current, stats, late=late)
        case "gap" | "aborting":
            steps = layout_state.step - current.since
            level = steps >= LEVEL_STEPS and times.level
            if steps >= MOST_GAP_STEPS or _drained(current, stats, level):
                late = steps >= MOST_GAP_STEPS and current.state == "aborting"
                return proceed(layout_state, current, stats, late=late)
    return layout_state


def _drained(migration: RecordedMigration, stats: StepStats, level: bool) -> bool:
    """Return whether a step shows that nothing is left of what a round has held up."""
    if not stats.usual:
        return False
    usual = migration.before.p50_us
    soon = level or not usual or stats.took_us <= SLOW * usual
    return soon and (migration.more_before or not stats.more)


def _completed(
    layout_state: LayoutState,
    current: RecordedMigration,
    stats: StepStats,
    after_round: AfterRound,
) -> LayoutState:
    """Return the layout state when the published round has taken place."""
    done = current.left[0]
    back = current.state == "aborting"
    after = _replace(
        current,
        next=current.next + 1,
        effective=-1,
        bins=current.bins + (-done.bins if back else done.bins),
        nbytes=current.nbytes + (-done.nbytes if back else done.nbytes),
    )
    after, why = after_round(layout_state, after, done, stats)
    if why:
        return layout_state.knowing(_ended(after, "aborted", layout_state, why))
    if after.left and after.paused and not back:
        return layout_state.knowing(_in_state(after, "paused", layout_state))
    if after.left and after.gap:
        return layout_state.knowing(_in_state(after, "aborting" if back else "gap", layout_state))
    return proceed(layout_state, after, stats)


def proceed(
    layout_state: LayoutState,
    current: RecordedMigration,
    stats: StepStats = _NOTHING_READY,
    *,
    late: bool = False,
) -> LayoutState:
    """Return the layout state with the next stage of a migration that has no published round.

    Args:
        layout_state: the layout state before.
        current: the migration.
        stats: what is ready for the next round.
        late: whether to go on even if not everything is ready.
    """
    back = current.state == "aborting"
    if not current.left:
        return layout_state.knowing(_ended(current, "aborted" if back else "done", layout_state))
    coming = current.left[0]
    if not late and not _is_ready(layout_state, current, stats):
        waits = back or current.state == "preparing"
        return layout_state.knowing(
            current if waits else _in_state(current, "preparing", layout_state)
        )
    try:
        layout_state = layout_state.publishing(coming.at(layout_state.step + 1))
    except HeadraceError as error:
        why = f"{error.what}; what it had moved stays where it is{_others(layout_state)}"
        return layout_state.knowing(_ended(current, "aborted", layout_state, why))
    moving = _in_state(current, "aborting" if back else "moving", layout_state)
    return layout_state.knowing(_replace(moving, effective=layout_state.step + 1))


def _others(layout_state: LayoutState) -> str:
    """Return which other updates are published, for the message that a round does not fit."""
    steps = [str(update.step) for update in layout_state.now.updates]
    if not steps:
        return ""
    return f" (updates are published for steps {', '.join(steps)}: headrace updates withdraw)"


def _is_ready(layout_state: LayoutState, current: RecordedMigration, stats: StepStats) -> bool:
    """Return whether the next round can take place: its workers exist, its moves are prepared."""
    coming = current.left[0]
    if coming.workers > layout_state.now.wire.workers and stats.workers < coming.workers:
        return False
    copied = stats.prepared or not (current.prepare and coming.moves)
    return copied or current.state == "aborting"


def workers_to_come(head: Head) -> int:
    """Return the number of workers to get ready for; 0 if no more are to come."""
    current = head.migration
    if current is None or not current.left:
        return 0
    coming = current.left[0].workers
    return coming if coming > head.layout.workers else 0


def _in_state(
    migration: RecordedMigration, state: MigrationState, layout_state: LayoutState
) -> RecordedMigration:
    return _replace(migration, state=state, since=layout_state.step)


def _ended(
    migration: RecordedMigration, state: MigrationState, layout_state: LayoutState, why: str = ""
) -> RecordedMigration:
    return _replace(
        migration,
        state=state,
        since=layout_state.step,
        ended=layout_state.moment,
        effective=-1,
        rounds=[],
        next=0,
        origin=None,
        paused=False,
        why=why or migration.why,
    )


def _noted_after(layout_state: LayoutState, settled: tuple[int, Latency] | None) -> LayoutState:
    if settled is None or settled[0] not in layout_state.migrations:
        return layout_state
    id_, latency = settled
    return layout_state.knowing(_replace(layout_state.migrations[id_], after=latency))


# -- between steps ----------------------------------------------------------------------------


def begin(
    layout_state: LayoutState, id_: int, planned: Planned, times: RecentStepTimes
) -> LayoutState:
    """Return the layout state when the turn of a queued migration has come.

    Args:
        layout_state: the layout state before.
        id_: the id of the migration.
        planned: the way from the layout in force to its goal.
        times: recent step times.
    """
    layout_state = _noted_after(layout_state, times.settled())
    requested = layout_state.migrations[id_]
    prepare = planned.prepare and requested.prepare  # (it may have been hastened)
    begun = _replace(
        requested,
        strategy=f"{requested.strategy}, prepared" if prepare else requested.strategy,
        rounds=planned.rounds,
        origin=layout_state.now.wire,
        estimate=planned.estimate,
        gap=planned.gap and requested.gap,
        prepare=prepare,
        began=layout_state.moment,
        before=times.before,
        more_before=times.more,
    )
    if not planned.rounds:
        return layout_state.knowing(_ended(begun, "done", layout_state, planned.why))
    return proceed(layout_state, begun)


def refused(layout_state: LayoutState, id_: int, why: str) -> LayoutState:
    """Return the layout state when no way to the goal of a queued migration was found."""
    return layout_state.knowing(_ended(layout_state.migrations[id_], "aborted", layout_state, why))


def _pause(layout_state: LayoutState, found: RecordedMigration) -> LayoutState:
    """Return the layout state when a migration pauses after the current round."""
    if found.state == "aborting":
        raise Refused(f"migration {found.id} is being aborted")
    if found.paused:
        raise Refused(f"migration {found.id} is paused already")
    paused = _replace(found, paused=True)
    if found.state in ("gap", "preparing"):
        paused = _in_state(paused, "paused", layout_state)
    return layout_state.knowing(paused)


def _resume(layout_state: LayoutState, found: RecordedMigration) -> LayoutState:
    """Return the layout state when a paused migration is to go on."""
    if not found.paused:
        raise Refused(f"migration {found.id} is not paused")
    going = _replace(found, paused=False)
    if found.state != "paused":
        return layout_state.knowing(going)
    if found.next and found.gap:
        return layout_state.knowing(_in_state(going, "gap", layout_state))
    return proceed(layout_state, going)


def _abort(layout_state: LayoutState, found: RecordedMigration) -> LayoutState:
    """Return the layout state when a migration is to be undone.

    Rounds that were not started are dropped. The others are undone in the opposite order, as rounds
    of their own. So undoing, too, goes on after a crash.
    """
    if found.state == "aborting":
        raise Refused(f"migration {found.id} is being aborted already")
    if found.effective > layout_state.step:
        layout_state = layout_state.withdrawing(found.left[0].at(found.effective))
    elif found.effective >= 0:  # it is in force from here on
        done = found.left[0]
        found = _replace(
            found,
            next=found.next + 1,
            bins=found.bins + done.bins,
            nbytes=found.nbytes + done.nbytes,
        )
    back = _replace(
        found,
        state="aborting",
        since=layout_state.step,
        rounds=undone(found),
        next=0,
        effective=-1,
        prepare=False,
        paused=False,
        why="aborted on request",
    )
    return proceed(layout_state, back)


def _hasten(layout_state: LayoutState, found: RecordedMigration) -> LayoutState:
    """Return the layout state when the rest of a migration moves at once."""
    if found.state == "aborting":
        raise Refused(f"migration {found.id} is being aborted")
    found = _replace(found, prepare=False, gap=False, paused=False)
    if found.state == "queued":
        return layout_state.knowing(found)
    begun = found.next + (found.effective >= 0)
    rounds = found.rounds or []
    hurried = _replace(found, rounds=[*rounds[:begun], *_as_one(rounds[begun:])])
    return layout_state.knowing(hurried) if found.effective >= 0 else proceed(layout_state, hurried)


def give_up(layout_state: LayoutState, ids: Iterable[int], why: str) -> LayoutState:
    """Return the layout state when some migrations, under way or queued, no longer make sense."""
    for id_ in ids:
        migration = layout_state.migrations[id_]
        if not migration.is_over:
            layout_state = layout_state.knowing(_ended(migration, "aborted", layout_state, why))
    return layout_state


_KINDS: dict[str, Callable[[LayoutState, RecordedMigration], LayoutState]] = {
    "pause_migration": _pause,
    "resume_migration": _resume,
    "abort_migration": _abort,
    "hasten_migration": _hasten,
}


def steer_migration(layout_state: LayoutState, kind: str, id_: int) -> LayoutState:
    """Return the layout state after a command to a migration.

    Raises:
        Refused: if the migration cannot do that now.
    """
    found = layout_state.migrations.get(id_)
    if found is None:
        raise Refused(f"there is no migration {id_}")
    if found.is_over:
        raise Refused(f"migration {id_} is {found.state}")
    return _KINDS[kind](layout_state, found)


# -- rounds -----------------------------------------------------------------------------------


def undone(migration: RecordedMigration) -> list[RecordedRound]:
    """Return the rounds that undo what a migration has done, in order.

    A migration moves a bin once, so a bin goes back to the worker that had it at the start.
    """
    if migration.origin is None:
        return []
    origin = Layout.from_wire(migration.origin)
    workers, back = origin.workers, []
    for done in (migration.rounds or [])[: migration.next]:
        before, workers = workers, done.workers or workers
        back.append(
            RecordedRound(
                workers=before if workers != before else 0,
                splits=done.merges[::-1],
                moves=[part for moved in done.moves for part in _back(moved, origin)],
                merges=done.splits[::-1],
                interferes=done.interferes,
                nbytes=done.nbytes,
                most_bins=done.most_bins,
                most_bytes=done.most_bytes,
            )
        )
    return back[::-1]


def _back(moved: tuple[int, int, int, int], origin: Layout) -> list[tuple[int, int, int, int]]:
    """Return where neighbouring bins go back to, as runs of bins with the same owner."""
    start, bits, count, _ = moved
    if not bits:
        return [(0, 0, 1, int(origin.owners[0]))]
    width = 1 << (HASH_BITS - bits)
    starts = np.uint64(start) + np.arange(count, dtype=np.uint64) * np.uint64(width)
    owners = origin.workers_of(starts)
    begins = np.flatnonzero(np.diff(owners, prepend=-1))
    counts = np.diff(begins, append=count)
    return [
        (start + at * width, bits, many, owner)
        for at, many, owner in zip(
            begins.tolist(), counts.tolist(), owners[begins].tolist(), strict=True
        )
    ]


def _as_one(rounds: list[RecordedRound]) -> list[RecordedRound]:
    """Return some rounds as a single one, or none if there are none."""
    if not rounds:
        return []
    joined = RecordedRound(
        workers=next((part.workers for part in reversed(rounds) if part.workers), 0),
        splits=[split for part in rounds for split in part.splits],
        moves=[move for part in rounds for move in part.moves],
        merges=[merge for part in rounds for merge in part.merges],
        interferes=True,
        nbytes=sum(part.nbytes for part in rounds),
        most_bins=sum(part.most_bins for part in rounds),
        most_bytes=sum(part.most_bytes for part in rounds),
    )
    return [joined]
