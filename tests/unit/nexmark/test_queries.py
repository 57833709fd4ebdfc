"""The queries' migratable versions give what SQL gives over the same events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.nexmark.queries import q7, q12
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import BASE_US, Kind, Timeline
from headrace.storage import MemoryStore
from tests.support.nexmark_runs import (
    AT_ONCE_AND_BACK,
    CRASHES,
    CRASHES_OF_ONE,
    PREPARED,
    Run,
    check_against,
)
from tests.support.results import recording
from tests.unit.nexmark.oracle import QUERIES, Oracle, all_events

EVENTS = 20_000
#: Twenty seconds of events, in which hundreds of auctions are open at a time.
TIMELINES = {
    "in order": Timeline(events=EVENTS, rate=1_000, in_flight=300),
    "out of order": Timeline(events=EVENTS, rate=1_000, in_flight=300, disorder=2_048, seed=1),
    "many at once": Timeline(events=EVENTS, rate=1_000_000_000, in_flight=300),
}


#: Which timeline, how many workers, and how many events a step takes at most.
CASES = [
    ("in order", 1, 20_000),
    ("in order", 4, 1_777),
    ("out of order", 2, 3_000),
    ("many at once", 2, 3_000),
]


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
    "midnight": (
        Timeline(events=EVENTS, rate=1, base_us=BASE_US + 22 * _HOUR),
        ["q15", "q16", "q17"],
    ),
}


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
    check(query, TIMELINES["out of order"], 2, 600, crashes=CRASHES, moves=PREPARED)


@pytest.mark.parametrize("query", ["q4", "q5", "q9", "q20"])
def test_a_query_answers_the_same_while_its_state_moves_at_once_and_back(query: str) -> None:
    check(query, TIMELINES["out of order"], 4, 600, moves=AT_ONCE_AND_BACK)


@pytest.mark.parametrize("query", ["q4", "q6", "q9"])
def test_a_query_of_one_worker_answers_the_same_through_crashes(query: str) -> None:
    check(query, TIMELINES["in order"], 1, 1_500, crashes=CRASHES_OF_ONE)


# -- windows of the clock -----------------------------------------------------------------------


def check_the_clocks(timeline: Timeline, workers: int, step: int, **how: Any) -> None:
    """Check query 12: which window a bid is in, the clock decides; how many are a bidder's, the events."""
    store = MemoryStore()
    run = Run("q12", timeline, workers, step, store=store, **how)
    run.query = SimpleNamespace(migratable=partial(q12.migratable, window="30ms"))
    report = Counter[int]()
    for row in run.answers().to_pylist():
        report[row["key"]] += row["bids"]
    for row in Checkpoints(store).open().read("q12").to_pylist():  # (windows that are not over)
        report[row["key"]] += row["count"]
    assert report == Counter(all_events(timeline, Kind.BID)["bidder"].to_pylist())


@pytest.mark.parametrize("workers", [1, 4])
def test_windows_of_the_clock_count_every_bid_once_through_crashes_and_moves(workers: int) -> None:
    how = WAYS["crashes, moves"] if workers > 1 else WAYS["crashes"]
    check_the_clocks(TIMELINES["out of order"], workers, 600, **how(workers))


# -- what events that are drawn never come to ------------------------------------------------------


