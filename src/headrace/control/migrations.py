"""Moving state: the public methods, and :class:`Migration`, a handle on one migration.

A job, a :class:`headrace.control.Control` and a test harness have the same methods. In each case
the driver plans and carries out a migration. A handle only reads the manifests, and sends commands.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec

from headrace.coordinator.load.meter import measured_outside
from headrace.coordinator.migrations.goals import plan_goal
from headrace.coordinator.migrations.layout_state import layout_state_of
from headrace.errors import ChangeRefused
from headrace.eventtime.durations import DurationLike, TimeoutLike, duration_micros, timeout_seconds
from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Bin
from headrace.keyspace.updates import Update
from headrace.ledger import migrations
from headrace.ledger.commands import Answer, Command, Kind
from headrace.ledger.head import Head
from headrace.ledger.measurements import Published
from headrace.ledger.migrations import Goal, Latency
from headrace.ledger.stored_schema import groups_of
from headrace.migration.loads import BY_STATE, PRICES, Prices
from headrace.migration.objective import Estimate
from headrace.migration.rounds import AllAtOnce, Batched, Fluid, batched
from headrace.migration.sharding import Sharding

Strategy = AllAtOnce | Fluid | Batched
IfBusy = Literal["queue", "refuse"]
OnTimeout = Literal["commit", "rollback", "raise"]
#: The load by which workers are balanced.
By = Literal["work", "state"]
PRICES_BY: dict[str, Prices] = {"work": PRICES, "state": BY_STATE}
#: A bin, or the name of one: its prefix, such as ``"0110/4"``, or the prefix within its group, such
#: as ``"clicks:0110/4"``. A group's name alone stands for all its bins.
BinLike = str | Bin

#: Seconds to wait for the answer to a command.
_ANSWER_WITHIN_S = 60.0


class Progress(msgspec.Struct, frozen=True):
    """The progress of a migration.

    Attributes:
        state: its state; see :attr:`Migration.state`.
        rounds, of_rounds: number of rounds that have taken effect, and of all rounds.
        bins, of_bins: number of bins that have moved, and of all bins to move. In an aborted
            migration the first number goes back down.
        nbytes: about how many bytes of state have moved.
        paused: whether the migration stops after the current round.
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
    """A handle on a migration: its progress, and commands to it. Safe to use from any thread.

    Attributes:
        id: its number, unique within the pipeline; 0 for a migration that is only planned.

    Example::

        with hr.testing.drive(p, workers=2) as t:
            move = t.rescale(3)
            move.wait()
            print(move.what, move.state, move.progress)
    """

    def __init__(
        self, id: int, moves: MovesState, planned: migrations.RecordedMigration | None = None
    ) -> None:
        self.id = id
        self._moves = moves
        self._planned = planned

    def __repr__(self) -> str:
        return f"Migration({self.id}: {self.what}; {self.progress})"

    @property
    def facts(self) -> migrations.RecordedMigration:
        """The migration as recorded in the manifests.

        Raises:
            ChangeRefused: if it ended so long ago that it is forgotten.
        """
        if self._planned is not None:
            return self._planned
        return fact_of(self._moves.current(), self.id)

    @property
    def what(self) -> str:
        """What the migration does, in words."""
        return self.facts.what

    @property
    def state(self) -> migrations.MigrationState:
        """The state of the migration.

        ``queued``, ``preparing``, ``moving``, ``gap``, ``paused`` or ``aborting``; once it has
        ended, ``done`` or ``aborted``.
        """
        return self.facts.state

    @property
    def why(self) -> str:
        """Why it ended otherwise than planned; empty if it did not."""
        return self.facts.why

    @property
    def estimate(self) -> Estimate | None:
        """The estimate of its cost; None while it is queued."""
        return self.facts.estimate

    @property
    def progress(self) -> Progress:
        """Its progress so far."""
        return progress_of(self.facts)

    @property
    def before(self) -> Latency:
        """How long steps took before it started."""
        return self.facts.before

    @property
    def during(self) -> Latency:
        """How long its own steps took."""
        return self.facts.during

    @property
    def after(self) -> Latency:
        """How long steps took after it ended; all 0 until there are any."""
        return self.facts.after

    def wait(
        self, timeout: TimeoutLike | None = None, *, on_timeout: OnTimeout = "raise"
    ) -> migrations.MigrationState:
        """Wait until the migration has ended. Return ``done`` or ``aborted``.

        :attr:`why` has the reason.

        Args:
            timeout: in seconds, or such as ``"5m"``; None waits without limit.
            on_timeout: what to do after the timeout. ``commit`` moves the rest at once, whatever it
                costs. ``rollback`` moves everything back. Both wait until that is done. ``raise``
                raises an error and leaves the migration as it is.

        Raises:
            ChangeRefused: after the timeout, or if the pipeline ends earlier.
            HeadraceError: what made the pipeline fail, if it runs in this process.
        """
        deadline = (
            None if timeout is None else time.monotonic() + timeout_seconds(timeout, "timeout")
        )
        while not (facts := self.facts).is_over:
            if not self._moves.pass_time():
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
        """Pause after the current round, until :meth:`resume`.

        Raises:
            ChangeRefused: if the migration has ended or is being aborted. So do the other commands.
        """
        self._send("pause_migration")

    def resume(self) -> None:
        """Resume after a pause."""
        self._send("resume_migration")

    def abort(self) -> None:
        """Move back all that has moved, round by round. What was not started is dropped."""
        self._send("abort_migration")

    def hasten(self) -> None:
        """Move all the rest at once, without gaps and without reading it ahead."""
        self._send("hasten_migration")

    def _send(self, kind: Kind) -> None:
        self._moves.ask_for(Command(kind, migration=self.id))


