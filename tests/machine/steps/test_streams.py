"""Retained streams, late records, chaining, wall timers, keys that share a hash."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.driver.driver import Clock
from headrace.errors import PipelineError, UserCodeError
from headrace.ledger.ledger import Ledger
from headrace.runfiles.format import RunReader
from headrace.storage import MemoryStore
from headrace.tasks.writing import OUTPUT
from tests.support.durations import us
from tests.support.pipelines import Collected, Elsewhere, run_inline
from tests.support.records import Item


class Echo(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        value = record.value if isinstance(record.value, int) else record.value.n
        ctx.produce("out", value)


def drawn(items: list[Item], bound: int = 0) -> tuple[hr.Pipeline, hr.Stream]:
    pipeline = hr.Pipeline("streams")
    source = hr.sources.Iterable(items, Item, event_time="at")
    return pipeline, pipeline.inject("items", source, watermark=hr.bounded_delay(us(bound)))


def test_a_retained_stream_is_kept_as_files_that_the_manifests_name() -> None:
    items = [Item("ab"[i % 2], i, i) for i in range(40)]
    pipeline, stream = drawn(items)
    pipeline.compute("echo", Echo(), keys={stream: "key"}, retain=["out"])
    store = MemoryStore()
    run_inline(pipeline, store=store, rows=10, workers=2, base_every=2, retain_steps=1)
    head = Ledger(store).open()
    assert head is not None
    found = []
    for file in head.retained:
        table = RunReader(store.read, file).rows("echo.out", OUTPUT, 0, 2**64 - 1)
        assert table is not None
        found += [(file.step, n) for n in table.column("value").to_pylist()]
    assert sorted(found) == [(1 + i // 10, i) for i in range(40)]


@pytest.mark.parametrize(("late", "kept"), [("drop", [5, 9, 6]), ("process", [5, 9, 1, 6])])
def test_a_late_record_is_dropped_and_counted_or_processed(late: Any, kept: list[int]) -> None:
    """Lateness is judged against the watermark of the step before: here the step of one record."""
    items = [Item("a", n, n) for n in (5, 9, 1, 6)]
    pipeline, stream = drawn(items, bound=3)
    node = pipeline.compute("echo", Echo(), keys={stream: "key"}, late=late)
    collected = Collected()
    pipeline.sink("out", node, collected.sink("out"))
    driver = run_inline(pipeline, rows=1)
    assert [row[2] for step in collected.rows()["out"] for row in step] == kept
    head = driver.coordinator.head
    assert head is not None
    assert head.counts["echo"].late == 1


def test_a_consumer_that_keeps_the_key_is_chained_and_sees_the_same() -> None:
    items = [Item("abc"[i % 3], i, i) for i in range(30)]
    pipeline, stream = drawn(items)
    first = pipeline.compute("first", Echo(), keys={stream: "key"})
    chained = pipeline.compute("chained", Echo(), keys={first: "key"})
    routed = pipeline.compute("routed", Echo(), keys={first: "value"})
    assert (first.layer, chained.layer, routed.layer) == (1, 1, 2)
    assert (first.chained, chained.chained, routed.chained) == (False, True, False)
    collected = Collected()
    pipeline.sink("first", first, collected.sink("first"))
    pipeline.sink("chained", chained, collected.sink("chained"))
    run_inline(pipeline, rows=7, workers=3, exchange="shuffle")
    rows = collected.rows()
    assert rows["first"] == rows["chained"]


class MovedClock(Clock):
    """A clock that moves when somebody waits for it."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def now_us(self) -> int:
        return self.now

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        self.now = until_us


class Alarm(hr.Computation):
    ring = hr.Timer(hr.WALL_TIME)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        for tag, after in (("second", 500), ("first", 300)):
            self.ring.set(int(ctx.now.timestamp() * 1e6) + after, tag=tag)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", f"{timer.tag} at {timer.time_us}")


def test_wall_timers_fire_by_the_clock_in_order_when_no_data_come() -> None:
    pipeline, stream = drawn([Item("a", 1, 10)])
    node = pipeline.compute("alarm", Alarm(), keys={stream: "key"})
    collected = Collected()
    pipeline.sink("out", node, collected.sink("out"))
    source = pipeline.injectors["items"].source
    offer, driver_box = source.offer, []

    def without_end(position: Any, limit: Any) -> Any:
        found = offer(position, limit)
        if found.empty and sum(len(step) for step in collected.rows().get("out", [])) < 2:
            return None
        return msgspec.structs.replace(found, final=found.empty)

    source.offer = without_end  # type: ignore[method-assign]
    driver_box.append(run_inline(pipeline, workers=2, clock=MovedClock()))
    texts = [row[2] for step in collected.rows()["out"] for row in step]
    assert texts == ["first at 1000300", "second at 1000500"]


