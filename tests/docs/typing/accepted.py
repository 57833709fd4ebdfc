"""What users write, and the types that they get. Type checkers read this file; nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import msgspec

import headrace as hr


class Hit(msgspec.Struct):
    page: str
    user: str


def both(one: set[str], other: set[str]) -> set[str]:
    return one | other


class Visits(hr.Computation):
    """State of every kind, read and changed as the built-in types are."""

    last = hr.ValueState(str)
    total = hr.ValueState(int, default=0)
    recent: hr.ValueState[int | None] = hr.ValueState(int | None)
    users = hr.ListState(str)
    counts = hr.MapState(str, int)
    hits = hr.MapState(int, list[Hit])
    over = hr.Timer(hr.EVENT_TIME)
    retry = hr.Timer(hr.WALL_TIME, holds=True)
    seen = hr.PerWorker(set[str], default=set(), merge=both)
    totals = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record[Hit]) -> None:
        assert_type(record.value, Hit)
        assert_type(record.value.page, str)
        assert_type(self.last.value, str | None)
        assert_type(self.total.value, int)
        assert_type(self.recent.value, int | None)
        assert_type(self.counts["a"], int)
        assert_type(self.counts.get("a"), int | None)
        assert_type(self.counts.get("a", 0), int)
        assert_type(self.counts.pop("a"), int)
        assert_type(self.counts.setdefault("a", 0), int)
        assert_type(self.hits[1], list[Hit])
        assert_type(self.users[0], str)
        assert_type(self.users[1:], list[str])
        assert_type(self.users.pop(), str)
        assert_type(iter(self.users), Iterator[str])
        assert_type(self.over.when_us(tag="a"), int | None)
        assert_type(self.seen.value, set[str])
        assert_type(sorted(self.counts), list[str])
        assert_type(sum(self.counts.values()), int)
        self.total.value += 1
        self.counts["a"] = 1
        self.counts.update({"b": 2})
        self.users.insert(0, "ann")
        self.users[0:2] = ["ann"]
        del self.users[0], self.counts["a"]
        self.hits.setdefault(1, []).append(record.value)
        self.over.set(record.timestamp)
        self.retry.set(record.timestamp_us, hold=record.timestamp)
        ctx.produce("totals", self.total.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        assert_type(timer.tag, str)
        for page, count in self.counts.items():
            assert_type(page, str)
            assert_type(count, int)


assert_type(Visits.counts, hr.MapState[str, int])
assert_type(Visits.total, hr.ValueState[int])
assert_type(Visits.last, hr.ValueState[str | None])
assert_type(Visits.totals, hr.Output[int])


class Totals(hr.ColumnarComputation):
    """Many keys at once."""

    totals = hr.TableState({"count": int})
    changed = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        count = rows["count"] + batch.counts
        rows.upsert(count=count)
        ctx.produce("changed", batch.keys, count)


def pipeline() -> hr.Pipeline:
    p = hr.Pipeline("visits")
    hits = p.inject(
        "hits",
        hr.sources.Files("hits.jsonl", event_time="at", type=Hit),
        watermark=hr.bounded_delay("10s"),
    )
    visits = p.compute("visits", Visits(), keys={hits: "page"})
    p.compute("totals", Totals(), keys={visits["totals"]: "key"})
    p.compute("mixed", Visits(), keys={hits: "page", visits["totals"]: ("key",), visits: "key"})
    streams = {hits: "page", visits["totals"]: "key"}
    p.compute("named", Visits(), keys=streams)
    p.sink("totals", visits, hr.sinks.Console())
    return p


def added(p: hr.Pipeline, hits: hr.Stream) -> hr.Node:
    return p.compute("added", Visits(), keys=dict.fromkeys([hits], "page"))


def as_today(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "seen": 0}


class Upgraded(hr.Computation):
    hit = hr.ValueState(Hit, version=2, upgrade={1: as_today})
