"""A query of NEXMark that runs until its input has ended, in one life after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.control.migrations import Strategy
from headrace.driver.driver import Driver, Settings
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.migrations import Goal
from headrace.nexmark.queries import module_of
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import Timeline
from headrace.protocol.step_summary import Listener
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from headrace.storage.base import Store
from tests.support.faults import FaultStore, SimulatedCrash, T
from tests.unit.nexmark.oracle import Oracle, difference, last_of


class Ends(NamedTuple):
    """When a life ends.

    Attributes:
        after: after a step of which this is so,
        operations: when so many operations of the storage have been done since, by whatever thread.
    """

    after: Callable[[hr.StepSummary], bool]
    operations: int = 0


def at(*states: str, operations: int = 0) -> Ends:
    """Let a life end after a step in which the migration is so far."""
    return Ends(
        lambda summary: any(one.state in states for one in summary.head.migrations), operations
    )


def after(step: int, operations: int = 0) -> Ends:
    """Let a life end after a step with this number, or a later one."""
    return Ends(lambda summary: summary.step >= step, operations)


#: When a life ends, while state moves; and where none does. Each names all that its life may see first, and
#: none waits for what may come with the last step alone. Some end as a step has been committed, some in the
#: midst of what the next one does.
CRASHES = [
    at("preparing", "moving"),
    at("moving", "done", operations=2),
    at("moving", "done", operations=3),
]
CRASHES_OF_ONE = [after(2), after(5, operations=1), after(9, operations=3)]


class Moves(msgspec.Struct, frozen=True):
    """How state moves while a query runs.

    Attributes:
        strategy, prepare: of the migrations. Without gaps: how many steps one lasts, the machine decides,
            and the input may end meanwhile.
        back: whether it moves back when it has moved.
    """

    strategy: Strategy = hr.batched(4, gap=False)
    prepare: bool = True
    back: bool = False


PREPARED = Moves()
AT_ONCE_AND_BACK = Moves(hr.all_at_once(), prepare=False, back=True)


class Dying(FaultStore):
    """Ends the process that uses it when so many more operations were done; any thread that comes after."""

    left: int | None = None

    def _do(self, work: Callable[[], T], *, writes: bool = False) -> T:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise SimulatedCrash
        return super()._do(work, writes=writes)


class Run:
    """A query that runs until its input has ended, in one life after another.

    Args:
        query: such as ``q5``.
        timeline: what it is asked of.
        workers: how many there are.
        step: how many events a step takes at most.
        crashes: when a life ends; then the next one begins.
        moves: how half of what the first worker has moves to the last, in the middle, if it does.
        store: where it is kept; in memory, unless it is said.
        runner: what it runs on, if it does not die; this process, unless it is said.
    """

    def __init__(
        self,
        query: str,
        timeline: Timeline,
        workers: int,
        step: int,
        *,
        crashes: Sequence[Ends] = (),
        moves: Moves | None = None,
        store: Store | None = None,
        runner: Runner | None = None,
    ) -> None:
        self.query: Any = module_of(query)
        self._timeline, self._workers = timeline, workers
        self._settings = Settings(limit=hr.Limit(step, 1 << 40))
        self._crashes, self._moves = crashes, moves
        self._store = store or MemoryStore()
        self._runner = runner
        self._by_step: dict[int, pa.Table] = {}
        assert timeline.events is not None
        self._middle = timeline.events // step // 2
        self._asked = 0
        self._moving: list[Any] = []

    def answers(self) -> pa.Table:
        """Return all that it has answered, or the last of it where it answers again and again."""
        for ends in self._crashes:
            store = Dying(self._store, 0)

            def strike(summary: hr.StepSummary, store: Dying = store, ends: Ends = ends) -> None:
                if store.left is None and ends.after(summary):
                    store.left = ends.operations

            with pytest.raises(SimulatedCrash):
                self._live(store, strike)
        self._live(self._store)
        found = pa.concat_tables([rows for _, rows in sorted(self._by_step.items())])
        return last_of(found, self.query.LATEST) if hasattr(self.query, "LATEST") else found

    def _live(self, store: Store, *listeners: Listener) -> None:
        pipeline = hr.Pipeline("market")
        node = self.query.migratable(Market(pipeline, self._timeline))
        pipeline.sink("answers", node, hr.sinks.Calls(self._take, idempotent=True))
        runner = self._runner or InlineRunner()  # (what a process remembered dies with it)
        driver = Driver(
            pipeline, store, runner, workers=self._workers, bins=64, settings=self._settings
        )
        # (It looks for commands less often where looking took long.)
        driver.listeners += [self._note, lambda _: driver.look_for_commands(), *listeners]
        driver.request_stop(drain=True)
        driver.run()
        driver.close()
        assert driver.coordinator.head is not None
        states = [one.state for one in driver.coordinator.head.migrations]
        asked = 0 if self._moves is None else 1 + self._moves.back
        assert states == ["done"] * asked

    def _take(self, step: int, rows: pa.Table) -> None:
        assert self._by_step.setdefault(step, rows).equals(rows), "other rows under the same id"

    def _note(self, summary: hr.StepSummary) -> None:
        """Ask for the migration in the middle, and for the one back when it is done."""
        if self._moves is None or summary.step < self._middle:
            return
        done = [one.state for one in summary.head.migrations].count("done")
        if self._asked > min(done, int(self._moves.back)):
            return
        if not self._asked:
            layout = Layout.from_wire(summary.head.layout)
            self._moving = [layout.bin(int(at)) for at in np.flatnonzero(layout.owners == 0)[::2]]
        to = 0 if self._asked else self._workers - 1
        goal = Goal(
            "move",
            bins=self._moving,
            to=to,
            strategy=self._moves.strategy,
            prepare=self._moves.prepare,
        )
        command = Command("migrate", goal=goal, nonce=f"the {self._asked}th")
        CommandLog(self._store).put(command, summary.head.commands)
        self._asked += 1


def check_against(
    oracle: Oracle, query: str, timeline: Timeline, workers: int, step: int, **how: Any
) -> None:
    """Check that a query answers what SQL does over the same events; ``how`` is as of :class:`Run`."""
    expected = oracle.answer(query)
    assert expected.num_rows
    found = Run(query, timeline, workers, step, **how).answers()
    assert difference(expected, found) == (0, 0)