def test_keys_that_share_a_hash_remain_different_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is cut to four bits, in the routing of records as in the state."""
    from headrace.tasks import routing

    whole = routing.hash_columns
    monkeypatch.setattr(routing, "hash_columns", lambda columns: whole(columns) & (0xF << 60))
    items = [Item(f"k{i % 50}", i, i) for i in range(500)]
    results = []
    for workers, rows in ((1, 500), (3, 20)):
        pipeline, stream = drawn(items)
        node = pipeline.compute("sum", Sum(), keys={stream: "key"})
        collected = Collected()
        pipeline.sink("out", node, collected.sink("out"))
        run_inline(
            pipeline,
            workers=workers,
            rows=rows,
            bins=16,
            exchange="shuffle",
            processes=2,
            slices=16,
            base_every=2,
        )
        last: dict[str, int] = {}
        for step in collected.rows()["out"]:
            last.update({key: value for key, _, value in step})
        results.append(last)
    expected = {f"k{k}": sum(range(k, 500, 50)) for k in range(50)}
    assert results == [expected, expected]


class Sum(hr.Computation):
    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.n
        ctx.produce("out", self.total.value)


class Both(hr.Computation):
    """A wall timer that sets an event timer behind the watermark."""

    ring = hr.Timer(hr.WALL_TIME)
    event = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.ring.set(int(ctx.now.timestamp() * 1e6) + 500)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", f"{timer.name} {ctx.input_ended}")
        if timer.name == "ring":
            self.event.set(5)


def test_a_wall_timer_after_the_end_of_input_reaches_the_sinks_and_its_event_timer_fires(
    tmp_path: Path,
) -> None:
    pipeline, stream = drawn([Item("a", 1, 10)])
    node = pipeline.compute("both", Both(), keys={stream: "key"})
    pipeline.sink("out", node, hr.sinks.Files(tmp_path))
    store, clock = MemoryStore(), MovedClock()
    run_inline(pipeline, store=store, clock=clock)
    clock.now += 1_000
    run_inline(pipeline, store=store, clock=clock)
    lines = [
        line for path in sorted(tmp_path.glob("step-*")) for line in path.read_text().splitlines()
    ]
    assert [json.loads(line)["value"] for line in lines] == ["ring True", "event True"]
    times = [json.loads(line)["timestamp"] for line in lines]
    assert times == ["1970-01-01T00:00:00.000010Z", "1970-01-01T00:00:00.000005Z"]


def test_steps_without_input_draw_different_numbers() -> None:
    class Draws(hr.Computation):
        ring = hr.Timer(hr.WALL_TIME)
        out = hr.Output(float)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.ring.set(int(ctx.now.timestamp() * 1e6) + 10)

        def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
            ctx.produce("out", ctx.random())
            self.ring.set(timer.time_us + 10)

    pipeline, stream = drawn([Item("a", 1, 10)])
    node = pipeline.compute("draws", Draws(), keys={stream: "key"})
    collected = Collected()
    pipeline.sink("out", node, collected.sink("out"))
    store, clock = MemoryStore(), MovedClock()
    for _ in range(4):
        run_inline(pipeline, store=store, clock=clock)
        clock.now += 10
    drawn_numbers = [row[2] for step in collected.rows()["out"] for row in step]
    assert len(set(drawn_numbers)) == len(drawn_numbers) >= 3


class Point(msgspec.Struct):
    x: int


class Nested(msgspec.Struct):
    point: Point
    by_name: dict[str, int]
    points: list[Point]


def test_nested_values_arrive_as_their_declared_types() -> None:
    class Makes(hr.Computation):
        out = hr.Output(Nested)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            ctx.produce("out", Nested(Point(record.value.n), {"a": 1}, [Point(2)]))

    class Sees(hr.Computation):
        out = hr.Output(str)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            ctx.produce("out", repr(record.value))

    pipeline, stream = drawn([Item("a", 7, 1)])
    makes = pipeline.compute("makes", Makes(), keys={stream: "key"})
    sees = pipeline.compute("sees", Sees(), keys={makes: "key"})
    collected = Collected()
    pipeline.sink("out", sees, collected.sink("out"))
    run_inline(pipeline)
    ((row,),) = collected.rows()["out"]
    assert row[2] == "Nested(point=Point(x=7), by_name={'a': 1}, points=[Point(x=2)])"


class Total(msgspec.Struct):
    n: int


class Shares(hr.Computation):
    """Produces the very object that it keeps changing."""

    total = hr.ValueState(Total, default=Total(0))
    out = hr.Output(Total)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value.n += record.value.n
        ctx.produce("out", self.total.value)


@pytest.mark.parametrize("rows", [1, 100])
def test_a_produced_value_is_what_it_was_when_it_was_produced(rows: int) -> None:
    pipeline, stream = drawn([Item("a", n, n) for n in (1, 2, 3)])
    node = pipeline.compute("shares", Shares(), keys={stream: "key"})
    collected = Collected()
    pipeline.sink("out", node, collected.sink("out"))
    run_inline(pipeline, rows=rows)
    assert [row[2] for step in collected.rows()["out"] for row in step] == [1, 3, 6]


class Reserved(msgspec.Struct):
    """Fields that bear the names of columns that every stream has in some form."""

    hash: int
    order: int
    timestamp_us: int
    at: int


class PassOn(hr.Computation):
    out = hr.Output(Reserved)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value)


def test_fields_may_have_the_names_that_the_engine_uses_for_its_own_columns() -> None:
    pipeline, collected = hr.Pipeline("names"), Collected()
    items = [Reserved(1, 2, 3, 4), Reserved(5, 6, 7, 8)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Reserved, event_time="at"))
    first = pipeline.compute("first", PassOn(), keys={stream: "hash"})
    second = pipeline.compute("second", PassOn(), keys={first: "order"})
    pipeline.sink("out", second, collected.sink("out"))
    run_inline(pipeline)
    ((rows,),) = collected.rows().values()
    assert sorted(rows) == [(2, 4, 1, 2, 3, 4), (6, 8, 5, 6, 7, 8)]


def test_a_field_with_two_underscores_is_refused() -> None:
    with pytest.raises(PipelineError, match="'__key0' cannot be a field"):
        hr.sources.Iterable([], {"__key0": int}, event_time="__key0").values()


class Telling(Elsewhere):
    """Tells when a try runs."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[int, threading.Event] = defaultdict(threading.Event)

    def run(self, plan: Any) -> Any:
        self.running[plan.step].set()
        return super().run(plan)


