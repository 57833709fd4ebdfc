"""The queries' migratable versions give what SQL gives over the same events."""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from benchmarks.nexmark.events import columns_of, read
from benchmarks.nexmark.queries.market import Market
from benchmarks.nexmark.timeline import Kind, Timeline

import headrace as hr
from headrace.driver import Driver, Settings
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.nexmark.oracle import QUERIES, Oracle, rows_of

EVENTS = 60_000
#: A minute of events, in which hundreds of auctions are open at a time.
TIMELINES = {
    "in order": Timeline(events=EVENTS, rate=1_000, in_flight=300),
    "out of order": Timeline(events=EVENTS, rate=1_000, in_flight=300, disorder=2_048, seed=1),
    "many at once": Timeline(events=EVENTS, rate=1_000_000_000, in_flight=300),
}


@pytest.fixture(scope="module", params=TIMELINES)
def timeline(request: pytest.FixtureRequest) -> Timeline:
    return TIMELINES[request.param]


@pytest.fixture(scope="module")
def oracle(timeline: Timeline) -> Oracle:
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


@pytest.mark.parametrize("workers, step", [(1, 60_000), (2, 7_000), (4, 1_777)])
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_answers_as_sql_does(
    query: str, timeline: Timeline, oracle: Oracle, workers: int, step: int
) -> None:
    drawn: Any = importlib.import_module(f"benchmarks.nexmark.queries.{query}")
    found, expected = answers(query, timeline, workers, step), oracle.rows(query)
    wanted = oracle.columns(query)
    if hasattr(drawn, "LATEST"):
        found = last_of(found, ["key"])
    assert Counter(rows_of(found.select(wanted))) == Counter(expected)
    assert expected


def last_of(table: pa.Table, names: list[str]) -> pa.Table:
    """Return of all rows that have the same columns the last."""
    latest = {
        row: at for at, row in enumerate(zip(*(table[n].to_pylist() for n in names), strict=True))
    }
    return table.take(pa.array(sorted(latest.values())))
