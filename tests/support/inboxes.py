"""A pipeline that tells what it read of an inbox, and in which order."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

import headrace as hr
from headrace.driver.driver import Clock, Driver, Settings
from headrace.runners.inline import InlineRunner
from headrace.sources.inbox import Producer
from headrace.storage import Store


class Item(msgspec.Struct):
    """A record: whose it is, and which one of its batch."""

    who: str
    batch: int
    n: int
    at: int


class Told(msgspec.Struct):
    """What the pipeline tells of a record: how many of this producer it had read before."""

    who: str
    batch: int
    n: int
    before: int


class Tell(hr.Computation):
    """Counts records, and passes each on with the count."""

    count = hr.ValueState(int, default=0)
    out = hr.Output(Told)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        item = record.value
        ctx.produce("out", Told(item.who, item.batch, item.n, self.count.value))
        self.count.value += 1


class StopWhenIdle(Clock):
    """A clock that stops the driver as soon as it would wait: what is there was read."""

    def __init__(self) -> None:
        self.driver: Driver | None = None

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        assert self.driver is not None
        self.driver.request_stop(drain=False)


def producer(inbox: Any, name: str) -> Producer:
    return Producer(inbox, name, type=Item, event_time="at")


def items(who: str, batch: int, rows: int) -> list[Item]:
    """Return the records of a batch, so that they can be told from any other's."""
    return [Item(who, batch, n, 10 * batch + n) for n in range(rows)]


def pipeline(inbox: Any, sink: Any, *, expect: tuple[str, ...] = (), **more: Any) -> hr.Pipeline:
    """Return a pipeline that reads an inbox; more goes to the source."""
    drawn = hr.Pipeline("inbox")
    source = hr.sources.Inbox(inbox, Item, event_time="at", **more)
    stream = drawn.inject("items", source, expect=expect)
    told = drawn.compute("told", Tell(), keys={stream: "who"}, late="process")
    drawn.sink("told", told, sink)
    return drawn


def run_until_idle(
    drawn: hr.Pipeline, storage: Store, *, rows: int = 1_000, workers: int = 1
) -> Driver:
    """Run inline until everything that is there was read, committed and released."""
    clock = StopWhenIdle()
    driver = Driver(
        drawn,
        storage,
        InlineRunner(),
        workers=workers,
        bins=16,
        clock=clock,
        settings=Settings(limit=hr.Limit(rows, 1 << 20), base_every=3, retain_steps=1, slices=4),
    )
    clock.driver = driver
    try:
        driver.run()
    finally:
        driver.close()
    return driver
