"""Waiting for the end of the input, while somebody else ends the run otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.errors import EndedEarly
from headrace.storage import MemoryStore
from tests.support.records import Item
from tests.support.waiting import until

SETTINGS = hr.Settings(limit=hr.Limit(5, 1 << 20))


def without_end() -> Iterator[Item]:
    n = 0
    while True:
        yield Item(f"p{n % 5}", n, n * 10)
        n += 1


class Counts(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", self.count.value)


def job(store: MemoryStore, source: hr.sources.Iterable) -> hr.Job:
    pipeline = hr.Pipeline("ends")
    stream = pipeline.inject("items", source)
    pipeline.compute("count", Counts(), keys={stream: "key"})
    return hr.run(pipeline, storage=store, runner="inline", settings=SETTINGS)


@pytest.mark.parametrize("how", ["drain", "catch_up"])
def test_waiting_for_all_input_says_so_when_somebody_stops_the_pipeline(how: str) -> None:
    store = MemoryStore()
    endless = hr.sources.Iterable(without_end, Item, event_time="at")
    with job(store, endless) as running:
        asked = threading.Thread(target=lambda: stopped_soon(running, store))
        asked.start()
        with pytest.raises(EndedEarly, match="ended before all was read: stopped"):
            getattr(running, how)("60s")
        asked.join()
    assert Control(store).head().counts["count"].records > 0


def stopped_soon(running: hr.Job, store: MemoryStore) -> None:
    until(lambda: running.head is not None and running.head.step > 3)
    Control(store).ask("stop")


def test_waiting_for_the_end_of_the_input_says_so_when_it_was_only_caught_up() -> None:
    items = [Item("k", n, n) for n in range(20)]
    with job(MemoryStore(), hr.sources.Iterable(items, Item, event_time="at")) as running:
        assert running.catch_up("60s")
        with pytest.raises(EndedEarly, match="caught up"):
            running.drain("60s")


def test_all_that_was_read_is_read_whoever_has_asked_for_it() -> None:
    items = [Item("k", n, n) for n in range(20)]
    with job(MemoryStore(), hr.sources.Iterable(items, Item, event_time="at")) as running:
        assert running.drain("60s")
        assert running.catch_up("60s") and running.wait("60s")
        assert running.ended == "drained"
