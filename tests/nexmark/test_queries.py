"""The queries' migratable versions give what SQL gives over the same events."""

from __future__ import annotations

import importlib
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from benchmarks.nexmark.events import columns_of, read
from benchmarks.nexmark.queries import q12
from benchmarks.nexmark.queries.market import Market
from benchmarks.nexmark.timeline import Kind, Timeline

import headrace as hr
from headrace.driver import Driver, Settings
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.nexmark.oracle import QUERIES, Oracle, last_of, rows_of

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
    return Oracle({kind: whole(timeline, kind) for kind in (Kind.PERSON, Kind.AUCTION, Kind.BID)})


def whole(timeline: Timeline, kind: Kind) -> pa.Table:
    assert timeline.events is not None
    return pa.concat_tables(read(timeline, kind, 0, timeline.events, columns_of(kind, None)))


def answers(query: str, timeline: Timeline, workers: int, step: int) -> pa.Table:
    """Return all that a query answers, with its key and time."""
    pipeline = hr.Pipeline("market")
    drawn = importlib.import_module(f"benchmarks.nexmark.queries.{query}")
    found: list[pa.Table] = []
    node = drawn.migratable(Market(pipeline, timeline))
    pipeline.sink("answers", node, hr.sinks.Calls(lambda _, rows: found.append(rows)))
    driver = Driver(
        pipeline, MemoryStore(), InlineRunner(), workers=workers, bins=16,
        settings=Settings(limit=hr.Limit(step, 1 << 40)),
    )  # fmt: skip
    driver.ask_to_stop(drain=True)
    driver.run()
    driver.close()
    return pa.concat_tables(found)


@pytest.mark.parametrize("named, workers, step", CASES)
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_answers_as_sql_does(query: str, named: str, workers: int, step: int) -> None:
    timeline = TIMELINES[named]
    drawn: Any = importlib.import_module(f"benchmarks.nexmark.queries.{query}")
    oracle, found = oracle_of(timeline), answers(query, timeline, workers, step)
    if hasattr(drawn, "LATEST"):
        found = last_of(found, drawn.LATEST)
    expected = oracle.answer(query)
    assert expected.num_rows
    assert Counter(rows_of(found.select(expected.column_names))) == Counter(rows_of(expected))


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
