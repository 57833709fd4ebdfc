"""NEXMark's events as the input of a pipeline."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.nexmark.pace import Pace
from headrace.nexmark.source import Events
from headrace.nexmark.timeline import Kind, Timeline
from headrace.runners.inline import InlineRunner
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.storage import MemoryStore
from tests.unit.nexmark.oracle import all_events

LIMIT = hr.Limit(1_000, 1 << 40)


class Clock:
    def __init__(self) -> None:
        self.now_us = 5_000_000

    def __call__(self) -> int:
        return self.now_us


@settings(max_examples=20)
@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=5), st.sampled_from([1, 64]))
def test_steps_have_all_events_once_in_the_order_of_their_arrival(
    steps: list[int], disorder: int
) -> None:
    timeline = Timeline(events=60_000, disorder=disorder)
    source = Events(timeline, "auction")
    task, at, parts, final = source.for_tasks(), source.start(), [], False
    while not final:
        offer = source.offer(at, hr.Limit(steps.pop() if steps else 50_000, 1 << 40))
        assert offer is not None
        parts += [task.read(split) for split in source.splits(at, offer.end)]
        at, final = offer.end, offer.final
        assert final == offer.parts[""].final
    found = pa.concat_tables(parts)
    assert found.drop_columns(TIMESTAMP_COLUMN).equals(all_events(timeline, Kind.AUCTION))
    assert found[TIMESTAMP_COLUMN].equals(found["date_time"].cast(pa.int64()))


def test_a_step_takes_as_much_of_the_timeline_whatever_the_kind() -> None:
    ends = {kind: Events(Timeline(), kind).offer(0, LIMIT) for kind in Kind}
    assert {offer.end for offer in ends.values() if offer is not None} == {1_000}


def test_a_pace_lets_events_come_when_they_are_due() -> None:
    clock = Clock()
    source = Events(Timeline(events=100), "bid", pace=Pace(10, now_us=clock))
    assert source.offer(0, LIMIT) is None
    clock.now_us += 99_999
    assert source.offer(0, LIMIT) is None
    clock.now_us += 1
    first = source.offer(0, LIMIT)
    assert first is not None and first.end == 1 and not first.final
    clock.now_us += 60_000_000
    last = source.offer(1, LIMIT)
    assert last is not None and last.end == 100 and last.final


def test_a_history_is_there_at_once_and_the_clock_begins_behind_it() -> None:
    clock = Clock()
    pace = Pace(10, now_us=clock)
    source = Events(Timeline(events=2_000), "bid", pace=pace, history=1_500)
    offers = source.offer(0, LIMIT), source.offer(1_000, LIMIT)
    assert [offer and offer.end for offer in offers] == [1_000, 1_500] and not pace.begun
    assert source.offer(1_500, LIMIT) is None and pace.begun
    clock.now_us += 200_000
    later = source.offer(1_500, LIMIT)
    assert later is not None and later.end == 1_502


@given(st.integers(1, 10**7), st.integers(0, 10**12))
def test_an_event_is_there_from_when_it_is_due(rate: int, arrival: int) -> None:
    clock = Clock()
    pace = Pace(rate, begin_us=0, now_us=clock)
    clock.now_us = int(pace.due_us(arrival))
    assert pace.due() > arrival
    clock.now_us -= 1
    assert pace.due() <= arrival


def test_what_is_not_asked_for_is_not_there() -> None:
    source = Events(Timeline(events=500), "person", columns=["id", "state"])
    (split,) = source.splits(0, 500)
    assert source.read(split).column_names == [TIMESTAMP_COLUMN, "id", "state"]
    assert source.values().schema.names == ["id", "state"]


def test_a_pipeline_sees_every_bid_and_its_watermark_is_exact() -> None:
    timeline = Timeline(events=40_000, disorder=64)
    pipeline = hr.Pipeline("market")
    columns = ["auction", "price"]
    bids = pipeline.inject("bids", Events(timeline, "bid", columns=columns), watermark=hr.exact())
    dearest = hr.ops.Tumbling("1s", bids=hr.ops.Count(), price=hr.ops.Max("price"))
    pipeline.compute("dearest", dearest, keys={bids: "auction"})
    seen: list[dict[str, Any]] = []
    pipeline.sink(
        "out",
        pipeline.nodes["dearest"],
        hr.sinks.Calls(lambda _, rows: seen.extend(rows.to_pylist())),
    )
    driver = Driver(
        pipeline,
        MemoryStore(),
        InlineRunner(),
        workers=2,
        bins=16,
        settings=Settings(limit=hr.Limit(7_000, 1 << 40)),
    )
    driver.request_stop(drain=True)
    driver.run()
    driver.close()
    table = all_events(timeline, Kind.BID)
    expected: dict[tuple[int, Any], list[int]] = {}
    for auction, price, at in zip(
        *(table[name].to_pylist() for name in ("auction", "price", "date_time")), strict=True
    ):
        expected.setdefault((auction, at.replace(microsecond=0)), []).append(price)
    found = {(row["key"], row["window_start"]): [row["bids"], row["price"]] for row in seen}
    assert len(found) == len(seen)
    assert found == {key: [len(prices), max(prices)] for key, prices in expected.items()}
