"""A query of NEXMark that runs until its input has ended, in one life after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.driver import Driver, Settings
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.migrations import Goal
from headrace.nexmark.queries import module_of
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import Timeline
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from headrace.storage.base import Store
from headrace.summary import Listener
from tests.nexmark.oracle import Oracle, difference, last_of
from tests.support.faults import FaultStore, SimulatedCrash, T

#: The step after which state begins to move, where it does.
_MOVES_AT = 3

Ends = Callable[[hr.StepSummary], bool]


def at(*states: str) -> Ends:
    """Let a life end after a step in which the migration is so far."""
    return lambda summary: any(one.state in states for one in summary.head.migrations)


def after(step: int) -> Ends:
    """Let a life end after a step with this number, or a later one."""
    return lambda summary: summary.step >= step


#: When a life ends, while state moves; and where none does. To read ahead takes its time, so each names all
#: that its life may see first, and none waits for what may come with the last step alone.
CRASHES = [at("preparing", "gap", "moving"), at("gap", "moving", "done"), at("moving", "done")]
CRASHES_OF_ONE = [after(2), after(5), after(9)]


class Dying(FaultStore):
    """Ends the process that uses it, when it is to, at the next operation of any of its threads."""

    dies = False

    def _do(self, work: Callable[[], T], *, writes: bool = False) -> T:
        if self.dies:
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
        moves: whether half of what the first worker has moves to the last, and so stays, while it runs.
        store: where it is kept; in memory, unless it is said.
        runner: what it runs on, if it does not die; this process, unless it is said.
    """

    def __init__(
        self, query: str, timeline: Timeline, workers: int, step: int, *,
        crashes: Sequence[Ends] = (), moves: bool = False, store: Store | None = None,
        runner: Runner | None = None,
    ) -> None:  # fmt: skip
        self.query: Any = module_of(query)
        self._timeline, self._workers = timeline, workers
        self._settings = Settings(limit=hr.Limit(step, 1 << 40))
        self._crashes, self._moves = crashes, moves
        self._store = store or MemoryStore()
        self._runner = runner
        self._by_step: dict[int, pa.Table] = {}
        self._asked = not moves

    def answers(self) -> pa.Table:
        """Return all that it has answered, or the last of it where it answers again and again."""
        for ends in self._crashes:
            store = Dying(self._store, 0)

            def strike(summary: hr.StepSummary, store: Dying = store, ends: Ends = ends) -> None:
                store.dies = ends(summary)

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
            pipeline, store, runner, workers=self._workers, bins=16, settings=self._settings
        )
        driver.listeners += [self._note, *listeners]
        driver.ask_to_stop(drain=True)
        driver.run()
        driver.close()
        assert driver.coordinator.head is not None
        states = [one.state for one in driver.coordinator.head.migrations]
        assert states == ["done"] * self._moves

    def _take(self, step: int, rows: pa.Table) -> None:
        assert self._by_step.setdefault(step, rows).equals(rows), "other rows under the same id"

    def _note(self, summary: hr.StepSummary) -> None:
        """Ask for the migration, once there is something to move."""
        if self._asked or summary.step < _MOVES_AT:
            return
        self._asked = True
        layout = Layout.from_wire(summary.head.layout)
        bins = [layout.bin(int(at)) for at in np.flatnonzero(layout.owners == 0)[::2]]
        goal = Goal("move", bins=bins, to=self._workers - 1, strategy=hr.batched(2), prepare=True)
        command = Command("migrate", goal=goal, nonce="once")
        CommandLog(self._store).put(command, summary.head.commands)


def check_against(
    oracle: Oracle, query: str, timeline: Timeline, workers: int, step: int, **how: Any
) -> None:
    """Check that a query answers what SQL does over the same events; ``how`` is as of :class:`Run`."""
    expected = oracle.answer(query)
    assert expected.num_rows
    found = Run(query, timeline, workers, step, **how).answers()
    assert difference(expected, found) == (0, 0)
