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
from headrace.coordinator.migrations.step_times import LEVEL_STEPS, RecentStepTimes, StepStats
from headrace.coordinator.refused import Refused
from headrace.errors import HeadraceError
from headrace.keyspace.layout import HASH_BITS, Layout
from headrace.ledger.head import Head
from headrace.ledger.migrations import Latency, MigrationState, RecordedMigration, RecordedRound
from headrace.migration.objective import Estimate

#: The backlog of a round has drained when a step takes at most this many times as long as steps did
#: before.
_DRAINED = 1.2
#: Maximum number of steps of a gap. Then the next round comes, even if the backlog has not drained.
MOST_GAP_STEPS = 64
#: Maximum number of steps of preparing. Then the round comes, even if not everything is prepared.
MOST_PREPARING_STEPS = 1_024

#: What is known of the readiness for the next round between two steps: nothing.
_NOTHING_READY = StepStats(0, prepared=False)

_replace = msgspec.structs.replace


class Planned(msgspec.Struct, frozen=True):
    """The way to a goal.

    Attributes:
        rounds: the rounds, in order.
        estimate: the expected cost.
        gap: whether each round is followed by a gap.
        why: if there are no rounds, why nothing needs to be done.
    """

    rounds: list[RecordedRound]
    estimate: Estimate | None = None
    gap: bool = True
    why: str = ""


# -- with a step ------------------------------------------------------------------------------


def after_step(course: LayoutState, told: StepStats, times: RecentStepTimes) -> LayoutState:
    """Return the layout state for the manifest of a step that was computed.

    Args:
        course: the layout state before, as of that manifest.
        told: statistics of the step.
        times: recent step times; this step is noted there.
    """
    current = course.under_way
    if current is None:
        return _noted_after(course, times.quiet(told))
    times.moving(current.id, told, current.during, paused=current.state == "paused")
    moved = _go_on(course, current, told, times)
    after = moved.migrations[current.id]
    if after is current:
        return course
    moved = moved.knowing(_replace(after, during=times.during(current.id)))
    if after.is_over:
        times.ended(current.id)
    return moved


def _go_on(
    course: LayoutState, current: RecordedMigration, told: StepStats, times: RecentStepTimes
) -> LayoutState:
    if current.effective > course.step:
        return course
    if current.effective >= 0:
        return _completed(course, current, told)
    match current.state:
        case "preparing":
            late = course.step - current.since >= MOST_PREPARING_STEPS
            return proceed(course, current, told, late=late)
        case "gap" | "aborting":
            steps = course.step - current.since
            level = steps >= LEVEL_STEPS and times.level
            if steps >= MOST_GAP_STEPS or _drained(current, told, level):
                late = steps >= MOST_GAP_STEPS and current.state == "aborting"
                return proceed(course, current, told, late=late)
    return course


def _drained(migration: RecordedMigration, told: StepStats, level: bool) -> bool:
    """Return whether a step shows that nothing is left of what a round has held up."""
    if not told.usual:
        return False
    usual = migration.before.p50_us
    soon = level or not usual or told.took_us <= _DRAINED * usual
    return soon and (migration.more_before or not told.more)


def _completed(course: LayoutState, current: RecordedMigration, told: StepStats) -> LayoutState:
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
    if after.left and after.paused and not back:
        return course.knowing(_standing(after, "paused", course))
    if after.left and after.gap:
        return course.knowing(_standing(after, "aborting" if back else "gap", course))
    return proceed(course, after, told)


def proceed(
    course: LayoutState,
    current: RecordedMigration,
    told: StepStats = _NOTHING_READY,
    *,
    late: bool = False,
) -> LayoutState:
    """Return the layout state with the next stage of a migration that has no published round.

    Args:
        course: the layout state before.
        current: the migration.
        told: what is ready for the next round.
        late: whether to go on even if not everything is ready.
    """
    back = current.state == "aborting"
    if not current.left:
        return course.knowing(_ended(current, "aborted" if back else "done", course))
    coming = current.left[0]
    if not late and not _is_ready(course, current, told):
        waits = back or current.state == "preparing"
        return course.knowing(current if waits else _standing(current, "preparing", course))
    try:
        course = course.publishing(coming.at(course.step + 1))
    except HeadraceError as error:
        why = f"{error.what}; what it had moved stays where it is{_others(course)}"
        return course.knowing(_ended(current, "aborted", course, why))
    moving = _standing(current, "aborting" if back else "moving", course)
    return course.knowing(_replace(moving, effective=course.step + 1))


def _others(course: LayoutState) -> str:
    """Return which other updates are published, for the message that a round does not fit."""
    steps = [str(update.step) for update in course.now.updates]
    if not steps:
        return ""
    return f" (updates are published for steps {', '.join(steps)}: headrace updates withdraw)"


def _is_ready(course: LayoutState, current: RecordedMigration, told: StepStats) -> bool:
    """Return whether the next round can take place: its workers exist, its moves are prepared."""
    coming = current.left[0]
    if coming.workers > course.now.wire.workers and told.workers < coming.workers:
        return False
    copied = told.prepared or not (current.prepare and coming.moves)
    return copied or current.state == "aborting"


def workers_to_come(head: Head) -> int:
    """Return the number of workers to get ready for; 0 if no more are to come."""
    current = head.migration
    if current is None or not current.left:
        return 0
    coming = current.left[0].workers
    return coming if coming > head.layout.workers else 0


