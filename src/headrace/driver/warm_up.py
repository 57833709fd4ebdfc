"""The warm-up: runs a small built-in pipeline in memory, so that a process has done all of it once.

The first step of a fresh process takes much longer than later ones, because modules are loaded and
caches are filled at first use. It took 0.6 s against 0.02 s when it was measured. A standby does
this while another driver leads. It runs no user code and touches no storage.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.computation.batches import FiredBatch, KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import Computation
from headrace.computation.context import Context
from headrace.computation.declarations import ListState, MapState, Output, Timer, ValueState
from headrace.computation.records import Fired, Record
from headrace.coordinator.settings import Settings
from headrace.driver.driver import Driver
from headrace.eventtime.domains import EVENT_TIME
from headrace.pipeline import Pipeline
from headrace.pipeline.source import Limit
from headrace.protocol.step_summary import Listener
from headrace.runners.inline import InlineRunner
from headrace.sinks.calls import Calls
from headrace.sources.iterables import Iterable
from headrace.storage.memory import MemoryStore

_RECORDS, _A_STEP = 64, 16


class Line(msgspec.Struct):
    """A record of the warm-up."""

    part: str
    words: int
    at: int


class ByRecord(Computation):
    """A computation with state of every kind, and a timer."""

    count = ValueState(int, default=0)
    newest: ListState[int] = ListState(int)
    by_words: MapState[int, int] = MapState(int, int)
    later = Timer(EVENT_TIME)
    out = Output(Line)

    def process_record(self, ctx: Context, record: Record) -> None:
        """Use each state, and set the timer."""
        line = record.value
        self.count.value += 1
        self.newest.append(line.words)
        self.by_words[line.words] = self.count.value
        self.later.set(record.timestamp_us + 10)
        ctx.produce("out", Line(line.part, self.count.value, line.at))

    def process_timer(self, ctx: Context, timer: Fired) -> None:
        """Use state again, from a timer."""
        ctx.produce("out", Line("timer", len(self.newest), timer.time_us))


class InBulk(ColumnarComputation):
    """The same as a columnar computation."""

    totals = TableState({"words": int})
    later = Timer(EVENT_TIME)
    out = Output(int)

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        """Use the table, and set timers."""
        rows = self.totals.at(batch.keys)
        rows.upsert(words=rows["words"] + batch.sum("words"))
        self.later.set(batch.keys, batch.keys.times_us + 10)
        ctx.produce("out", batch.keys, {"value": rows["words"]})

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        """Produce from timers."""
        ctx.produce("out", fired.keys, {"value": fired.keys.times_us})


def warm_up_pipeline() -> Pipeline:
    """Return the pipeline of the warm-up."""

    def forget(step: int, rows: Any) -> None:
        rows.to_pylist()

    pipeline = Pipeline("warm_up")
    lines = [Line(f"part {n % 5}", n % 3, n * 7) for n in range(_RECORDS)]
    stream = pipeline.inject("lines", Iterable(lines, Line, event_time="at"))
    by_record = pipeline.compute("by_record", ByRecord(), keys={stream: "part"})
    in_bulk = pipeline.compute("in_bulk", InBulk(), keys={by_record: "part"})
    pipeline.sink("by_record", by_record, Calls(forget, idempotent=True))
    pipeline.sink("in_bulk", in_bulk, Calls(forget, idempotent=True))
    return pipeline


def run_warm_up() -> None:
    """Run the pipeline: stop after its first step, then start again and run to the end.

    A driver that takes over does the same.
    """
    store = MemoryStore()
    for half in (True, False):
        settings = Settings(limit=Limit(_A_STEP, 1 << 20), slices=2, base_every=2, retain_steps=1)
        driver = Driver(
            warm_up_pipeline(),
            store,
            InlineRunner(),
            workers=2,
            bins=4,
            settings=settings,
            drain=True,
        )
        if half:
            driver.listeners.append(_stops(driver))
        try:
            driver.run()
        finally:
            driver.close()


def _stops(driver: Driver) -> Listener:
    return lambda summary: driver.request_stop(drain=False)
