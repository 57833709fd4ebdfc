"""Pipelines drawn from the oracle's specs, and drivers for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np

import headrace as hr
from headrace.driver.driver import Clock, Driver, Settings
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, Store
from tests.property.oracle.model import NodeSpec, Spec
from tests.support.durations import us


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

    deterministic = True

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


class ColumnarSums(hr.ColumnarComputation):
    """The same as ``Sums`` (without chains), all keys at once.

    Its rules look at a key's records one after another, so it goes by their rank within the key: the
    first records of all keys, then the second ones, and so on.
    """

    deterministic = True

    sums = hr.TableState({"total": int, "seen": int})
    by_b = hr.TableState({"count": int}, sub={"b": int})
    due = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(Pair)

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        ranks = np.arange(len(batch)) - np.repeat(batch.starts, batch.counts)
        for rank in range(int(ranks.max()) + 1):
            now = ranks == rank
            keys, a, b = batch.row_keys[now], batch["a"][now], batch["b"][now]
            rows = self.sums.at(keys)
            total, seen = rows["total"] + a, rows["seen"] + 1
            seen = np.where(seen > 6, seen - 3, seen)
            rows.upsert(total=total, seen=seen)
            counted = self.by_b.at(keys, b=b)
            counted.upsert(count=counted["count"] + 1)
            if self.spec.delay is not None:
                self.due.set(keys, keys.times_us + self.spec.delay, tags=b % 2)
            if self.spec.echo:
                ctx.produce("out", keys, {"a": total, "b": seen})

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        first = fired.keys.starts
        ranks = np.arange(len(fired)) - np.repeat(first, np.diff(first, append=len(fired)))
        for rank in range(int(ranks.max()) + 1):
            self._fire(ctx, fired.keys[ranks == rank])

    def _fire(self, ctx: hr.BatchContext, keys: hr.Keys) -> None:
        total = self.sums.at(keys)["total"]
        spread, values = np.repeat(np.arange(len(keys)), 8), np.tile(np.arange(8), len(keys))
        rows = self.by_b.at(keys[spread], b=values)
        there, counts = rows.exists.reshape(-1, 8), rows["count"].reshape(-1, 8)
        busiest = np.argmax(np.where(there, counts * 8 + np.arange(8), -1), axis=1)
        ctx.produce("out", keys, {"a": total, "b": busiest})
        lowest = np.argmax(there, axis=1)
        many = there.sum(axis=1) > 2
        gone = (values == np.repeat(lowest, 8)) & np.repeat(many, 8)
        rows.delete(gone)


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


def draw(
    spec: Spec,
    collected: Collected,
    *,
    weak: bool = False,
    retain: Collection[str] = (),
    groups: Sequence[str] = (),
    of: Sequence[str] = (),
) -> hr.Pipeline:
    """Return the pipeline of a spec, with a sink (weak or not) at each computation.

    ``retain`` names the computations whose productions are retained; ``of`` says which group each
    computation is of, over and over.
    """
    pipeline = hr.Pipeline("drawn", groups=groups)
    streams: dict[str, Any] = {}
    for name, records in spec.injectors.items():
        items = [Input(*record) for record in records]
        source = hr.sources.Iterable(items, Input, event_time="time")
        streams[name] = pipeline.inject(name, source, watermark=hr.bounded_delay(us(spec.bound)))
    for number, node in enumerate(spec.nodes):
        keys = {streams[s]: ("key" if keyed == "same" else keyed) for s, keyed in node.inputs}
        kind = ColumnarSums if node.columnar else Sums
        streams[node.name] = pipeline.compute(
            node.name,
            kind(node),
            keys=keys,
            retain=["out"] if node.name in retain else [],
            group=of[number % len(of)] if of else None,
        )
        pipeline.sink(node.name, streams[node.name], collected.sink(node.name), weak=weak)
    return pipeline


class Elsewhere(InlineRunner):
    """An inline runner that says that its tasks run elsewhere, so that sinks have threads."""

    concurrent = True


def run_inline(
    pipeline: hr.Pipeline,
    *,
    store: Store | None = None,
    workers: int = 1,
    bins: int = 16,
    rows: int = 100,
    exchange: str = "driver",
    seed: int = 0,
    processes: int = 1,
    runner: Runner | None = None,
    clock: Clock | None = None,
    **upkeep: int,
) -> Driver:
    """Run a pipeline until its input has ended; return the driver."""
    driver = Driver(
        pipeline,
        store or MemoryStore(),
        runner or InlineRunner(seed, processes),
        workers=workers,
        bins=bins,
        drain=True,
        clock=clock,
        settings=Settings(limit=hr.Limit(rows, 1 << 30), exchange=exchange, **upkeep),
    )
    try:
        driver.run()
    finally:
        driver.close()
    return driver


def run_until_read(
    pipeline: hr.Pipeline,
    store: Store,
    count: int,
    *,
    rows: int,
    workers: int = 2,
    bins: int = 16,
    runner: Runner | None = None,
    **upkeep: int,
) -> None:
    """Run until the (only) injector has been read up to a position, then stop."""
    (injector,) = pipeline.injectors
    driver = Driver(
        pipeline,
        store,
        runner or InlineRunner(),
        workers=workers,
        bins=bins,
        drain=True,
        settings=Settings(limit=hr.Limit(rows, 1 << 30), **upkeep),
    )

    def note(summary: hr.StepSummary) -> None:
        if summary.head.positions[injector] >= count:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    driver.run()
