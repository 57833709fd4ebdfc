"""The queries' migratable versions give what SQL gives over the same events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.driver import Driver, Settings
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.migrations import Goal
from headrace.nexmark.queries import module_of, q12
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import BASE_US, Timeline
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from headrace.storage.base import Store
from headrace.summary import Listener
from tests.nexmark.oracle import QUERIES, Oracle, difference, last_of
from tests.support.faults import FaultStore, SimulatedCrash, T

EVENTS = 20_000
#: The step after which state begins to move, where it does.
_MOVES_AT = 3
Ends = Callable[[hr.StepSummary], bool]


def at(*states: str) -> Ends:
    """Let a life end after a step in which the migration is so far."""
    return lambda summary: any(one.state in states for one in summary.head.migrations)


def after(step: int) -> Ends:
    """Let a life end after a step with this number, or a later one."""
    return lambda summary: summary.step >= step


#: When a life ends, while state moves; and where none does.
CRASHES = [at("preparing", "gap", "moving"), at("gap", "moving"), at("done")]
CRASHES_OF_ONE = [after(2), after(5), after(9)]
#: Twenty seconds of events, in which hundreds of auctions are open at a time.
TIMELINES = {
    "in order": Timeline(events=EVENTS, rate=1_000, in_flight=300),
    "out of order": Timeline(events=EVENTS, rate=1_000, in_flight=300, disorder=2_048, seed=1),
    "many at once": Timeline(events=EVENTS, rate=1_000_000_000, in_flight=300),
}


#: Which timeline, how many workers, and how many events a step takes at most.
CASES = [
    ("in order", 1, 20_000), ("in order", 4, 1_777), ("out of order", 2, 3_000), ("many at once", 2, 3_000),
]  # fmt: skip


@cache
def oracle_of(timeline: Timeline) -> Oracle:
    return Oracle(timeline)


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
    """

    def __init__(
        self, query: str, timeline: Timeline, workers: int, step: int, *,
        crashes: Sequence[Ends] = (), moves: bool = False,
    ) -> None:  # fmt: skip
        self._query: Any = module_of(query)
        self._timeline, self._workers = timeline, workers
        self._settings = Settings(limit=hr.Limit(step, 1 << 40))
        self._crashes, self._moves = crashes, moves
        self._store = MemoryStore()
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
        return last_of(found, self._query.LATEST) if hasattr(self._query, "LATEST") else found

    def _live(self, store: Store, *listeners: Listener) -> None:
        pipeline = hr.Pipeline("market")
        node = self._query.migratable(Market(pipeline, self._timeline))
        pipeline.sink("answers", node, hr.sinks.Calls(self._take, idempotent=True))
        driver = Driver(
            pipeline, store, InlineRunner(), workers=self._workers, bins=16, settings=self._settings
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


def check(query: str, timeline: Timeline, workers: int, step: int, **how: Any) -> None:
    oracle = oracle_of(timeline)
    expected = oracle.answer(query)
    assert expected.num_rows
    assert difference(expected, Run(query, timeline, workers, step, **how).answers()) == (0, 0)


@pytest.mark.parametrize("named, workers, step", CASES)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_answers_as_sql_does(query: str, named: str, workers: int, step: int) -> None:
    check(query, TIMELINES[named], workers, step)


_HOUR = 3_600_000_000
#: In which what some queries are about comes up: pauses of sessions, the hours of a day, midnight.
SLOW = {
    "pauses": (Timeline(events=EVENTS, rate=20, in_flight=300), ["q11", "q5", "q8"]),
    "morning": (Timeline(events=EVENTS, rate=1, base_us=BASE_US + 5 * _HOUR), ["q14"]),
    "evening": (Timeline(events=EVENTS, rate=1, base_us=BASE_US + 16 * _HOUR), ["q14"]),
    "midnight": (Timeline(events=EVENTS, rate=1, base_us=BASE_US + 22 * _HOUR), ["q15", "q16", "q17"]),
}  # fmt: skip


@pytest.mark.parametrize(
    "named, query", [(name, q) for name, (_, some) in SLOW.items() for q in some]
)
def test_a_query_answers_as_sql_does_where_time_passes_slowly(named: str, query: str) -> None:
    timeline, _ = SLOW[named]
    check(query, timeline, 2, 3_000)


def test_slow_timelines_have_what_they_are_for() -> None:
    def answers(named: str, query: str) -> Any:
        return oracle_of(SLOW[named][0]).answer(query)

    sessions = answers("pauses", "q11")
    assert len(sessions) > 2 * len(sessions["key"].unique())
    for named in ("morning", "evening"):
        assert len(answers(named, "q14")["time_type"].unique()) > 1
    assert len(answers("midnight", "q15")) == 2


@pytest.mark.parametrize("query", ["q3", "q4", "q5", "q6", "q7", "q8", "q11", "q16", "q19"])
def test_a_query_answers_the_same_through_crashes_while_its_state_moves(query: str) -> None:
    check(query, TIMELINES["out of order"], 2, 600, crashes=CRASHES, moves=True)


@pytest.mark.parametrize("query", ["q4", "q6", "q9"])
def test_a_query_of_one_worker_answers_the_same_through_crashes(query: str) -> None:
    check(query, TIMELINES["in order"], 1, 1_500, crashes=CRASHES_OF_ONE)


#: At least so many events each, as fast as Beam's default, ten thousand a second.
MANY = 2_000_000
ALL = {
    "in order": Timeline(events=MANY, rate=10_000, in_flight=1_000),
    "out of order": Timeline(events=MANY, rate=10_000, in_flight=1_000, disorder=20_000, seed=1),
}


@pytest.mark.soak
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("named", ALL)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_query_answers_two_million_events_as_sql_does(
    query: str, named: str, workers: int
) -> None:
    check(query, ALL[named], workers, 250_000)


@pytest.mark.soak
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("named", ALL)
@pytest.mark.parametrize("workers", [2, 4])
def test_a_query_answers_two_million_events_through_crashes_while_its_state_moves(
    query: str, named: str, workers: int
) -> None:
    check(query, ALL[named], workers, 50_000, crashes=CRASHES, moves=True)


@pytest.mark.soak
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("named", ALL)
def test_a_query_of_one_worker_answers_two_million_events_through_crashes(
    query: str, named: str
) -> None:
    check(query, ALL[named], 1, 100_000, crashes=CRASHES_OF_ONE)


def test_windows_of_the_clock_count_every_bid_once() -> None:
    bidders = [7, 8, 7, 7, 9, 8, 7]
    pipeline = hr.Pipeline("market")
    q12.migratable(Market(pipeline, Timeline(events=0)))
    found: list[tuple[int, int]] = []
    with hr.testing.drive(pipeline, clock="2024-01-01T00:00:00Z") as driven:
        for number, bidder in enumerate(bidders):
            driven.push("bids", {"bidder": bidder}, at=number)
            driven.clock("+4s")
            driven.run()
        driven.clock("+10s")
        driven.run()
        for one in driven.outputs("q12"):
            assert one.timestamp is not None
            found.append((one.key, one.value.bids))
    assert sorted(found) == [(7, 1), (7, 1), (7, 2), (8, 1), (8, 1), (9, 1)]
