"""A pipeline that is changed while it runs, and all that its storage holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import headrace as hr
from headrace.checkpoints.state_files import StateReaders, state_files
from headrace.driver.change import Change
from headrace.driver.driver import Driver
from headrace.keyspace.layout import Layout
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.storage import Store
from tests.support.pipelines import Collected


class Item(msgspec.Struct):
    """A record; ``page`` is what it is about."""

    page: str
    n: int
    at: int


def items(count: int) -> list[Item]:
    """Return records in order of time."""
    return [Item(f"p{(i * 7) % 5}", i % 4, i * 10) for i in range(count)]


class Count(hr.Computation):
    """Counts a page's records, and says its version."""

    count = hr.ValueState(int, default=0)
    out = hr.Output(str)
    version = "v1"

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", f"{self.version} {self.count.value}")


class CountBetter(Count):
    """New code for the same state, with one more."""

    total = hr.ValueState(int, default=0)
    version = "v2"

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        super().process_record(ctx, record)
        self.total.value += record.value.n


class CountNewer(Count):
    """New code for the same state."""

    version = "v2"


class CountOtherwise(hr.Computation):
    """Code that cannot read that state."""

    count = hr.ValueState(str, default="")
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += "x"
        ctx.produce("out", self.count.value)


class Remembers(hr.Computation):
    """Has state of every kind, and timers in both domains."""

    last = hr.ValueState(int, default=0)
    seen = hr.ListState(int)
    by = hr.MapState(int, int)
    later = hr.Timer(hr.EVENT_TIME)
    soon = hr.Timer(hr.WALL_TIME)
    out = hr.Output(str)

    def __init__(self, wall: bool = False) -> None:
        self.wall = wall

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.last.value += 1
        self.seen.append(record.value.n)
        self.by[record.value.n] = self.last.value
        self.later.set(record.timestamp_us + 100_000)
        if self.wall:
            self.soon.set(ctx.now)
        ctx.produce("out", f"{self.last.value} {list(self.seen)} {dict(self.by.items())}")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", f"{timer.name} at {timer.time_us}: {self.last.value}")


class RemembersInBulk(hr.ColumnarComputation):
    """The same, all pages at once."""

    totals = hr.TableState({"total": int})
    by = hr.TableState({"times": int}, sub={"n": int})
    later = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(str)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        rows.upsert(total=rows["total"] + batch.sum("n"))
        seen = self.by.at(batch.keys, n=batch.last("n"))
        seen.upsert(times=seen["times"] + 1)
        self.later.set(batch.keys, batch.keys.times_us + 100_000)
        ctx.produce("out", batch.keys, {"value": rows["total"].astype(str)})

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, {"value": fired.keys.times_us.astype(str)})


def begin(records: list[Item], collected: Collected, **computations: hr.Computation) -> hr.Pipeline:
    """Draw computations that read one injector, each with a sink of its name."""
    pipeline = hr.Pipeline("changing")
    stream = pipeline.inject("items", hr.sources.Iterable(records, Item, event_time="at"))
    for name, computation in computations.items():
        node = pipeline.compute(name, computation, keys={stream: "page"})
        pipeline.sink(name, node, collected.sink(name))
    return pipeline


def add(
    pipeline: hr.Pipeline, name: str, computation: hr.Computation, collected: Collected
) -> hr.Pipeline:
    """Add a computation of that injector to a drawing, with a sink."""
    node = pipeline.compute(name, computation, keys={pipeline.streams()["items"]: "page"})
    pipeline.sink(name, node, collected.sink(name))
    return pipeline


Act = Callable[[Driver], object]


def run(
    pipeline: hr.Pipeline,
    store: Store,
    acts: dict[int, Act] | None = None,
    *,
    rows: int = 5,
    workers: int = 2,
    bins: int = 16,
    runner: Any = None,
    drain: bool = True,
    clock: Any = None,
    upto: int = 1 << 40,
    **upkeep: Any,
) -> Driver:
    """Run until the input has ended, or so much was read; do something when so many records were."""
    driver = Driver(
        pipeline,
        store,
        runner or InlineRunner(),
        workers=workers,
        bins=bins,
        drain=drain,
        clock=clock,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 30), **upkeep),
    )
    todo = dict(acts or {})

    def note(summary: hr.StepSummary) -> None:
        read = summary.head.positions.get("items", 0)
        for at in sorted(todo):
            if read >= at:
                todo.pop(at)(driver)
        if read >= upto:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    driver.requests.look_at_once()
    try:
        driver.run()
    finally:
        driver.close()
    assert not todo, "not all acts were reached"
    return driver


def ask(
    driver: Driver,
    draw: Callable[[hr.Pipeline], hr.Pipeline | None],
    *,
    begin: dict[str, str] | None = None,
    forget: list[str] | None = None,
) -> Change:
    """Ask a driver for a changed copy of what it runs."""
    drawing = driver.pipeline.copy()
    change = Change(draw(drawing) or drawing, begin or {}, forget or [])
    driver.request_change(change)
    return change


def rows_of(store: Store, name: str) -> dict[str, list[Any]]:
    """Return all that storage holds of a computation: by section, rows sorted."""
    head = Ledger(store).open()
    assert head is not None
    layout = Layout.from_wire(head.layout)
    found: dict[str, list[Any]] = {}
    for worker in range(layout.workers):
        sources = StateReaders(store, layout, worker, state_files(head)).sources(name)
        for section in sources.sections:
            table = sources.rows(section, layout.ranges_of(worker))
            if table is not None:
                found.setdefault(section, []).extend(map(str, table.to_pylist()))
    return {section: sorted(rows) for section, rows in found.items()}


def values(collected: Collected, sink: str) -> list[tuple[int, list[str]]]:
    """Return (step, values) of a sink."""
    return [(step, [row[-1] for row in rows]) for step, rows in collected.steps.get(sink, [])]


def flat(collected: Collected, sink: str) -> list[tuple[Any, ...]]:
    """Return all rows of a sink, in order."""
    return [row for _, rows in collected.steps.get(sink, []) for row in rows]
