"""The migrations of a pipeline, round by round, with how long steps took before, during and after.

Pure: made from the pipeline as of a committed step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.control.migrations import Progress, progress_of
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.ledger.migrations import Latency, RecordedMigration

#: ``done``: it has taken effect. ``published``: it takes effect at a step to come.
RoundState = Literal["done", "published", "left"]
#: At most this many rounds are listed, those around the next one.
MOST_ROUNDS = 256
#: The time that is left is estimated from this many of the newest rounds.
NEWEST_ROUNDS = 5


class RoundPicture(msgspec.Struct, frozen=True):
    """A round of a migration.

    Attributes:
        number: its number, from 1.
        state: how far it is.
        bins, nbytes: how many bins it moves, and about how many bytes of state.
    """

    number: int
    state: RoundState
    bins: int
    nbytes: int


class MigrationDetails(msgspec.Struct, frozen=True):
    """A migration.

    Attributes:
        id, what, by, strategy, state, why: as in ``RecordedMigration``.
        progress: its rounds, bins and bytes.
        since_step: the step at which it entered its state; -1 if none.
        began_at_s, ended_at_s: clock readings, in seconds since 1970; None while unknown.
        left_s: about how many seconds it still takes, if the rounds that are left take as long as the
            newest ones; None if not known.
        rounds: its rounds; none are kept of one that has ended.
        before, during, after: how long steps took.
    """

    id: int
    what: str
    by: str
    strategy: str
    state: str
    why: str
    progress: Progress
    since_step: int
    began_at_s: float | None
    ended_at_s: float | None
    left_s: float | None
    rounds: list[RoundPicture]
    before: Latency
    during: Latency
    after: Latency


class MigrationsPicture(msgspec.Struct, frozen=True):
    """The migrations of a pipeline: those under way and queued, and the newest that have ended.

    Attributes:
        step: the step that they are of.
        migrations: the newest first.
    """

    step: int
    migrations: list[MigrationDetails]


def migrations_of(head: Head, now_us: int, window: Sequence[Manifest] = ()) -> MigrationsPicture:
    """Return the migrations of a pipeline.

    Args:
        head: the pipeline as of a step.
        now_us: the time of day.
        window: the newest manifests, which say how long the newest rounds took.
    """
    found = sorted(head.migrations, key=lambda one: one.id, reverse=True)
    return MigrationsPicture(head.step, [_details(one, head.step, now_us, window) for one in found])


def _details(
    of: RecordedMigration, step: int, now_us: int, window: Sequence[Manifest]
) -> MigrationDetails:
    return MigrationDetails(
        id=of.id,
        what=of.what,
        by=of.by,
        strategy=of.strategy,
        state=of.state,
        why=of.why,
        progress=progress_of(of),
        since_step=of.since,
        began_at_s=None if of.began is None else of.began.clock_us / 1e6,
        ended_at_s=None if of.ended is None else of.ended.clock_us / 1e6,
        left_s=_left_s(of, now_us, window),
        rounds=_rounds(of, step),
        before=of.before,
        during=of.during,
        after=of.after,
    )


def _left_s(of: RecordedMigration, now_us: int, window: Sequence[Manifest]) -> float | None:
    if of.began is None or not of.is_under_way or of.state == "paused":
        return None
    done = [(of.began.clock_us, 0), *_rounds_done(of.id, window)]
    (from_us, first), (_, last) = done[-1 - NEWEST_ROUNDS :][0], done[-1]
    last = max(last, of.next)
    if last == first:
        return None
    return max(0.0, (now_us - from_us) / 1e6) / (last - first) * len(of.left)


def _rounds_done(id_: int, window: Sequence[Manifest]) -> list[tuple[int, int]]:
    """Return when rounds took effect: the clock reading, and how many had done so by then."""
    found: list[tuple[int, int]] = []
    for manifest in window:
        for one in manifest.migrations:
            if one.id == id_ and manifest.clock_us and one.next > (found[-1][1] if found else 0):
                found.append((manifest.clock_us, one.next))
    return found


def _rounds(of: RecordedMigration, step: int) -> list[RoundPicture]:
    rounds = of.rounds or []
    first = max(0, min(of.next - MOST_ROUNDS // 2, len(rounds) - MOST_ROUNDS))
    return [
        RoundPicture(at + 1, _state(of, at, step), rounds[at].bins, rounds[at].nbytes)
        for at in range(first, min(len(rounds), first + MOST_ROUNDS))
    ]


def _state(of: RecordedMigration, at: int, step: int) -> RoundState:
    if at < of.next:
        return "done"
    return "published" if at == of.next and of.effective > step else "left"
