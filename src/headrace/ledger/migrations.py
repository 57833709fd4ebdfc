"""Migrations as the ledger keeps them: what is to move in which rounds, how far it is, how it went.

A migration's rounds are written once, when it begins; after that the manifests tell its progress. So a
crash in the middle goes on where it was, and a bin never moves twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.keyspace.updates import Update

#: How many migrations that have ended the head remembers.
RECENT_MIGRATIONS = 32

#: ``queued``: behind another one. ``preparing``: what the next rounds move is copied ahead. ``moving``: a
#: round is published, and takes effect. ``gap``: after a round, until the backlog has drained. ``paused``:
#: between rounds, until somebody resumes it. ``aborting``: what was moved goes back, in rounds.
MigrationState = Literal[
    "queued", "preparing", "moving", "gap", "paused", "aborting", "done", "aborted"
]
ENDED: frozenset[MigrationState] = frozenset({"done", "aborted"})


class Round(msgspec.Struct, frozen=True, array_like=True):
    """What of a migration takes effect at one step: an update whose step is not known yet.

    Attributes:
        workers, splits, moves, merges: as in ``Update``.
        interferes: whether some worker is source or target of more than one move.
        nbytes: about how much state it moves.
    """

    workers: int = 0
    splits: list[tuple[int, int]] = []
    moves: list[tuple[int, int, int, int]] = []
    merges: list[tuple[int, int]] = []
    interferes: bool = False
    nbytes: int = 0

    def at(self, step: int) -> Update:
        """Return the update that lets it take effect at a step."""
        return Update(step, self.workers, self.splits, self.moves, self.merges)

    @property
    def bins(self) -> int:
        """How many bins it moves."""
        return sum(count for _, _, count, _ in self.moves)


class Latency(msgspec.Struct, frozen=True, array_like=True):
    """How long steps took, in microseconds; all 0 when there were none."""

    steps: int = 0
    p50_us: int = 0
    p99_us: int = 0
    max_us: int = 0


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """When something was: after which step, at what reading of the driver's clock."""

    step: int
    clock_us: int


class Migration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A migration, and how far it is.

    Attributes:
        id: its number in the pipeline's life, from 1.
        what: what it comes to, in words, such as ``rescale from 2 to 4 workers``.
        by: who asked for it, and why: ``command 7``, ``api``, or a controller's policy and its reason.
        strategy: how its moves are divided into rounds, in words.
        state: where it stands.
        rounds: what is to be done, in order; None where that does not change (in a manifest).
        next: the round that comes next; those before it have taken effect.
        gap: whether it waits after a round until the backlog has drained.
        prepare: whether what moves is copied ahead.
        budget_bytes: how much a step may copy ahead.
        paused: whether it is to stop after the round at hand.
        began, ended: when.
        bins, nbytes: how much has moved.
        before, during, after: how long steps took.
        why: why it ended as it did, where that is not as planned.
    """

    id: int
    what: str
    by: str = ""
    strategy: str = ""
    state: MigrationState = "queued"
    rounds: list[Round] | None = None
    next: int = 0
    gap: bool = True
    prepare: bool = False
    budget_bytes: int = 0
    paused: bool = False
    began: Moment | None = None
    ended: Moment | None = None
    bins: int = 0
    nbytes: int = 0
    before: Latency = Latency()
    during: Latency = Latency()
    after: Latency = Latency()
    why: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ENDED

    @property
    def left(self) -> list[Round]:
        """The rounds that have not taken effect yet."""
        return (self.rounds or [])[self.next :]


def migrations_after(
    before: Sequence[Migration], changed: Sequence[Migration]
) -> Sequence[Migration]:
    """Return the migrations after a manifest, by id: the new ones, and what has become of the others.

    Of those that have ended only the newest are remembered, and none of their rounds.
    """
    if not changed:
        return before
    by_id = {migration.id: migration for migration in before}
    for migration in changed:
        rounds = migration.rounds
        if rounds is None and migration.id in by_id:
            rounds = by_id[migration.id].rounds
        if migration.is_over:
            rounds = []
        by_id[migration.id] = msgspec.structs.replace(migration, rounds=rounds)
    found = [by_id[id_] for id_ in sorted(by_id)]
    over = [migration.id for migration in found if migration.is_over]
    forgotten = set(over[:-RECENT_MIGRATIONS])
    return [migration for migration in found if migration.id not in forgotten]
