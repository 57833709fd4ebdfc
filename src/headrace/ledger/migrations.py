"""Migrations as the ledger records them: their rounds, their progress, and their outcome.

The rounds of a migration are written once, when it starts. After that the manifests record its
progress. So a migration goes on after a crash where it was, and no bin moves twice.
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
from headrace.migration.sharding import Sharding
from headrace.storage.bounds import Bins, Bits, Micros, StepNumber, Whole, WorkerNumber, Workers

#: How many of the newest migrations that have ended the head keeps.
RECENT_MIGRATIONS = 32

#: ``queued``: behind another migration. ``preparing``: the new owners read ahead what the next
#: rounds move. ``moving``: a round is published and takes effect. ``gap``: after a round, until the
#: backlog has drained. ``paused``: between rounds, until a command resumes it. ``aborting``: what
#: has moved goes back, in rounds.
MigrationState = Literal[
    "queued", "preparing", "moving", "gap", "paused", "aborting", "done", "aborted"
]
ENDED: frozenset[MigrationState] = frozenset({"done", "aborted"})

#: How many bins a text names.
_NAMED = 4


class RecordedRound(msgspec.Struct, frozen=True, array_like=True):
    """One round of a migration: an update whose step is not known yet.

    Attributes:
        workers, splits, moves, merges: as in ``Update``.
        interferes: whether a worker is source or target of more than one move.
        nbytes: approximate bytes of state that it moves.
        most_bins, most_bytes: what the worker opens that has most to open.
    """

    workers: Workers = 0
    splits: list[tuple[int, Bits]] = []
    moves: list[tuple[int, Bits, Bins, WorkerNumber]] = []
    merges: list[tuple[int, Bits]] = []
    interferes: bool = False
    nbytes: Whole = 0
    most_bins: Whole = 0
    most_bytes: Whole = 0

    def at(self, step: int) -> Update:
        """Return the update with which the round takes effect at a step."""
        return Update(step, self.workers, self.splits, self.moves, self.merges)

    @property
    def bins(self) -> int:
        """How many bins it moves."""
        return sum(count for _, _, count, _ in self.moves)


GoalKind = Literal["rescale", "move", "split", "merge", "drain_workers", "rebalance"]


class Goal(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a migration is to reach. Its rounds are planned when its turn has come.

    Attributes:
        kind: the kind of goal.
        workers: ``rescale``: the number of workers.
        bins: (first hash, depth) of bins. ``move`` and ``split``: the bins. ``merge``: the parents.
            ``rebalance``: the bins within which to rebalance; none for all.
        to: ``move``: the worker that they move to.
        drained: ``drain_workers``: the workers that all bins are moved away from.
        strategy: how moves are divided into rounds.
        prepare: whether the new owners read ahead what moves, and rounds wait for that; None for
            whatever is better by the estimate.
        objective_us: the longest time that any step is expected to take; 0 for no such objective.
        layout: ``rescale``: the way of sharding; None for the pipeline's.
        prices: the weights of a bin's loads when workers are made equal; None for the defaults.
        groups: the pipeline's groups, by which texts name bins.
    """

    kind: GoalKind
    workers: Workers = 0
    bins: list[tuple[int, Bits]] = []
    to: WorkerNumber = -1
    drained: list[WorkerNumber] = []
    strategy: AllAtOnce | Fluid | Batched = Batched()
    prepare: bool | None = False
    objective_us: Micros = 0
    prices: Prices | None = None
    layout: Sharding | None = None
    groups: list[str] = []

    def __post_init__(self) -> None:
        """Check the bins.

        Raises:
            PipelineError: when an entry does not denote a bin.
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
                how = "" if self.layout is None else f", {self.layout}"
                return f"rescale to {self.workers} workers{how}"
            case "move":
                return f"move {bins} to worker {self.to}"
            case "drain_workers":
                return f"drain workers {', '.join(map(str, self.drained))}"
            case kind:
                return f"{kind} {bins}".rstrip()


class Latency(msgspec.Struct, frozen=True, array_like=True):
    """How long steps took, in microseconds. All values are 0 if there were no steps."""

    steps: Whole = 0
    p50_us: Micros = 0
    p99_us: Micros = 0
    max_us: Micros = 0


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """A point in time: a step, and a reading of the driver's clock."""

    step: StepNumber
    clock_us: Micros


class RecordedMigration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A migration and its progress.

    Attributes:
        id: its number in the pipeline's life, from 1.
        what: the migration in words, such as ``rescale from 2 to 4 workers``.
        by: who asked for it, and why: ``command 7``, ``api``, or a policy and its reason.
        strategy: how its moves are divided into rounds, in words.
        state: the state that it is in.
        goal: what it is to reach; None if Headrace did not plan it.
        estimate: what it was expected to cost when it was planned.
        rounds: its rounds in order; None in a manifest for no change. The rounds of a migration
            that is being aborted lead back.
        origin: the layout from which it started; None before it starts, and for no change.
        next: the index of the next round. Earlier rounds have taken effect.
        effective: the step at which the published round takes effect; -1 for none.
        since: the step at which it entered its state.
        gap: whether it waits after each round until the backlog has drained.
        prepare: whether the new owners read ahead what moves, and rounds wait for that. While it
            is queued, whether they may.
        budget_bytes: how many bytes a step may read ahead.
        paused: whether it is to stop after the current round.
        began, ended: when it started and ended.
        bins, nbytes: how many bins and bytes have moved.
        before, during, after: how long steps took. If the driver changed meanwhile, a percentile is
            the mean of those of the two drivers, weighted by their numbers of steps.
        more_before: whether, before it started, more input usually waited than a step takes.
        why: the reason for its outcome, if it did not end as planned.
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
        """Whether it has ended."""
        return self.state in ENDED

    @property
    def left(self) -> list[RecordedRound]:
        """The rounds that have not taken effect yet."""
        return (self.rounds or [])[self.next :]

    @property
    def is_under_way(self) -> bool:
        """Whether it has started and has not ended. At most one migration is under way."""
        return not self.is_over and self.state != "queued"

    @property
    def wants_steps(self) -> bool:
        """Whether steps are to run for it even when there is no input."""
        return self.is_under_way and self.state != "paused"


def under_way(migrations: Sequence[RecordedMigration]) -> RecordedMigration | None:
    """Return the migration that has started and not ended, or None."""
    return next((one for one in migrations if one.is_under_way), None)


def migrations_after(
    before: Sequence[RecordedMigration], changed: Sequence[RecordedMigration]
) -> Sequence[RecordedMigration]:
    """Return the migrations after a manifest, by id: new ones added, changed ones replaced.

    Of the migrations that have ended, only the newest are kept, without their rounds.
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