def numbered(deliver: Any, count: int = 6) -> hr.Pipeline:
    pipeline = hr.Pipeline("released")
    items = [Reserved(number, 0, 0, number) for number in range(count)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Reserved, event_time="at"))
    node = pipeline.compute("it", PassOn(), keys={stream: "hash"})
    pipeline.sink("out", node, hr.sinks.Calls(deliver, idempotent=True))
    return pipeline


def test_a_sink_is_served_while_the_next_step_runs_in_order_and_to_the_end() -> None:
    runner, delivered = Telling(), []

    def deliver(step: int, rows: Any) -> None:
        if step < 6:  # the last one has no step after it
            assert runner.running[step + 1].wait(30), "the next step waits for the sink"
        delivered.append((step, rows.column("hash").to_pylist()))

    driver = run_inline(numbered(deliver), rows=1, runner=runner)
    assert delivered == [(step, [step - 1]) for step in range(1, 7)]
    head = driver.coordinator.head
    assert head is not None and not head.unreleased, "the end notes what was delivered"


def test_a_sink_that_fails_stops_the_pipeline_and_gets_its_step_again() -> None:
    store, delivered = MemoryStore(), []

    def deliver(step: int, rows: Any) -> None:
        if step == 3 and not delivered.count("failed"):
            delivered.append("failed")
            raise OSError("no room")
        delivered.append(step)

    with pytest.raises(UserCodeError, match="no room"):
        run_inline(numbered(deliver), rows=1, runner=Telling(), store=store)
    assert delivered == [1, 2, "failed"]
    run_inline(numbered(deliver), rows=1, runner=Telling(), store=store)
    steps = [step for step in delivered[3:] if step > 2]
    # the claim of the second start is a step too
    assert steps == sorted(set(steps)) and steps[0] == 3 and len(steps) == 4