def _standing(
    migration: RecordedMigration, state: MigrationState, course: LayoutState
) -> RecordedMigration:
    return _replace(migration, state=state, since=course.step)


def _ended(
    migration: RecordedMigration, state: MigrationState, course: LayoutState, why: str = ""
) -> RecordedMigration:
    return _replace(
        migration, state=state, since=course.step, ended=course.moment, effective=-1, rounds=[],
        next=0, origin=None, paused=False, why=why or migration.why,
    )  # fmt: skip


def _noted_after(course: LayoutState, settled: tuple[int, Latency] | None) -> LayoutState:
    if settled is None or settled[0] not in course.migrations:
        return course
    id_, latency = settled
    return course.knowing(_replace(course.migrations[id_], after=latency))


# -- between steps ----------------------------------------------------------------------------


def begin(course: LayoutState, id_: int, planned: Planned, times: RecentStepTimes) -> LayoutState:
    """Return the layout state when the turn of a queued migration has come.

    Args:
        course: the layout state before.
        id_: the id of the migration.
        planned: the way from the layout in force to its goal.
        times: recent step times.
    """
    course = _noted_after(course, times.settled())
    begun = _replace(
        course.migrations[id_],
        rounds=planned.rounds,
        origin=course.now.wire,
        estimate=planned.estimate,
        gap=planned.gap and course.migrations[id_].gap,
        began=course.moment,
        before=times.before,
        more_before=times.more,
    )
    if not planned.rounds:
        return course.knowing(_ended(begun, "done", course, planned.why))
    return proceed(course, begun)


def refused(course: LayoutState, id_: int, why: str) -> LayoutState:
    """Return the layout state when no way to the goal of a queued migration was found."""
    return course.knowing(_ended(course.migrations[id_], "aborted", course, why))


def _pause(course: LayoutState, found: RecordedMigration) -> LayoutState:
    """Return the layout state when a migration pauses after the current round."""
    if found.state == "aborting":
        raise Refused(f"migration {found.id} is being aborted")
    if found.paused:
        raise Refused(f"migration {found.id} is paused already")
    paused = _replace(found, paused=True)
    if found.state in ("gap", "preparing"):
        paused = _standing(paused, "paused", course)
    return course.knowing(paused)


def _resume(course: LayoutState, found: RecordedMigration) -> LayoutState:
    """Return the layout state when a paused migration is to go on."""
    if not found.paused:
        raise Refused(f"migration {found.id} is not paused")
    going = _replace(found, paused=False)
    if found.state != "paused":
        return course.knowing(going)
    if found.next and found.gap:
        return course.knowing(_standing(going, "gap", course))
    return proceed(course, going)


def _abort(course: LayoutState, found: RecordedMigration) -> LayoutState:
    """Return the layout state when a migration is to be undone.

    Rounds that were not started are dropped. The others are undone in the opposite order, as rounds
    of their own. So undoing, too, goes on after a crash.
    """
    if found.state == "aborting":
        raise Refused(f"migration {found.id} is being aborted already")
    if found.effective > course.step:
        course = course.withdrawing(found.left[0].at(found.effective))
    elif found.effective >= 0:  # it is in force from here on
        done = found.left[0]
        found = _replace(
            found, next=found.next + 1, bins=found.bins + done.bins,
            nbytes=found.nbytes + done.nbytes,
        )  # fmt: skip
    back = _replace(
        found, state="aborting", since=course.step, rounds=undone(found), next=0, effective=-1,
        prepare=False, paused=False, why="somebody asked for it",
    )  # fmt: skip
    return proceed(course, back)


def _hasten(course: LayoutState, found: RecordedMigration) -> LayoutState:
    """Return the layout state when the rest of a migration moves at once."""
    if found.state == "aborting":
        raise Refused(f"migration {found.id} is being aborted")
    found = _replace(found, prepare=False, gap=False, paused=False)
    if found.state == "queued":
        return course.knowing(found)
    begun = found.next + (found.effective >= 0)
    rounds = found.rounds or []
    hurried = _replace(found, rounds=[*rounds[:begun], *_as_one(rounds[begun:])])
    return course.knowing(hurried) if found.effective >= 0 else proceed(course, hurried)


def give_up(course: LayoutState, ids: Iterable[int], why: str) -> LayoutState:
    """Return the layout state when some migrations, under way or queued, no longer make sense."""
    for id_ in ids:
        migration = course.migrations[id_]
        if not migration.is_over:
            course = course.knowing(_ended(migration, "aborted", course, why))
    return course


_KINDS: dict[str, Callable[[LayoutState, RecordedMigration], LayoutState]] = {
    "pause_migration": _pause,
    "resume_migration": _resume,
    "abort_migration": _abort,
    "hasten_migration": _hasten,
}


def steered(course: LayoutState, kind: str, id_: int) -> LayoutState:
    """Return the layout state after a command to a migration.

    Raises:
        Refused: if the migration cannot do that now.
    """
    found = course.migrations.get(id_)
    if found is None:
        raise Refused(f"there is no migration {id_}")
    if found.is_over:
        raise Refused(f"migration {id_} is {found.state}")
    return _KINDS[kind](course, found)


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
    )
    return [joined]
