"""Migrations as the ledger keeps them: what is to move in which rounds, how far it is, how it went.

A migration's rounds are written once, when it begins; after that the manifests tell its progress. So a
crash in the middle goes on where it was, and a bin never moves twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Bin, LayoutWire, check_bin
from headrace.keyspace.updates import Update
from headrace.migration.loads import Prices
from headrace.migration.objective import Estimate
from headrace.migration.rounds import AllAtOnce, Batched, Fluid
from headrace.storage.bounds import Bins, Bits, Micros, StepNumber, Whole, WorkerNumber, Workers

#: How many migrations that have ended the head remembers.
RECENT_MIGRATIONS = 32

#: ``queued``: behind another one. ``preparing``: what the next rounds move is copied ahead. ``moving``: a
#: round is published, and takes effect. ``gap``: after a round, until the backlog has drained. ``paused``:
#: between rounds, until somebody resumes it. ``aborting``: what was moved goes back, in rounds.
MigrationState = Literal[
    "queued", "preparing", "moving", "gap", "paused", "aborting", "done", "aborted"
]
ENDED: frozenset[MigrationState] = frozenset({"done", "aborted"})

#: How many bins a text names.
_NAMED = 4


class RecordedRound(msgspec.Struct, frozen=True, array_like=True):
    """What of a migration takes effect at one step: an update whose step is not known yet.

    Attributes:
        workers, splits, moves, merges: as in ``Update``.
        interferes: whether some worker is source or target of more than one move.
        nbytes: about how much state it moves.
    """

    workers: Workers = 0
    splits: list[tuple[int, Bits]] = []
    moves: list[tuple[int, Bits, Bins, WorkerNumber]] = []
    merges: list[tuple[int, Bits]] = []
    interferes: bool = False
    nbytes: Whole = 0

    def at(self, step: int) -> Update:
        """Return the update that lets it take effect at a step."""
        return Update(step, self.workers, self.splits, self.moves, self.merges)

    @property
    def bins(self) -> int:
        """How many bins it moves."""
        return sum(count for _, _, count, _ in self.moves)


GoalKind = Literal["rescale", "move", "split", "merge", "drain_workers", "rebalance"]


class Goal(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a migration is to reach. The way there is planned when its turn has come.

    Attributes:
        kind: what.
        workers: ``rescale``: how many there are to be.
        bins: ``move`` and ``split``: the bins; ``merge``: the parents; ``rebalance``: in which of them,
            none for all. (first hash, depth) of each.
        to: ``move``: the worker that they go to.
        drained: ``drain_workers``: who is to own nothing.
        strategy: how moves are divided into rounds.
        prepare: whether what moves is copied ahead.
        objective_us: no step is to be expected to take longer; 0 for no such objective.
        prices: what bins count for where workers are made equal; None for what was measured best.
        groups: the pipeline's, by which texts name bins.
    """

    kind: GoalKind
    workers: Workers = 0
    bins: list[tuple[int, Bits]] = []
    to: WorkerNumber = -1
    drained: list[WorkerNumber] = []
    strategy: AllAtOnce | Fluid | Batched = Batched()
    prepare: bool = False
    objective_us: Micros = 0
    prices: Prices | None = None
    groups: list[str] = []

    def __post_init__(self) -> None:
        """Check what it names.

        Raises:
            PipelineError: when something of it is no bin.
        """
        for start, bits in self.bins:
            check_bin(start, bits)

    def __str__(self) -> str:
        groups = Groups(self.groups)
        bins = " ".join(groups.name(Bin(*of)) for of in self.bins[:_NAMED])
        if len(self.bins) > _NAMED:
            bins += f" and {len(self.bins) - _NAMED} more"
        match self.kind:
            case "rescale":
                return f"rescale to {self.workers} workers"
            case "move":
                return f"move {bins} to worker {self.to}"
            case "drain_workers":
                return f"drain workers {', '.join(map(str, self.drained))}"
            case kind:
                return f"{kind} {bins}".rstrip()


