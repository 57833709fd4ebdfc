"""A computation's own counters add up what its handlers did for good, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.ledger.records import Counts
from headrace.storage import MemoryStore
from tests.support.pipelines import Collected, run_inline, run_until_read


class Item(msgspec.Struct, frozen=True):
    key: int
    number: int
    time: int

    @property
    def fails(self) -> bool:
        return self.number % 5 == 0


class Failed(Exception):
    pass


class PerRecord(hr.Computation):
    seen = hr.Counter("records")
    numbers = hr.Counter("the sum of their numbers")
    fired = hr.Counter()
    never = hr.Counter()
    out = hr.Output(int)
    later = hr.Timer(hr.EVENT_TIME)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.add()
        self.numbers.add(record.value.number)
        if record.value.fails:
            raise Failed
        self.later.set(record.timestamp_us + 5, tag=str(record.value.number))
        ctx.produce("out", record.value.number)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        self.fired.add(np.int64(1))


class Columnar(hr.ColumnarComputation):
    seen = hr.Counter()
    numbers = hr.Counter()
    never = hr.Counter()
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        numbers = batch["number"]
        self.seen.add(len(batch))
        self.numbers.add(numbers.sum())
        if (numbers % 5 == 0).any():
            raise Failed


def drawn(kind: type[Any], items: list[Item], on_error: Any = "stop") -> hr.Pipeline:
    pipeline, collected = hr.Pipeline("counting"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="time"))
    node = pipeline.compute("of", kind(), keys={stream: "key"}, on_error=on_error)
    pipeline.sink("out", node["out"], collected.sink("out"))
    return pipeline


def counters(driver: Any) -> dict[str, int]:
    found: Counts = driver.coordinator.head.counts["of"]
    return found.counters


ITEMS = st.lists(
    st.builds(Item, st.integers(0, 4), st.integers(1, 40), st.integers(0, 50)),
    min_size=1,
    unique_by=lambda item: item.number,
).map(lambda items: sorted(items, key=lambda item: item.time))


@given(ITEMS, st.integers(1, 7), st.integers(1, 3), st.sampled_from(["skip", "dead_letter"]))
def test_what_a_failed_handler_counted_does_not_count(
    items: list[Item], rows: int, workers: int, on_error: str
) -> None:
    good = [item for item in items if not item.fails]
    for kind in (PerRecord, Columnar):
        driver = run_inline(drawn(kind, items, on_error), rows=rows, workers=workers)
        expected = {"seen": len(good), "numbers": sum(item.number for item in good), "never": 0}
        if kind is PerRecord:
            expected["fired"] = len(good)  # all fire at the end of the input
        assert counters(driver) == expected


@given(ITEMS, st.integers(1, 7), st.integers(0, 30))
def test_totals_go_on_after_a_restart(items: list[Item], rows: int, stop: int) -> None:
    items = [item for item in items if not item.fails]
    store = MemoryStore()
    if items and stop < len(items):
        run_until_read(drawn(PerRecord, items), store, stop, rows=rows)
    found = counters(run_inline(drawn(PerRecord, items), store=store, rows=rows)) if items else {}
    assert found.get("seen", 0) == len(items)
    assert found.get("numbers", 0) == sum(item.number for item in items)


def test_adding_a_counter_is_no_change_of_the_pipeline() -> None:
    class Before(PerRecord):
        never = None  # type: ignore[assignment]

    items = [Item(1, 1, at) for at in range(10)]
    store = MemoryStore()
    run_until_read(drawn(Before, items), store, 5, rows=5)
    assert counters(run_inline(drawn(PerRecord, items), store=store, rows=5))["seen"] == 10


@pytest.mark.parametrize(
    ("count", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError), (None, TypeError)]
)
def test_a_counter_takes_whole_numbers_that_are_not_negative(
    count: Any, error: type[Exception]
) -> None:
    class Wrong(hr.Computation):
        seen = hr.Counter()
        out = hr.Output(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            with pytest.raises(error):
                self.seen.add(count)
            self.seen.add(3)

    assert counters(run_inline(drawn(Wrong, [Item(1, 1, 1)]))) == {"seen": 3}


def test_a_counter_is_no_state() -> None:
    class Reads(hr.Computation):
        seen = hr.Counter()
        out = hr.Output(int)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.seen = 7  # type: ignore[assignment]

    with pytest.raises(hr.errors.UserCodeError, match="seen"):
        run_inline(drawn(Reads, [Item(1, 1, 1)]))
    with pytest.raises(RuntimeError, match="only while Headrace runs a handler"):
        PerRecord().seen.add()
