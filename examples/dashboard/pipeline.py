"""Orders of shops in three regions: totals, sessions, and scores that a slow system receives."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr

SECOND = 1_000_000


class Order(msgspec.Struct):
    """An order of a shop; ``at`` is in microseconds since 1970."""

    shop: str
    cents: int
    at: int


class Total(msgspec.Struct):
    """What a shop has sold so far."""

    shop: str
    cents: int


class Totals(hr.Computation):
    """Adds up what each shop has sold."""

    orders = hr.ValueState(int, default=0)
    cents = hr.ValueState(int, default=0)
    large = hr.Counter()
    out = hr.Output(Total)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        """Add an order."""
        self.orders.value += 1
        self.cents.value += record.value.cents
        if record.value.cents >= 900:
            self.large.add()
        ctx.produce("out", Total(record.value.shop, self.cents.value))


class Sessions(hr.Computation):
    """Counts the orders of a shop until it has sold nothing for five seconds."""

    count = hr.ValueState(int, default=0)
    over = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        """Count an order, and put off the end of the session."""
        self.count.value += 1
        self.over.set(record.timestamp_us + 5 * SECOND)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        """End the session."""
        ctx.produce("out", self.count.value)
        self.count.value = 0


class Score(hr.Computation):
    """Rates each total, which takes a moment."""

    best = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        """Rate a total."""
        score = sum(range(2_000)) % 97 + record.value.cents
        if score > self.best.value:
            self.best.value = score
            ctx.produce("out", score)


class Warehouse:
    """The system that receives scores. It takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def receive(self, step: int, rows: Any) -> None:
        """Receive the scores of a step."""
        time.sleep(self.seconds)


def ignore(step: int, rows: Any) -> None:
    """Receive rows at once."""


def draw(folder: Path, warehouse: Warehouse) -> hr.Pipeline:
    """Return the pipeline, which reads the files of a folder: one for each region."""
    pipeline = hr.Pipeline("orders")
    source = hr.sources.Files(
        folder / "*.jsonl",
        type=Order,
        event_time="at",
        watch=True,
        partition=r"([a-z-]+)\.jsonl",
    )
    orders = pipeline.inject("orders", source, watermark=hr.bounded_delay("2s"))
    totals = pipeline.compute("totals", Totals(), keys={orders: "shop"})
    sessions = pipeline.compute("sessions", Sessions(), keys={orders: "shop"})
    score = pipeline.compute("score", Score(), keys={totals: "shop"})
    pipeline.sink("ledger", totals, hr.sinks.Calls(ignore, idempotent=True))
    pipeline.sink("sessions", sessions, hr.sinks.Calls(ignore, idempotent=True))
    pipeline.sink("warehouse", score, hr.sinks.Calls(warehouse.receive, idempotent=True))
    return pipeline
