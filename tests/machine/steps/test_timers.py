"""Timers of per-record code: what is pending fires once, whatever it costs nothing before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import MAX_TIME
from headrace.runners.inline import InlineRunner
from headrace.state.keyed.keyed import KeyedState
from headrace.storage import MemoryStore
from headrace.tasks.run_keyed import Visitor
from tests.support.pipelines import Collected, run_inline, run_until_read


class Item(msgspec.Struct):
    key: int
    n: int
    at: int


def drawn(
    computation: Any, items: list[Item], *, on_error: Any = "stop"
) -> tuple[hr.Pipeline, Collected]:
    pipeline, collected = hr.Pipeline("test"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("it", computation, keys={stream: "key"}, on_error=on_error)
    for name in node.outputs:
        pipeline.sink(name, node[name], collected.sink(name))
    return pipeline, collected


class AtTheEnd(hr.Computation):
    """Says its total when there is no more input."""

    total = hr.ValueState(int, default=0)
    end = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.n
        self.end.set(MAX_TIME)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.total.value)


class AtTheEndInBulk(hr.ColumnarComputation):
    """The same for all keys at once."""

    totals = hr.TableState({"total": int})
    end = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        rows.upsert(total=rows["total"] + batch.sum("n"))
        self.end.set(batch.keys, MAX_TIME)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, self.totals.at(fired.keys)["total"])


@pytest.mark.parametrize("kind", [AtTheEnd, AtTheEndInBulk])
@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize("cached_bytes", [0, 1 << 20])
def test_a_timer_at_the_end_of_time_fires_when_the_input_has_ended(
    kind: Any, rows: int, cached_bytes: int
) -> None:
    items = [Item(number % 3, 1, number) for number in range(9)]
    store = MemoryStore()
    way: dict[str, Any] = {"rows": rows, "workers": 2, "cached_bytes": cached_bytes}
    if rows == 1:
        run_until_read(drawn(kind(), items)[0], store, 5, **way)  # what comes after reads it back
    pipeline, collected = drawn(kind(), items)
    run_inline(pipeline, store=store, **way)
    said = [row for step in collected.rows()["out"] for row in step]
    assert sorted((key, n) for key, _, n in said) == [(0, 3), (1, 3), (2, 3)]


class Later(hr.Computation):
    """Says the time of each record, and of its timer, as much later as the record asks for."""

    soon = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.timestamp_us)
        self.soon.set(record.timestamp_us + record.value.n)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", timer.time_us)


class LaterInBulk(hr.ColumnarComputation):
    """The same for all keys at once."""

    soon = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        ctx.produce("out", batch.keys, batch.max("at"))
        self.soon.set(batch.keys, batch.max("at") + batch.sum("n"))

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, fired.times_us)


@pytest.mark.parametrize("kind", [Later, LaterInBulk])
def test_a_timer_fires_in_the_step_whose_watermark_reaches_it_and_in_none_before(kind: Any) -> None:
    times = [0, 10, 20, 30, 40]
    items = [Item(at, {0: 20, 10: 21}.get(at, 100), at) for at in times]  # a key each
    pipeline, collected = hr.Pipeline("test"), Collected()
    source = hr.sources.Iterable(items, Item, event_time="at")
    stream = pipeline.inject("items", source, watermark=hr.ascending())
    node = pipeline.compute("it", kind(), keys={stream: "key"})
    pipeline.sink("out", node["out"], collected.sink("out"))
    run_inline(pipeline, rows=1)
    said = [sorted(row[2] for row in step) for step in collected.rows()["out"]]
    assert said[: len(times)] == [[0], [10], [20, 20], [30], [31, 40]]


class FarAndNear(hr.Computation):
    """Has one timer far away, and another that comes and goes."""

    far = hr.Timer(hr.EVENT_TIME)
    near = hr.Timer(hr.EVENT_TIME)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if self.far.when_us() is None:
            self.far.set(10**15)
        self.near.set(record.timestamp_us + record.value.n)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        pass


def queue_lengths(computation: Any, items: list[Item]) -> list[int]:
    """Return how long the queue of event timers is after each step."""
    lengths = []

    class Watching(InlineRunner):
        def run(self, plan: Any) -> Any:
            reports = super().run(plan)
            for entry in self._soft[0]._entries.values():
                visitor = entry.visitors["it"]
                assert isinstance(visitor, Visitor)
                assert isinstance(visitor.state, KeyedState)
                lengths.append(len(visitor.state.queues[TimeDomain.EVENT_TIME]))
            return reports

    run_inline(drawn(computation, items)[0], runner=Watching(), rows=2)
    return lengths


@pytest.mark.parametrize("n", [1, 10**6])
@pytest.mark.drawn(2)
def test_the_queue_of_timers_is_no_longer_than_there_are_keys_plus_a_bound(n: int) -> None:
    items = [Item(number % 3, n, number) for number in range(2_400)]
    assert max(queue_lengths(FarAndNear(), items)) <= 2 * 3 + 1_024 + 1


class Careless(hr.Computation):
    """Sets what cannot be kept, and then raises."""

    counts = hr.MapState(str, int)
    total = hr.ValueState(int, default=0)
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        n = record.value.n
        if n == 7:
            self.counts[5] = 1  # type: ignore[index]
        if n == 8:
            self.tick.set(10**15, tag=5)  # type: ignore[arg-type]
        self.counts[str(n)] = 1
        self.total.value += n
        ctx.produce("out", self.total.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        pass


def test_a_skipped_record_leaves_no_key_behind_that_cannot_be_kept() -> None:
    items = [Item(0, n, at) for at, n in enumerate([1, 7, 2, 8, 3])]
    pipeline, collected = drawn(Careless(), items, on_error="skip")
    driver = run_inline(pipeline)
    assert [n for step in collected.rows()["out"] for _, _, n in step] == [1, 3, 6]
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.counts["it"].skipped == 2