class Latency(msgspec.Struct, frozen=True, array_like=True):
    """How long steps took, in microseconds; all 0 when there were none."""

    steps: Whole = 0
    p50_us: Micros = 0
    p99_us: Micros = 0
    max_us: Micros = 0


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """When something was: after which step, at what reading of the driver's clock."""

    step: StepNumber
    clock_us: Micros


class RecordedMigration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A migration, and how far it is.

    Attributes:
        id: its number in the pipeline's life, from 1.
        what: what it comes to, in words, such as ``rescale from 2 to 4 workers``.
        by: who asked for it, and why: ``command 7``, ``api``, or a controller's policy and its reason.
        strategy: how its moves are divided into rounds, in words.
        state: where it stands.
        goal: what it is to reach; None for one that is not planned by us.
        estimate: what it was expected to come to when it was planned.
        rounds: what is to be done, in order; None where that does not change (in a manifest). Those of
            a migration that is aborted lead back.
        origin: the layout that it began with; None before that, and where it does not change.
        next: the round that comes next; those before it have taken effect.
        effective: the step from which the round that is published is in force; -1 for none.
        since: the step at which it came to stand where it stands.
        gap: whether it waits after a round until the backlog has drained.
        prepare: whether what moves is copied ahead.
        budget_bytes: how much a step may copy ahead.
        paused: whether it is to stop after the round at hand.
        began, ended: when.
        bins, nbytes: how much has moved.
        before, during, after: how long steps took. Of a driver that began meanwhile, and of the one
            before it, percentiles are the means by number of steps.
        more_before: whether more input used to wait, before it began, than a step takes.
        why: why it ended as it did, where that is not as planned.
    """

    id: Whole
    what: str
    by: str = ""
    strategy: str = ""
    state: MigrationState = "queued"
    goal: Goal | None = None
    estimate: Estimate | None = None
    rounds: list[RecordedRound] | None = None
    origin: LayoutWire | None = None
    next: Whole = 0
    effective: StepNumber = -1
    since: StepNumber = -1
    gap: bool = True
    prepare: bool = False
    budget_bytes: Whole = 0
    paused: bool = False
    began: Moment | None = None
    ended: Moment | None = None
    bins: int = 0
    nbytes: int = 0
    before: Latency = Latency()
    during: Latency = Latency()
    after: Latency = Latency()
    more_before: bool = False
    why: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in ENDED

    @property
    def left(self) -> list[RecordedRound]:
        """The rounds that have not taken effect yet."""
        return (self.rounds or [])[self.next :]

    @property
    def is_under_way(self) -> bool:
        """Whether it has begun and has not ended; there is at most one."""
        return not self.is_over and self.state != "queued"

    @property
    def wants_steps(self) -> bool:
        """Whether steps are to be made for it also when there is no input."""
        return self.is_under_way and self.state != "paused"


def under_way(migrations: Sequence[RecordedMigration]) -> RecordedMigration | None:
    """Return the migration that has begun and has not ended."""
    return next((one for one in migrations if one.is_under_way), None)


def migrations_after(
    before: Sequence[RecordedMigration], changed: Sequence[RecordedMigration]
) -> Sequence[RecordedMigration]:
    """Return the migrations after a manifest, by id: the new ones, and what has become of the others.

    Of those that have ended only the newest are remembered, and none of their rounds.
    """
    if not changed:
        return before
    by_id = {migration.id: migration for migration in before}
    for migration in changed:
        rounds, origin = migration.rounds, migration.origin
        known = by_id.get(migration.id)
        if known is not None:
            rounds = known.rounds if rounds is None else rounds
            origin = known.origin if origin is None else origin
        if migration.is_over:
            rounds, origin = [], None
        by_id[migration.id] = msgspec.structs.replace(migration, rounds=rounds, origin=origin)
    found = [by_id[id_] for id_ in sorted(by_id)]
    over = [migration.id for migration in found if migration.is_over]
    forgotten = set(over[:-RECENT_MIGRATIONS])
    return [migration for migration in found if migration.id not in forgotten]