def test_all_the_best_bids_of_a_window_are_told_whenever_they_came() -> None:
    """Ties of the highest price, in one step and in several, by one auction and by several."""
    bids = [  # (auction, price, second)
        [(1, 5, 1), (1, 7, 2), (2, 7, 2), (3, 6, 9)],
        [(1, 7, 3), (4, 7, 8), (4, 9, 12)],
        [(2, 3, 4), (5, 8, 13), (6, 9, 19)],
    ]
    pipeline = hr.Pipeline("market")
    q7.migratable(Market(pipeline, Timeline(events=0)))
    with hr.testing.drive(pipeline, workers=2, bins=16) as driven:
        for step in bids:
            for auction, price, second in step:
                when = datetime.fromtimestamp(second, UTC)
                bid = {"auction": auction, "price": price, "bidder": second, "extra": "x"}
                driven.push("bids", bid | {"date_time": when}, at=when)
            driven.run()
        driven.end()
        driven.run()
        report = [
            (one.value.auction, one.value.bidder, one.value.price) for one in driven.outputs("q7")
        ]
    every = [bid for step in bids for bid in step]
    best = {
        window: max(price for _, price, second in every if second // 10 == window)
        for window in (0, 1)
    }
    expected = [
        (auction, second, price) for auction, price, second in every if price == best[second // 10]
    ]
    assert sorted(report) == sorted(expected) and len(expected) == 6


# -- two million events each -----------------------------------------------------------------------

#: At least so many events each.
MANY = 2_000_000
#: As fast as Beam's default, ten thousand a second; and such in which what queries are about comes up.
ALL = {
    "in order": Timeline(events=MANY, rate=10_000, in_flight=1_000),
    "out of order": Timeline(events=MANY, rate=10_000, in_flight=1_000, disorder=20_000, seed=1),
}
HARD = {
    "many at once": Timeline(events=MANY, rate=1_000_000_000, in_flight=1_000, disorder=2_048),
    "through the day": Timeline(
        events=MANY,
        rate=40,
        in_flight=300,
        hot_auctions=1,
        disorder=2_048,
        base_us=BASE_US + 16 * _HOUR,
    ),
}
#: How a query runs, by its number of workers.
WAYS: dict[str, Callable[[int], dict[str, Any]]] = {
    "undisturbed": lambda workers: {},
    "crashes": lambda workers: {"crashes": CRASHES_OF_ONE},
    "moves": lambda workers: {"moves": AT_ONCE_AND_BACK},
    "crashes, moves": lambda workers: {"crashes": CRASHES, "moves": PREPARED},
}
#: (timeline, workers, way): what each query is asked in; a single worker has nowhere to move state to.
CROSS = [
    (named, workers, way)
    for named in ALL
    for workers in (1, 2, 4)
    for way in WAYS
    if workers > 1 or "moves" not in way
]
EVERY = [*QUERIES, "q12"]
#: So many rows a step: enough steps to move in the midst of them.
_STEP = {"undisturbed": 250_000, "crashes": 100_000, "moves": 50_000, "crashes, moves": 50_000}

Note = Callable[[str, str, int, str], None]


class NotAll(Exception):
    """Not all runs were answered as by SQL: one failed, or not all were asked for."""


@pytest.fixture(scope="module")
def note() -> Iterator[Note]:
    """Give what notes that a query was answered; what is kept is how many were, of how many."""
    done: Counter[str] = Counter()
    asked = len(EVERY) * (len(CROSS) + len(HARD))
    with suppress(NotAll), recording("nexmark_queries") as keep:

        def note(query: str, named: str, workers: int, way: str) -> None:
            done.update(["runs", f"{named}, {way}"])
            keep({"events_each": MANY, "asked": asked, **done})

        yield note
        if done["runs"] < asked:  # (what has failed is told already)
            raise NotAll


def answers_as_sql(query: str, timeline: Timeline, workers: int, way: str) -> None:
    how = WAYS[way](workers)
    if query == "q12":
        check_the_clocks(timeline, workers, _STEP[way], **how)
    else:
        check(query, timeline, workers, _STEP[way], **how)


@pytest.mark.soak
@pytest.mark.parametrize("named, workers, way", CROSS)
@pytest.mark.parametrize("query", EVERY)
def test_a_query_answers_two_million_events_as_sql_does(
    query: str, named: str, workers: int, way: str, note: Note
) -> None:
    answers_as_sql(query, ALL[named], workers, way)
    note(query, named, workers, way)


@pytest.mark.soak
@pytest.mark.parametrize("named", HARD)
@pytest.mark.parametrize("query", EVERY)
def test_a_query_answers_two_million_events_in_which_all_comes_up_as_sql_does(
    query: str, named: str, note: Note
) -> None:
    answers_as_sql(query, HARD[named], 2, "crashes, moves")
    note(query, named, 2, "crashes, moves")


@pytest.mark.soak
def test_two_million_events_have_what_queries_are_about() -> None:
    at_once, day = oracle_of(HARD["many at once"]), oracle_of(HARD["through the day"])
    bids = all_events(HARD["many at once"], Kind.BID)
    assert len(bids["date_time"].unique()) < bids.num_rows / 100
    assert len(at_once.answer("q5")["window_end"].unique()) == 5, "one pane of the first window"
    sessions = day.answer("q11")
    assert len(sessions) > 2 * len(sessions["key"].unique())
    assert set(day.answer("q14")["time_type"].to_pylist()) == {"dayTime", "nightTime", "otherTime"}
    assert len(day.answer("q15")) == 2, "days"
    windows = day.answer("q5")
    assert len(windows) > 1.5 * len(windows["window_end"].unique()), "as many bids in a window"


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
