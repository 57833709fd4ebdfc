"""NEXMark's queries as views of SQL have DuckDB's answer over the events so far, at every step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.driver.driver import Driver, Settings
from headrace.nexmark.queries import sql
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import Timeline
from headrace.runners.inline import InlineRunner
from headrace.sql.catalyst import Catalyst
from headrace.storage import MemoryStore
from tests.spark.conftest import session
from tests.unit.nexmark.oracle import Oracle, difference

pytestmark = pytest.mark.spark
EVENTS, STEP = 4_000, 2_500
TIMELINE = Timeline(events=EVENTS, rate=300, in_flight=100, disorder=512, seed=1)


@cache
def oracle_of(first: int) -> Oracle:
    return Oracle(TIMELINE, first)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def run(spark: Any) -> tuple[MemoryStore, dict[int, int]]:
    """All queries in one pipeline: its storage, and how many events each step has come to."""
    pipeline, store = hr.Pipeline("market"), MemoryStore()
    market = Market(pipeline, TIMELINE)
    for query, rows in sql.views_of(list(sql.QUERIES), market, Catalyst(spark)).items():
        rows.view(query)
    events: dict[int, int] = {}

    def note(summary: hr.StepSummary) -> None:
        positions = summary.head.positions
        events[summary.step] = min(positions.get(n, 0) for n in ("people", "auctions", "bids"))

    settings = Settings(limit=hr.Limit(STEP, 1 << 40))
    driver = Driver(pipeline, store, InlineRunner(), workers=2, bins=16, settings=settings)
    driver.listeners.append(note)
    driver.request_stop(drain=True)
    driver.run()
    driver.close()
    return store, events


@pytest.mark.parametrize("query", sql.QUERIES)
def test_a_view_has_the_answer_over_the_events_so_far(
    run: tuple[MemoryStore, dict[int, int]], query: str
) -> None:
    store, events = run
    steps = {count: step for step, count in events.items() if count}
    assert max(steps) == EVENTS and len(steps) > 1
    for count, step in steps.items():
        found = read_view(hr.open_state(store, step), query)
        expected = oracle_of(count).answer(query)
        assert difference(expected, found) == (0, 0), f"after {count} events"
    assert len(expected) > 0 or query in {"q2"}
