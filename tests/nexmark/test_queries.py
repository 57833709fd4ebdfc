"""The queries' migratable versions give what SQL gives over the same events."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.nexmark.queries import q12
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import BASE_US, Kind, Timeline
from headrace.storage import MemoryStore
from tests.nexmark.oracle import QUERIES, Oracle, all_events
from tests.nexmark.runs import CRASHES, CRASHES_OF_ONE, Run, check_against

EVENTS = 20_000
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


def check(query: str, timeline: Timeline, workers: int, step: int, **how: Any) -> None:
    check_against(oracle_of(timeline), query, timeline, workers, step, **how)


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


@pytest.mark.parametrize("workers", [1, 4])
def test_windows_of_the_clock_count_every_bid_once_through_crashes_and_moves(workers: int) -> None:
    """Which window a bid is in, the clock decides; how many there are of each bidder, the events."""
    timeline, store = TIMELINES["out of order"], MemoryStore()
    crashes = CRASHES if workers > 1 else CRASHES_OF_ONE
    run = Run("q12", timeline, workers, 600, crashes=crashes, moves=workers > 1, store=store)
    run.query = SimpleNamespace(migratable=partial(q12.migratable, window="30ms"))
    told = Counter[int]()
    for row in run.answers().to_pylist():
        told[row["key"]] += row["bids"]
    for row in Checkpoints(store).open().read("q12").to_pylist():  # (windows that are not over)
        told[row["key"]] += row["count"]
    assert told == Counter(all_events(timeline, Kind.BID)["bidder"].to_pylist())


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
