"""The model's programs as a user would write them, and the pipelines that are drawn with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

import headrace as hr
from headrace.eventtime.timestamps import MAX_TIME, to_micros
from tests.property.model.plain import InjectorSpec, NodeSpec
from tests.support.durations import us

_BS = 32  # more than any b can be


class Pair(msgspec.Struct, frozen=True):
    """A record."""

    a: int
    b: int


class Sent(msgspec.Struct, frozen=True):
    """A record as it comes from outside, perhaps more than once."""

    a: int
    b: int
    id: int | None


class Program(hr.Computation):
    """The program of a ``NodeSpec``."""

    deterministic = True

    total = hr.ValueState(int, default=0)
    seen = hr.ListState(int)
    by_b = hr.MapState(int, int)
    left = hr.ValueState(int, default=0)
    due = hr.Timer(hr.EVENT_TIME)
    also = hr.Timer(hr.EVENT_TIME)
    tick = hr.Timer(hr.WALL_TIME)
    out = hr.Output(Pair)

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        spec, value = self.spec, record.value
        tag = str(value.b % 2)
        self.total.value += value.a
        self.seen.append(value.b)
        if len(self.seen) > 4:
            self.seen.replace(list(self.seen)[1:])
        self.by_b[value.b] = self.by_b.get(value.b, 0) + 1
        self.left.value = spec.chain
        if spec.delay is not None:
            at = min(record.timestamp_us + spec.delay, MAX_TIME)
            self.due.set(at, tag=tag)
            if spec.chain:
                self.also.set(at, tag=tag)
        if spec.wall is not None:
            self.tick.set(to_micros(ctx.now) + spec.wall, tag=tag)
        if value.a == 0:
            self.due.cancel(tag="0")
            self.tick.cancel(tag="1")
        if spec.echo:
            ctx.produce("out", Pair(self.total.value, len(self.seen)))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        code = 10 * ("also", "due", "tick").index(timer.name) + int(timer.tag)
        ctx.produce("out", Pair(self.total.value, code))
        if len(self.by_b):
            del self.by_b[next(iter(self.by_b))]
        if timer.name != "also" and self.left.value > 0:
            self.left.value -= 1
            self.due.set(min(timer.time_us + 3, MAX_TIME), tag=timer.tag)
            self.tick.set(to_micros(ctx.now) + 4 - 4 * self.left.value, tag="0")


class ColumnarProgram(hr.ColumnarComputation):
    """The same for all keys at once, without chains. Goes by the rank of a record within its key."""

    deterministic = True

    sums = hr.TableState({"total": int, "seen": int})
    by_b = hr.TableState({"count": int}, sub={"b": int})
    due = hr.Timer(hr.EVENT_TIME)
    tick = hr.Timer(hr.WALL_TIME)
    out = hr.Output(Pair)

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        spec = self.spec
        ranks = np.arange(len(batch)) - np.repeat(batch.starts, batch.counts)
        for rank in range(int(ranks.max()) + 1):
            now = ranks == rank
            keys, a, b = batch.row_keys[now], batch["a"][now], batch["b"][now]
            rows = self.sums.at(keys)
            total, seen = rows["total"] + a, np.minimum(rows["seen"] + 1, 4)
            rows.upsert(total=total, seen=seen)
            counted = self.by_b.at(keys, b=b)
            counted.upsert(count=counted["count"] + 1)
            if spec.delay is not None:
                times = np.minimum(keys.times_us, MAX_TIME - spec.delay) + spec.delay
                self.due.set(keys, times, tags=b % 2)
            if spec.wall is not None:
                self.tick.set(keys, to_micros(ctx.now) + spec.wall, tags=b % 2)
            self.due.cancel(keys[a == 0], tags=0)
            self.tick.cancel(keys[a == 0], tags=1)
            if spec.echo:
                ctx.produce("out", keys, {"a": total, "b": seen})

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        code = 10 * ("also", "due", "tick").index(fired.name) + fired.tags
        ctx.produce("out", fired.keys, {"a": self.sums.at(fired.keys)["total"], "b": code})
        hashes = fired.keys.hashes
        first = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
        ranks = np.arange(len(fired)) - np.repeat(first, np.diff(first, append=len(fired)))
        for rank in range(int(ranks.max()) + 1):
            self._forget_lowest(fired.keys[ranks == rank])

    def _forget_lowest(self, keys: hr.Keys) -> None:
        spread, values = np.repeat(np.arange(len(keys)), _BS), np.tile(np.arange(_BS), len(keys))
        rows = self.by_b.at(keys[spread], b=values)
        there = rows.exists.reshape(-1, _BS)
        lowest = np.where(there.any(axis=1), np.argmax(there, axis=1), -1)
        rows.delete(values == np.repeat(lowest, _BS))


def drawn(
    injectors: list[InjectorSpec], nodes: list[NodeSpec], groups: Sequence[str] = ()
) -> hr.Pipeline:
    """Return the pipeline of the specs; its computations take turns in being of the groups."""
    pipeline = hr.Pipeline("modelled", groups=groups)
    streams: dict[str, Any] = {}
    for spec in injectors:
        strategy: Any = hr.exact() if spec.bound is None else hr.bounded_delay(us(spec.bound))
        ids: dict[str, Any] = (
            {} if spec.horizon is None else {"ids": "id", "horizon": us(spec.horizon)}
        )
        streams[spec.name] = pipeline.inject(
            spec.name,
            hr.sources.Inbox("memory:modelled", Sent, event_time="a"),
            watermark=strategy,
            expect=spec.expect,
            idle_after=us(spec.idle_after),
            **ids,
        )
    for node in nodes:
        keys = {streams[name]: ("key" if by == "same" else by) for name, by in node.inputs}
        kind = ColumnarProgram if node.columnar else Program
        late: Any = node.late
        made = pipeline.compute(
            node.name,
            kind(node),
            keys=keys,
            late=late,
            allowed_lateness=us(node.allowed),
            group=groups[int(node.name.removeprefix("node")) % len(groups)] if groups else None,
        )
        for stream in made.outputs.values():
            streams[stream.name] = stream
    return pipeline
