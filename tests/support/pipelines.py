"""Pipelines drawn from the oracle's specs, and drivers for them."""

from __future__ import annotations

from typing import Any

import msgspec

import headrace as hr
from headrace.driver import Clock, Driver, Settings
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, Store
from tests.oracle.model import NodeSpec, Spec


class Pair(msgspec.Struct):
    """A record of the test pipelines."""

    a: int
    b: int


class Input(msgspec.Struct):
    """An injected record."""

    a: int
    b: int
    time: int


class Sums(hr.Computation):
    """The oracle's computation, as a user would write it."""

    total = hr.ValueState(int, default=0)
    seen = hr.ListState(int)
    by_b = hr.MapState(int, int)
    left = hr.ValueState(int, default=0)
    due = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(Pair)

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        value = record.value
        self.total.value += value.a
        self.seen.append(value.b)
        self.by_b[value.b] = self.by_b.get(value.b, 0) + 1
        if self.spec.delay is not None:
            self.due.set(record.timestamp_us + self.spec.delay, tag=str(value.b % 2))
            self.left.value = 2 if self.spec.chain else 0
        if len(self.seen) > 6:
            self.seen.replace(list(self.seen)[3:])
        if self.spec.echo:
            ctx.produce("out", Pair(self.total.value, len(self.seen)))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        busiest = max(self.by_b.items(), key=lambda pair: (pair[1], pair[0]))
        ctx.produce("out", Pair(self.total.value, busiest[0]))
        if self.spec.chain and self.left.value > 0:
            self.left.value -= 1
            self.due.set(timer.time_us + self.spec.chain, tag=timer.tag)
        elif len(self.by_b) > 2:
            del self.by_b[min(self.by_b)]


class Collected:
    """What sinks received: by sink, (step, rows)."""

    def __init__(self) -> None:
        self.steps: dict[str, list[tuple[int, list[tuple[Any, ...]]]]] = {}

    def sink(self, name: str) -> hr.sinks.Calls:
        self.steps.setdefault(name, [])

        def take(step: int, rows: Any) -> None:
            micros = rows.column("timestamp").cast("int64").to_pylist()
            columns = [rows.column(n).to_pylist() for n in rows.column_names if n != "timestamp"]
            found = list(zip(columns[0], micros, *columns[1:], strict=True))
            previous = self.steps[name]
            if previous and previous[-1][0] >= step:  # a step delivered twice is recognised
                known = dict(previous)
                assert known.get(step) == found, f"step {step} came again with other rows"
                return
            previous.append((step, found))

        return hr.sinks.Calls(take, idempotent=True)

    def rows(self) -> dict[str, list[list[tuple[Any, ...]]]]:
        """Return the non-empty steps of each sink, in order."""
        return {name: [rows for _, rows in steps] for name, steps in self.steps.items() if steps}


def draw(spec: Spec, collected: Collected) -> hr.Pipeline:
    """Return the pipeline of a spec, with a sink at each computation."""
    pipeline = hr.Pipeline("drawn")
    streams: dict[str, Any] = {}
    for name, records in spec.injectors.items():
        items = [Input(*record) for record in records]
        source = hr.sources.Iterable(items, Input, event_time="time")
        streams[name] = pipeline.inject(name, source, watermark=hr.bounded_delay(spec.bound))
    for node in spec.nodes:
        keys = {streams[s]: ("key" if keyed == "same" else keyed) for s, keyed in node.inputs}
        streams[node.name] = pipeline.compute(node.name, Sums(node), keys=keys)
        pipeline.sink(node.name, streams[node.name], collected.sink(node.name))
    return pipeline


def run_inline(
    pipeline: hr.Pipeline, *, store: Store | None = None, workers: int = 1, bins: int = 16,
    rows: int = 100, exchange: str = "driver", seed: int = 0, processes: int = 1,
    runner: Runner | None = None, clock: Clock | None = None, **upkeep: int,
) -> Driver:  # fmt: skip
    """Run a pipeline until its input has ended; return the driver."""
    driver = Driver(
        pipeline, store or MemoryStore(), runner or InlineRunner(seed, processes), workers=workers,
        bins=bins, drain=True, clock=clock,
        settings=Settings(limit=hr.Limit(rows, 1 << 30), exchange=exchange, **upkeep),
    )  # fmt: skip
    try:
        driver.run()
    finally:
        driver.close()
    return driver


def run_until_read(
    pipeline: hr.Pipeline, store: Store, count: int, *, rows: int, workers: int = 2, bins: int = 16,
    runner: Runner | None = None, **upkeep: int,
) -> None:  # fmt: skip
    """Run until the (only) injector has been read up to a position, then stop."""
    (injector,) = pipeline.injectors
    driver = Driver(
        pipeline, store, runner or InlineRunner(), workers=workers, bins=bins, drain=True,
        settings=Settings(limit=hr.Limit(rows, 1 << 30), **upkeep),
    )  # fmt: skip

    def note(summary: hr.StepSummary) -> None:
        if summary.head.positions[injector] >= count:
            driver.ask_to_stop(drain=False)

    driver.listeners.append(note)
    driver.run()
