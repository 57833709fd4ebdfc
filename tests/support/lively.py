"""A driver of a pipeline with much to see: a stuck partition, a hot key, a slow sink, late records.

usage: lively.py FOLDER [--spark] [--rate N] [--stuck-after S] [--slow-sink S] [--seconds S]

It runs until it is killed, or for so many seconds. Tests of the dashboard look at its storage.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from headrace.pipeline.source import Offer, Position

SECOND = 1_000_000
REGIONS = ("eu-west", "us-east", "ap-south")


class Order(msgspec.Struct):
    shop: str
    region: str
    cents: int
    at: int


class Total(msgspec.Struct):
    shop: str
    cents: int


class Enrich(hr.Computation):
    """Adds up what each shop has sold, and passes on large orders."""

    orders = hr.ValueState(int, default=0)
    cents = hr.ValueState(int, default=0)
    out = hr.Output(Total)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.orders.value += 1
        self.cents.value += record.value.cents
        ctx.produce("out", Total(record.value.shop, self.cents.value))


class Sessions(hr.Computation):
    """Ends a session when a shop has sold nothing for a while."""

    count = hr.ValueState(int, default=0)
    over = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        self.over.set(record.timestamp_us + 5 * SECOND)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.count.value)
        self.count.value = 0


class Score(hr.Computation):
    """Works a little for each total, so that time goes somewhere."""

    best = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        value = sum(range(300)) % 7 + record.value.cents
        if value > self.best.value:
            self.best.value = value
            ctx.produce("out", value)


class Arriving(hr.sources.Iterable):
    """Orders that come one after another, so many in a second."""

    rate: float
    begun_s: float

    def offer(self, position: Position, limit: hr.Limit) -> Offer | None:
        due = int((time.time() - self.begun_s) * self.rate) - position
        rows = min(limit.rows, due)
        return super().offer(position, hr.Limit(rows, limit.bytes)) if rows > 0 else None


def pipeline(folder: Path, rate: float, stuck_after_s: float, slow_s: float) -> hr.Pipeline:
    """Return the pipeline. It goes on where it was when it is drawn again for the same folder."""
    begun = folder / "begun"
    if not begun.exists():
        begun.write_text(repr(time.time()))
    begun_s = float(begun.read_text())

    def orders() -> Iterator[Order]:
        for n in itertools.count():
            at_s = n / rate
            stuck = at_s > stuck_after_s
            region = REGIONS[n % (2 if stuck else 3)]
            shop = "harbour" if n % 2 else f"shop {n * 7 % 400:03}"
            late = 240 if n % 997 == 996 else 0
            yield Order(shop, region, n % 900, round((begun_s + at_s - late) * SECOND))

    def slow(step: int, rows: Any) -> None:
        time.sleep(slow_s)

    source = Arriving(orders, Order, event_time="at", partition="region")
    source.rate, source.begun_s = rate, begun_s
    drawn = hr.Pipeline("orders")
    stream = drawn.inject("orders", source, watermark=hr.bounded_delay("2s"), expect=list(REGIONS))
    enrich = drawn.compute("enrich", Enrich(), keys={stream: "shop"})
    sessions = drawn.compute("sessions", Sessions(), keys={stream: "shop"})
    score = drawn.compute("score", Score(), keys={enrich: "shop"})
    drawn.sink("ledger", enrich, hr.sinks.Calls(lambda step, rows: None, idempotent=True))
    drawn.sink("sessions", sessions, hr.sinks.Calls(lambda step, rows: None, idempotent=True))
    drawn.sink("scores", score, hr.sinks.Calls(slow, idempotent=True))
    return drawn


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--rate", type=float, default=400)
    parser.add_argument("--stuck-after", type=float, default=1e9)
    parser.add_argument("--slow-sink", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    folder = chosen.folder
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pipeline(folder, chosen.rate, chosen.stuck_after, chosen.slow_sink)
    with hr.run(
        drawn,
        storage=folder / "storage",
        workers=2,
        bins=64,
        runner="spark" if chosen.spark else "inline",
        settings=hr.Settings(limit=hr.Limit(5_000, 1 << 22), base_every=16),
        heartbeat=hr.HeartbeatSettings(period_s=0.2, patience_s=2.0),
    ) as job:
        print("runs", flush=True)
        time.sleep(min(chosen.seconds, 1e8))
        job.stop()


if __name__ == "__main__":
    main()
