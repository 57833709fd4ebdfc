"""A small pipeline with a bit of everything that state can be, and storage on which it has run."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

import headrace as hr
from headrace.storage import MemoryStore, Store

SECOND = 1_000_000
UPKEEP = {"base_every": 4, "slices": 4, "retain_steps": 6}


class Item(msgspec.Struct):
    user: str
    n: int
    at: int


class Reversed:
    """A codec of a user's own."""

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


class Point(msgspec.Struct, frozen=True):
    x: float
    name: str | None


class Cells(hr.Computation):
    """Per-record state of every kind, with timers, a hold, and a value of the worker."""

    total = hr.ValueState(int, default=0)
    last = hr.ValueState(Point)
    seen = hr.ListState(int)
    by_n = hr.MapState(int, str)
    secret = hr.ValueState(str, codec=Reversed())
    due = hr.Timer(hr.EVENT_TIME)
    check = hr.Timer(hr.WALL_TIME, holds=True)
    worked = hr.PerWorker(int, default=0, merge=lambda a, b: a + b)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        item = record.value
        self.total.value += item.n
        self.last.value = Point(item.n / 2, item.user if item.n % 2 else None)
        self.seen.append(item.n)
        self.by_n[item.n] = item.user
        if len(self.seen) > 3:
            self.seen.replace(list(self.seen)[2:])
            del self.by_n[item.n]
        self.secret.value = item.user
        self.due.set(record.timestamp_us + 500 * SECOND, tag=str(item.n % 3))
        self.check.set(2 * 10**15, hold=record.timestamp_us)
        self.worked.value += 1
        ctx.produce("out", self.total.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", -1)


class Tables(hr.ColumnarComputation):
    """Columnar state: a table, one with a sub column, a timer, and posts."""

    sums = hr.TableState({"total": int, "label": str})
    by_n = hr.TableState({"count": int}, sub={"n": int})
    due = hr.Timer(hr.EVENT_TIME)
    later = hr.Posted(Item)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        if batch.stream == "later":
            return
        rows = self.sums.at(batch.keys)
        labels = np.array([f"of {n}" for n in batch.counts.tolist()], dtype=object)
        rows.upsert(total=rows["total"] + batch.sum("n"), label=labels)
        parts = batch.by(n=batch["n"] % 4)
        counted = self.by_n.at(parts.keys, n=parts.sub["n"])
        counted.upsert(count=counted["count"] + parts.counts)
        self.due.set(batch.keys, batch.keys.times_us + 700 * SECOND, tags=batch.counts)
        n = len(batch.keys)
        values = {"user": ["x"] * n, "n": batch.counts, "at": batch.keys.times_us}
        ctx.post(batch.keys, values, times_us=batch.keys.times_us + 900 * SECOND)
        ctx.produce("out", batch.keys, rows["total"])

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, np.full(len(fired), -1))


class Ordered(hr.Computation):
    last = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.last.value = record.value.n


def draw(groups: bool = False) -> hr.Pipeline:
    """Return the pipeline: two keys, ids, a retained stream, records that wait."""
    names = ["one", "two"] if groups else []
    pipeline = hr.Pipeline("everything", groups=names)
    source = hr.sources.Iterable([], Item, event_time="at")
    items = pipeline.inject(
        "items", source, watermark=hr.bounded_delay("300s"), ids=("user", "n", "at"), horizon="1h"
    )
    cells = pipeline.compute("cells", Cells(), keys={items: "user"}, retain=["out"])
    tables = pipeline.compute(
        "tables", Tables(), keys={items: ("n", "user")}, group="two" if groups else None
    )
    ordered = pipeline.compute("ordered", Ordered(), keys={items: "n"}, ordered=True)
    for node in (cells, tables, ordered):
        pipeline.sink(node.name, node, hr.sinks.Calls(lambda step, rows: None))
    return pipeline


def items(first: int, count: int) -> list[Item]:
    """Return some records, the same for the same numbers."""
    return [Item(f"u{n * 7 % 11}", n % 9, n * SECOND) for n in range(first, first + count)]


def driven(
    store: Store | None = None, *, steps: int = 12, groups: bool = False, **more: Any
) -> Any:
    """Return a harness that has made some steps of a few records each."""
    settings = hr.Settings(**{**UPKEEP, **more})
    t = hr.testing.drive(
        draw(groups),
        workers=3,
        bins=8,
        storage=store or MemoryStore(),
        settings=settings,
        clock=1_700_000_000 * SECOND,
    )
    for step in range(steps):
        t.push_many("items", items(step * 5, 5))
        t.step()
        t.clock("+10s")
    return t