class MovesState(ABC):
    """The methods that move state: of a job, of a control, and of a test harness."""

    #: How state moves where nobody says how.
    _usual_strategy: ClassVar[Strategy] = batched()
    #: Whether it is read ahead where nobody says so; None to have the estimates decide.
    _usually_prepared: ClassVar[bool | None] = None

    @abstractmethod
    def current(self) -> Head:
        """Return the pipeline as of its newest step."""

    @property
    def groups(self) -> Groups:
        """The groups of computations whose state moves together."""
        return groups_of(self.current().stored_schema)

    @abstractmethod
    def measurements(self) -> Published | None:
        """Return the latest measurements of loads, rates and times; None before the first.

        They are written every ``How.every`` (10 s by default), so they may be a little old. Their
        ``measurements`` are the input of policies.
        """

    @abstractmethod
    def pass_time(self) -> bool:
        """Let a little time pass. Return whether the pipeline may still make progress."""

    @abstractmethod
    def answered(self, command: Command, within_s: float) -> Answer | None:
        """Send a command, under its own nonce. Return its answer, or None if none came in time."""

    def rescale(
        self,
        workers: int,
        *,
        strategy: Strategy | None = None,
        prepare: bool | None = None,
        objective: DurationLike | None = None,
        if_busy: IfBusy = "queue",
        dry_run: bool = False,
        layout: Sharding | None = None,
    ) -> Migration:
        """Change the number of workers that share the state, while the pipeline runs.

        It makes about the fewest moves that leave workers with equal loads. The load is the time
        that records take, if it was measured, or else the bytes of state. With fewer workers, those
        with the highest numbers go, once they own nothing.

        Args:
            workers: the new number of workers.
            strategy: how moves are divided into rounds: ``headrace.all_at_once()``, ``fluid()``, or
                ``batched(n)``; by default ``batched()``, in which each worker takes part once in a
                round.
            prepare: let new owners read the bins ahead, while the old owners still work on them. By
                default they do if that is expected to make the longest step shorter.
            objective: a time such as ``"250ms"``. Rounds are then as large as keeps steps within
                it, and ``strategy`` only says whether there are gaps.
            if_busy: while another migration is under way, wait for it (``queue``) or be refused.
            dry_run: only plan the migration.
            layout: the way of sharding for this rescale, ``headrace.fixed()``, ``dynamic(0.1)`` or
                ``contiguous()``; by default the pipeline's, which ``headrace.run(layout=)`` sets.

        Returns:
            The migration: its estimate, its progress, and :meth:`Migration.wait`.

        Raises:
            ChangeRefused: if it was refused, with the reason. Then nothing has changed. Also after
                a minute without an answer; then it may still be applied.
        """
        goal = Goal("rescale", workers, layout=layout)
        return self._migrate(goal, strategy, prepare, objective, if_busy, dry_run)

    def move(
        self,
        bins: BinLike | Iterable[BinLike],
        worker: int,
        *,
        strategy: Strategy | None = None,
        prepare: bool | None = None,
        objective: DurationLike | None = None,
        if_busy: IfBusy = "queue",
        dry_run: bool = False,
    ) -> Migration:
        """Move bins to a worker. A prefix of several bins stands for all of them.

        Args:
            bins: prefixes, such as ``"0110/4"``. In a group: ``"clicks:0110/4"``, or ``"clicks"``
                for all of its bins.
            worker: the new owner.
            strategy, prepare, objective, if_busy, dry_run: as for :meth:`rescale`.

        Raises:
            ChangeRefused: as for :meth:`rescale`.
        """
        goal = Goal("move", bins=self.groups.prefixes(bins), to=worker)
        return self._migrate(goal, strategy, prepare, objective, if_busy, dry_run)

    def split(
        self, bins: BinLike | Iterable[BinLike], *, if_busy: IfBusy = "queue", dry_run: bool = False
    ) -> Migration:
        """Split each bin in two. This moves nothing and rewrites nothing.

        Raises:
            ChangeRefused: as for :meth:`rescale`.
        """
        goal = Goal("split", bins=self.groups.prefixes(bins))
        return self._migrate(goal, None, False, None, if_busy, dry_run)

    def merge(
        self,
        parents: BinLike | Iterable[BinLike],
        *,
        if_busy: IfBusy = "queue",
        dry_run: bool = False,
    ) -> Migration:
        """Merge all bins of each prefix into one. It belongs to the owner of the first of them.

        Raises:
            ChangeRefused: as for :meth:`rescale`.
        """
        goal = Goal("merge", bins=self.groups.prefixes(parents))
        return self._migrate(goal, None, False, None, if_busy, dry_run)

    def drain_workers(
        self,
        workers: int | Sequence[int],
        *,
        strategy: Strategy | None = None,
        prepare: bool | None = None,
        objective: DurationLike | None = None,
        if_busy: IfBusy = "queue",
        dry_run: bool = False,
    ) -> Migration:
        """Move all bins away from some workers, so that their machines can be taken away.

        The other workers share these bins. The drained workers get nothing from later migrations
        and policies, until :meth:`undrain_workers`, or until there are so few workers that they are
        gone. An aborted migration drains none.

        Raises:
            ChangeRefused: as for :meth:`rescale`.
        """
        drained = [workers] if isinstance(workers, int) else list(workers)
        goal = Goal("drain_workers", drained=drained)
        return self._migrate(goal, strategy, prepare, objective, if_busy, dry_run)

    def undrain_workers(self, workers: int | Sequence[int]) -> Answer:
        """Let drained workers own bins again. They get some with the next rebalance or rescale.

        Raises:
            ChangeRefused: if one of them is not drained.
        """
        chosen = [workers] if isinstance(workers, int) else list(workers)
        return self.ask_for(Command("undrain_workers", workers=chosen))

    def assign_partitions(self, injector: str, partitions: Mapping[str, int | None]) -> Answer:
        """Say which worker's task reads a partition of an injector, in steps that tasks read.

        By default splits are dealt out in turn. Drained workers read nothing. Results do not depend
        on it: it is for input that is nearer to one host than to others. Small steps are read by
        the driver.

        Args:
            injector: the injector.
            partitions: by partition, the worker; None to deal it out in turn again. A source
                without partitions has one, ``""``.

        Raises:
            ChangeRefused: if there is no such injector or worker.
        """
        check_injector(self.current(), injector)
        readers = {name: -1 if of is None else of for name, of in partitions.items()}
        command = Command("assign_partitions", names=[injector], partitions=readers)
        return self.ask_for(command)

    def rebalance(
        self,
        *,
        by: By | None = None,
        strategy: Strategy | None = None,
        prepare: bool | None = None,
        objective: DurationLike | None = None,
        if_busy: IfBusy = "queue",
        dry_run: bool = False,
        group: str | None = None,
    ) -> Migration:
        """Even out the loads of workers, if that is worth its cost.

        Args:
            by: ``work``, the time that records take, or ``state``, the bytes that are kept. The
                default is ``work``, or ``state`` until enough work was measured.
            strategy, prepare, objective, if_busy, dry_run: as for :meth:`rescale`.
            group: move the bins of this group only, and count only their loads.

        Raises:
            ChangeRefused: as for :meth:`rescale`.
            PipelineError: if the pipeline has no such group.
        """
        only = [] if group is None else self.groups.prefixes(self.groups.group(group).bin)
        goal = Goal("rebalance", bins=only, prices=None if by is None else PRICES_BY[by])
        return self._migrate(goal, strategy, prepare, objective, if_busy, dry_run)

    def publish(self, update: Update, *, by: str = "") -> Answer:
        """Publish a configuration update for exactly the step that it names (Megaphone §3.3).

        This is for controllers that do their own planning. The update is applied at that step or
        not at all.

        Raises:
            ChangeRefused: if that step is planned already, or the update does not fit.
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
        """Withdraw the configuration update that is published for a step and not in force yet.

        Args:
            step: the step from which the update would be in force.
            by: author of the request, for people.

        Raises:
            ChangeRefused: if no update is published for that step, if it is a round of a migration
                (abort that instead), or if a later update depends on it.
        """
        return self.ask_for(Command("withdraw_update", at_step=step, by=by))

    @property
    def migrations(self) -> list[Migration]:
        """The migrations that are queued or under way, and the newest that have ended."""
        return [Migration(one.id, self) for one in self.current().migrations]

    def migration(self, id: int) -> Migration:
        """Return the migration with a number.

        Raises:
            ChangeRefused: if it does not exist, or is forgotten.
        """
        fact_of(self.current(), id)
        return Migration(id, self)

    def ask_for(self, command: Command) -> Answer:
        """Send a command and wait for its answer.

        Raises:
            ChangeRefused: if the command was refused, or not answered within a minute.
        """
        answer = self.answered(command, _ANSWER_WITHIN_S)
        if answer is None:
            raise ChangeRefused(
                f"not answered yet: {command.text}",
                remedy="it is applied when the pipeline runs, or goes on (headrace status)",
            )
        if not answer.applied:
            raise ChangeRefused(f"{command.text}: {answer.why}")
        return answer

    def _migrate(
        self,
        goal: Goal,
        strategy: Strategy | None,
        prepare: bool | None,
        objective: DurationLike | None,
        if_busy: IfBusy,
        dry_run: bool,
    ) -> Migration:
        objective_us = 0 if objective is None else duration_micros(objective, "objective")
        whole = msgspec.structs.replace(
            goal,
            strategy=strategy or self._usual_strategy,
            prepare=self._usually_prepared if prepare is None else prepare,
            objective_us=objective_us,
            groups=list(self.groups.names),
        )
        if dry_run:
            return Migration(0, self, planned(self.current(), whole, self.measurements()))
        answer = self.ask_for(Command("migrate", goal=whole, if_busy=if_busy))
        return Migration(answer.migration, self)


def check_injector(head: Head, name: str) -> None:
    """Check that a pipeline has an injector.

    Raises:
        ChangeRefused: if it has none of that name.
    """
    known = head.stored_schema.get("injectors", {})
    if name not in known:
        raise ChangeRefused(
            f"there is no injector {name!r}", remedy=f"there are: {', '.join(known) or 'none'}"
        )


def planned(head: Head, goal: Goal, seen: Published | None = None) -> migrations.RecordedMigration:
    """Return a migration as it would be planned from the layout in force. Changes nothing.

    Args:
        head: the pipeline as of its newest step.
        goal: what the migration is to reach.
        seen: the latest measurements.

    Raises:
        HeadraceError: if the migration would be refused.
    """
    layout_state = layout_state_of(head, 0)
    layout = layout_state.layout
    measured = measured_outside(head, layout, seen)
    if not measured.steps.steps:
        measured = msgspec.structs.replace(measured, steps=_steps(head))
    found = plan_goal(layout, goal, measured, layout_state.rules)
    return migrations.RecordedMigration(
        0, str(goal), goal=goal, rounds=found.rounds, estimate=found.estimate, gap=found.gap
    )


def _steps(head: Head) -> Latency:
    """Return how long steps took according to the newest migration that knows."""
    known = [one.after if one.after.steps else one.before for one in head.migrations]
    return next((one for one in reversed(known) if one.steps), Latency())


def fact_of(head: Head, id: int) -> migrations.RecordedMigration:
    """Return the record of a migration in a head.

    Raises:
        ChangeRefused: if the head has none.
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
    """Return the progress of a migration."""
    estimate = facts.estimate
    total = len(facts.rounds or []) or (0 if estimate is None else estimate.rounds)
    done = total if facts.state == "done" else facts.next
    bins = 0 if estimate is None else estimate.bins
    return Progress(facts.state, done, total, facts.bins, bins, facts.nbytes, facts.paused)
