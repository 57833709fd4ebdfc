"""Moving state, as its owner sees it: what can be asked of a layout, and a handle on what becomes of it.

A job and the controls of a storage offer the same. Whoever asks, the driver plans it and carries
it out; a handle only looks at what the manifests say, and asks for more.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from headrace.coordinator.identity import groups_of
from headrace.coordinator.load.meter import measured_outside
from headrace.coordinator.migrations.goals import plan_goal
from headrace.coordinator.migrations.layout_state import course_of
from headrace.errors import ChangeRefused
from headrace.eventtime.timestamps import DurationLike, duration_micros
from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Bin
from headrace.keyspace.updates import Update
from headrace.ledger import migrations
from headrace.ledger.commands import Answer, Command, Kind
from headrace.ledger.head import Head
from headrace.ledger.measurements import Published
from headrace.ledger.migrations import Goal, Latency
from headrace.migration.loads import BY_STATE, PRICES, Prices
from headrace.migration.objective import Estimate
from headrace.migration.rounds import AllAtOnce, Batched, Fluid, batched

Strategy = AllAtOnce | Fluid | Batched
IfBusy = Literal["queue", "refuse"]
OnTimeout = Literal["commit", "rollback", "raise"]
#: What workers are to be equal in.
By = Literal["work", "state"]
PRICES_BY: dict[str, Prices] = {"work": PRICES, "state": BY_STATE}
#: A bin, or its name: its prefix, such as ``"0110/4"``, or that in its group, such as ``"clicks:0110/4"``.
#: A group's name alone stands for all its bins.
BinLike = str | Bin

#: How long a request waits for its answer.
_ANSWER_WITHIN_S = 60.0


class Progress(msgspec.Struct, frozen=True):
    """How far a migration is.

    Attributes:
        state: where it stands.
        rounds, of_rounds: how many rounds have taken place, and how many there are.
        bins, of_bins: how many bins have moved; of a migration that is aborted they go back.
        nbytes: how much state has moved, about.
        paused: whether it stops after the round at hand.
    """

    state: migrations.MigrationState
    rounds: int
    of_rounds: int
    bins: int
    of_bins: int
    nbytes: int
    paused: bool

    def __str__(self) -> str:
        rounds = f"round {min(self.rounds + 1, self.of_rounds)} of {self.of_rounds}"
        where = "" if self.state in ("queued", "done", "aborted") else f", {rounds}"
        return f"{self.state}{where}, {self.bins} of {self.of_bins} bins"


class Migration:
    """A migration: how far it is, and what can be asked of it. From any thread.

    Attributes:
        id: its number in the pipeline's life; 0 for one that is only planned.
    """

    def __init__(
        self, id: int, asks: MovesState, planned: migrations.RecordedMigration | None = None
    ) -> None:
        self.id = id
        self._asks = asks
        self._planned = planned

    def __repr__(self) -> str:
        return f"Migration({self.id}: {self.what}; {self.progress})"

    @property
    def facts(self) -> migrations.RecordedMigration:
        """All that the manifests say of it.

        Raises:
            ChangeRefused: when it ended so long ago that it is not remembered.
        """
        if self._planned is not None:
            return self._planned
        return fact_of(self._asks.current(), self.id)

    @property
    def what(self) -> str:
        """What it comes to, in words."""
        return self.facts.what

    @property
    def state(self) -> migrations.MigrationState:
        """Where it stands: ``queued``, ``preparing``, ``moving``, ``gap``, ``paused``, ``aborting``, or
        how it has ended: ``done`` or ``aborted``.
        """
        return self.facts.state

    @property
    def why(self) -> str:
        """Why it ended as it did, where that is not as planned."""
        return self.facts.why

    @property
    def estimate(self) -> Estimate | None:
        """What it was expected to come to; None while it is queued."""
        return self.facts.estimate

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return progress_of(self.facts)

    @property
    def before(self) -> Latency:
        """How long steps took before it."""
        return self.facts.before

    @property
    def during(self) -> Latency:
        """How long its steps took."""
        return self.facts.during

    @property
    def after(self) -> Latency:
        """How long the steps after it took; all 0 until there were some."""
        return self.facts.after

    def wait(
        self, timeout: DurationLike | None = None, *, on_timeout: OnTimeout = "raise"
    ) -> migrations.MigrationState:
        """Wait until it has ended; return how: ``done`` or ``aborted`` (:attr:`why` says why).

        Args:
            timeout: such as ``"5m"``; None waits for ever.
            on_timeout: ``commit`` moves what is left at once, whatever that costs; ``rollback`` takes back
                what has moved; both wait until that is so. ``raise`` leaves it as it is.

        Raises:
            ChangeRefused: after the timeout, or when the pipeline ends before.
        """
        deadline = None if timeout is None else time.monotonic() + duration_micros(timeout) / 1e6
        while not (facts := self.facts).is_over:
            if not self._asks.pass_time():
                raise ChangeRefused(
                    f"the pipeline ended while migration {self.id} was {facts.state}",
                    remedy="start it again: the migration goes on where it was",
                )
            if deadline is not None and time.monotonic() >= deadline:
                deadline = None
                self._in_time(on_timeout, facts)
        return facts.state

    def _in_time(self, on_timeout: OnTimeout, facts: migrations.RecordedMigration) -> None:
        if on_timeout == "raise":
            raise ChangeRefused(
                f"migration {self.id} is still {facts.state} ({progress_of(facts)})",
                remedy="wait for longer; or abort() it",
            )
        try:
            self.hasten() if on_timeout == "commit" else self.abort()
        except ChangeRefused:
            if not self.facts.is_over:
                raise

    def pause(self) -> None:
        """Let it stop after the round at hand, until :meth:`resume`.

        Raises:
            ChangeRefused: when it has ended, or goes back already; so do the others.
        """
        self._tell("pause_migration")

    def resume(self) -> None:
        """Let it go on."""
        self._tell("resume_migration")

    def abort(self) -> None:
        """Let all that has moved go back, round by round; what was not begun is dropped."""
        self._tell("abort_migration")

    def hasten(self) -> None:
        """Let all that is left move at once, without gaps and without being prepared."""
        self._tell("hasten_migration")

    def _tell(self, kind: Kind) -> None:
        self._asks.ask_for(Command(kind, migration=self.id))


class MovesState(ABC):
    """What can be asked of a layout; of a job, and of the controls of a storage."""

    @abstractmethod
    def current(self) -> Head:
        """Return the pipeline as of its newest step."""

    @property
    def groups(self) -> Groups:
        """The groups of computations whose state moves on its own."""
        return groups_of(self.current().identity)

    @abstractmethod
    def measurements(self) -> Published | None:
        """Return what was measured last of loads, rates and times, as data; None before that.

        It is written every so many seconds, so it may be a little old. Its ``measurements`` are what
        policies take.
        """

    @abstractmethod
    def pass_time(self) -> bool:
        """Let a little time pass; say whether something may happen yet."""

    @abstractmethod
    def answered(self, command: Command, within_s: float) -> Answer | None:
        """Ask for something (under a name of its own); return the answer, or None without one in time."""

    def rescale(
        self, workers: int, *, strategy: Strategy | None = None, prepare: bool = False,
        objective: DurationLike | None = None, if_busy: IfBusy = "queue", dry_run: bool = False,
    ) -> Migration:  # fmt: skip
        """Let another number of workers share the state, while the pipeline runs.

        About the least moves that makes workers equal: in how long their records take, where that was
        measured, or else in bytes of state. With fewer workers, those with the highest
        numbers go when they own nothing any more.

        Args:
            workers: how many there are to be.
            strategy: how moves are divided into rounds: ``headrace.all_at_once()``, ``fluid()``, or
                ``batched(n)``; by default ``batched()``, rounds in which each worker takes part once.
            prepare: copy what a round moves ahead, while its old owner works on it.
            objective: such as ``"250ms"``: rounds are as large as keep steps within it, in the
                place of the strategy's.
            if_busy: what to do while another migration is under way: wait for it, or be refused.
            dry_run: only plan it.

        Returns:
            The migration: its estimate, how far it is, :meth:`Migration.wait`.

        Raises:
            ChangeRefused: when it was refused, with the reason; nothing has changed then. (In a minute
                without an answer, too: then it may still be applied.)
        """
        goal = Goal("rescale", workers)
        return self._migrate(goal, strategy, prepare, objective, if_busy, dry_run)

    def move(
        self, bins: BinLike | Iterable[BinLike], worker: int, *, strategy: Strategy | None = None,
        prepare: bool = False, objective: DurationLike | None = None,
        if_busy: IfBusy = "queue", dry_run: bool = False,
    ) -> Migration:  # fmt: skip
        """Let bins go to a worker. A prefix of several bins stands for all of them.

        Args:
            bins: by prefix, such as ``"0110/4"``; in a group ``"clicks:0110/4"``, or ``"clicks"`` for
                all of it.
            worker: who is to own them.
            strategy, prepare, objective, if_busy, dry_run: as with :meth:`rescale`.

        Raises:
            ChangeRefused: as with :meth:`rescale`.
        """
        goal = Goal("move", bins=self.groups.prefixes(bins), to=worker)
        return self._migrate(goal, strategy, prepare, objective, if_busy, dry_run)

    def split(
        self, bins: BinLike | Iterable[BinLike], *, if_busy: IfBusy = "queue", dry_run: bool = False
    ) -> Migration:
        """Let bins become two each. Moves nothing, and rewrites nothing.

        Raises:
            ChangeRefused: as with :meth:`rescale`.
        """
        goal = Goal("split", bins=self.groups.prefixes(bins))
        return self._migrate(goal, None, False, None, if_busy, dry_run)

    def merge(
        self, parents: BinLike | Iterable[BinLike], *, if_busy: IfBusy = "queue",
        dry_run: bool = False,
    ) -> Migration:  # fmt: skip
        """Let all bins of a prefix become one, for each prefix; with who has the first of them.

        Raises:
            ChangeRefused: as with :meth:`rescale`.
        """
        goal = Goal("merge", bins=self.groups.prefixes(parents))
        return self._migrate(goal, None, False, None, if_busy, dry_run)

    def drain_workers(
        self, workers: int | Sequence[int], *, strategy: Strategy | None = None,
        prepare: bool = False, objective: DurationLike | None = None,
        if_busy: IfBusy = "queue", dry_run: bool = False,
    ) -> Migration:  # fmt: skip
        """Let workers own nothing, so that what they run on can be taken away. The others share it.

        Raises:
            ChangeRefused: as with :meth:`rescale`.
        """
        drained = [workers] if isinstance(workers, int) else list(workers)
        goal = Goal("drain_workers", drained=drained)
        return self._migrate(goal, strategy, prepare, objective, if_busy, dry_run)

    def rebalance(
        self, *, by: By | None = None, strategy: Strategy | None = None, prepare: bool = False,
        objective: DurationLike | None = None, if_busy: IfBusy = "queue", dry_run: bool = False,
        group: str | None = None,
    ) -> Migration:  # fmt: skip
        """Let workers be more equal, if that is worth what it costs.

        Args:
            by: ``work``, how long their records take; or ``state``, how many bytes they keep. By default
                work, or state while too little was measured of work.
            strategy, prepare, objective, if_busy, dry_run: as with :meth:`rescale`.
            group: only this group's bins move, and only these count.

        Raises:
            ChangeRefused: as with :meth:`rescale`.
            PipelineError: when there is no such group.
        """
        only = [] if group is None else self.groups.prefixes(self.groups.group(group).bin)
        goal = Goal("rebalance", bins=only, prices=None if by is None else PRICES_BY[by])
        return self._migrate(goal, strategy, prepare, objective, if_busy, dry_run)

    def publish(self, update: Update, *, by: str = "") -> Answer:
        """Publish a configuration update for exactly the step that it names (Megaphone §3.3).

        For controllers that plan for themselves. It is applied at that step or not at all.

        Raises:
            ChangeRefused: when that step is planned already, or the update does not fit.
        """
        return self.ask_for(Command("update", update=update, by=by))

    @property
    def updates(self) -> list[Update]:
        """The configuration updates that are published and not in force yet, by step.

        Rounds of migrations are among them. See :meth:`withdraw`.
        """
        head = self.current()
        return [update for update in head.updates if update.step > head.step]

    def withdraw(self, step: int, *, by: str = "") -> Answer:
        """Take back the configuration update that is published for a step and not in force yet.

        Args:
            step: the step from which it would be in force.
            by: who asks, for people.

        Raises:
            ChangeRefused: when there is none, when it is a round of a migration (abort that), or when
                a later one rests on it.
        """
        return self.ask_for(Command("withdraw_update", at_step=step, by=by))

    @property
    def migrations(self) -> list[Migration]:
        """The migrations that are queued or under way, and the newest that have ended."""
        return [Migration(one.id, self) for one in self.current().migrations]

    def migration(self, id: int) -> Migration:
        """Return a migration by its number.

        Raises:
            ChangeRefused: when there is none, or it is not remembered any more.
        """
        fact_of(self.current(), id)
        return Migration(id, self)

    def ask_for(self, command: Command) -> Answer:
        """Ask for something, and wait for the answer.

        Raises:
            ChangeRefused: when it was refused, or not answered within a minute.
        """
        answer = self.answered(command, _ANSWER_WITHIN_S)
        if answer is None:
            raise ChangeRefused(
                f"nobody has answered yet: {command.text}",
                remedy="it is applied when the pipeline runs, or goes on (headrace status)",
            )
        if not answer.applied:
            raise ChangeRefused(f"{command.text}: {answer.why}")
        return answer

    def _migrate(
        self, goal: Goal, strategy: Strategy | None, prepare: bool,
        objective: DurationLike | None, if_busy: IfBusy, dry_run: bool,
    ) -> Migration:  # fmt: skip
        objective_us = 0 if objective is None else duration_micros(objective)
        whole = msgspec.structs.replace(
            goal, strategy=strategy or batched(), prepare=prepare, objective_us=objective_us,
            groups=list(self.groups.names),
        )  # fmt: skip
        if dry_run:
            return Migration(0, self, planned(self.current(), whole, self.measurements()))
        answer = self.ask_for(Command("migrate", goal=whole, if_busy=if_busy))
        return Migration(answer.migration, self)


def planned(head: Head, goal: Goal, seen: Published | None = None) -> migrations.RecordedMigration:
    """Return a migration as it would be planned, from the layout in force. Changes nothing.

    Args:
        head: the pipeline as of its newest step.
        goal: what is to be reached.
        seen: what was measured last.

    Raises:
        HeadraceError: when it would be refused.
    """
    layout = course_of(head, 0).layout
    measured = measured_outside(head, layout, seen)
    if not measured.steps.steps:
        measured = msgspec.structs.replace(measured, steps=_steps(head))
    found = plan_goal(layout, goal, measured)
    return migrations.RecordedMigration(
        0, str(goal), goal=goal, rounds=found.rounds, estimate=found.estimate, gap=found.gap
    )


def _steps(head: Head) -> Latency:
    """Return how long steps took the last time that somebody looked."""
    known = [one.after if one.after.steps else one.before for one in head.migrations]
    return next((one for one in reversed(known) if one.steps), Latency())


def fact_of(head: Head, id: int) -> migrations.RecordedMigration:
    """Return what a head says of a migration.

    Raises:
        ChangeRefused: when it says nothing.
    """
    for one in head.migrations:
        if one.id == id:
            return one
    known = ", ".join(str(one.id) for one in head.migrations)
    raise ChangeRefused(
        f"there is no migration {id}, or it is not remembered any more",
        remedy=f"known are: {known or 'none'}",
    )


def progress_of(facts: migrations.RecordedMigration) -> Progress:
    """Return how far a migration is."""
    estimate = facts.estimate
    total = len(facts.rounds or []) or (0 if estimate is None else estimate.rounds)
    done = total if facts.state == "done" else facts.next
    bins = 0 if estimate is None else estimate.bins
    return Progress(
        facts.state, done, total, facts.bins, bins, facts.nbytes, facts.paused
    )  # fmt: skip
