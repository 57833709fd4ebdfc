"""A pipeline for campaigns of kills: keys, timers and two layers, and an oracle that is plain Python.

As a program: a driver on Spark that is killed and started again. Used by tests/spark/test_kill_campaign.py.

usage: kill_campaign.py FOLDER RECORDS EXCHANGE CHECKPOINT_STEPS
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.runners.base import Runner
from headrace.storage import LocalStore
from tests.support.durations import us
from tests.support.recorder import Effect, recorder
from tests.support.stopping import stop_once

KEYS, WINDOW, ROWS = 11, 40, 50


class Hit(msgspec.Struct):
    key: int
    amount: int
    at: int


class Numbered(msgspec.Struct):
    number: int
    total: int


class Summed(msgspec.Struct):
    window: int
    total: int


def hits(records: int | None = None) -> Iterator[Hit]:
    """Return so many records; None for as many as anybody wants."""
    numbers = itertools.count() if records is None else range(records)
    return (Hit(n * 7 % KEYS, n % 5, n) for n in numbers)


class Counts(hr.Computation):
    """Numbers a key's hits, and sums them up by windows of time, so that one lost or doubled shows.

    At some records it stops its own process (SIGSTOP), the first time that one is met.
    """

    deterministic = True
    number = hr.ValueState(int, default=0)
    total = hr.ValueState(int, default=0)
    windows = hr.MapState(int, int)
    end = hr.Timer(hr.EVENT_TIME)
    numbers = hr.Output(Numbered)
    sums = hr.Output(Summed)

    def __init__(self, marks: Path, stops: frozenset[int]) -> None:
        self.marks = str(marks)
        self.stops = stops

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        hit = record.value
        if hit.at in self.stops:
            stop_once(f"{self.marks}/{hit.at}")
        self.number.value += 1
        self.total.value += hit.amount
        ctx.produce("numbers", Numbered(self.number.value, self.total.value))
        window = hit.at // WINDOW
        self.windows[window] = self.windows.get(window, 0) + hit.amount
        self.end.set((window + 1) * WINDOW, tag=str(window))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        window = int(timer.tag)
        ctx.produce("sums", Summed(window, self.windows[window]))
        del self.windows[window]


class Totals(hr.Computation):
    """A layer below: how many keys a window had, and what all of them came to."""

    deterministic = True
    keys = hr.ValueState(int, default=0)
    total = hr.ValueState(int, default=0)
    end = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(Numbered)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.keys.value += 1
        self.total.value += record.value.total
        self.end.set(record.timestamp_us + WINDOW)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", Numbered(self.keys.value, self.total.value))
        self.keys.clear()
        self.total.clear()


def expected(records: int) -> Counter[Effect]:
    """Return what must have had an effect, by the plainest means."""
    found: Counter[Effect] = Counter()
    numbers: Counter[int] = Counter()
    totals: Counter[int] = Counter()
    sums: dict[tuple[int, int], int] = {}  # by window and key
    for n in range(records):
        key, amount = n * 7 % KEYS, n % 5
        numbers[key] += 1
        totals[key] += amount
        found["numbers", key, numbers[key], totals[key]] += 1
        sums[n // WINDOW, key] = sums.get((n // WINDOW, key), 0) + amount
    windows: dict[int, list[int]] = {}
    for (window, key), total in sums.items():
        found["sums", key, total, window] += 1
        windows.setdefault(window, []).append(total)
    for window, of_keys in windows.items():
        found["totals", window, len(of_keys), sum(of_keys)] += 1
    return found


def pipeline(folder: Path, records: int | None, stops: frozenset[int]) -> hr.Pipeline:
    drawn = hr.Pipeline("struck")
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    source = hr.sources.Iterable(lambda: hits(records), Hit, event_time="at")
    stream = drawn.inject("hits", source, watermark=hr.bounded_delay(us(0)))
    counts = drawn.compute("counts", Counts(marks, stops), keys={stream: "key"})
    totals = drawn.compute("totals", Totals(), keys={counts["sums"]: "window"})
    for name, made in {
        "numbers": counts["numbers"],
        "sums": counts["sums"],
        "totals": totals,
    }.items():
        sink = hr.sinks.Calls(recorder(folder / "effects", name), idempotent=True)
        drawn.sink(name, made, sink)
    return drawn


def driver(
    folder: Path,
    runner: Runner,
    records: int | None,
    exchange: Any,
    checkpoint_steps: int,
    stops: frozenset[int] = frozenset(),
) -> Driver:
    return Driver(
        pipeline(folder, records, stops),
        LocalStore(folder / "storage"),
        runner,
        workers=2,
        bins=16,
        drain=True,
        settings=Settings(
            limit=hr.Limit(ROWS, 1 << 20),
            exchange=exchange,
            checkpoint_steps=checkpoint_steps,
            slices=4,
            base_every=4,
            retain_steps=2,
            sweep_every=16,
            max_attempts=20,
        ),
    )


def main() -> None:
    from headrace.runners.spark.runner import SparkRunner
    from tests.spark.conftest import session

    folder, records, exchange, every = sys.argv[1:]
    spark = session("local[2,4]")
    started = driver(
        Path(folder), SparkRunner(spark.sparkContext), int(records), exchange, int(every)
    )
    started.run()
    started.close()
    spark.stop()


if __name__ == "__main__":
    main()
