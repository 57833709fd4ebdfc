"""The pipeline whose storage is kept for ever, in every format that was released. It is never changed.

It has state, timers, posts and streams of every kind. What else is written has drawings of its own: state
of older shapes (``reshaped``), light steps and inboxes (``uncheckpointed``), and what is added to
the format.
"""

from __future__ import annotations

from typing import Any

import msgspec

import headrace as hr
from headrace.storage import LocalStore, MemoryStore
from headrace.testing import drive

SETTINGS = hr.Settings(slices=4, base_every=4, retain_steps=2, clean_per_step=1_000)
BINS = 8
KEYS = ("a", "b", "c", "d")


class Item(msgspec.Struct, frozen=True):
    id: str
    key: str
    n: int
    at: int


def items(first: int, last: int) -> list[Item]:
    """Return records by their numbers; every fifth comes twice."""
    numbers = [n for n in range(first, last) for _ in range(1 + (n % 5 == 0))]
    return [Item(f"id{n}", KEYS[n % 3], n, 10 * n) for n in numbers]


class Model(msgspec.Struct):
    n: int
    mean: float
    names: list[str] = []
    last: Item | None = None


class Reversed:
    """A codec of the user's own."""

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()[::-1]


class Keeps(hr.Computation):
    """State of every kind that a key can have, timers in both domains, one with holds, and posts."""

    model = hr.ValueState(Model)
    text = hr.ValueState(str, default="", codec=Reversed())
    each = hr.ListState(int)
    by = hr.MapState(str, float)
    held = hr.PerWorker(int, default=0, merge=int.__add__)
    later = hr.Timer(hr.EVENT_TIME)
    soon = hr.Timer(hr.WALL_TIME, holds=True)
    note = hr.Posted(Model)
    out = hr.Output(Item)
    said = hr.Output(str)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        if record.stream == "note":
            ctx.produce("said", f"note of {record.value.n}")
            return
        item = record.value
        before = self.model.value or Model(0, 0.0)
        self.model.value = Model(before.n + 1, item.n / 2, [*before.names, item.id][-2:], item)
        self.text.value += "x"
        self.each.append(item.n)
        self.by[f"n{item.n % 2}"] = float(item.n)
        self.held.value += 1
        self.later.set(record.timestamp_us + 1_000, tag=f"t{item.n % 2}")
        self.soon.set(10**16, hold=record.timestamp_us + 500)
        ctx.post(record.timestamp_us + 2_000, Model(item.n, 0.5))
        ctx.produce("out", item)

    def process_timer(self, ctx: Any, timer: hr.Fired) -> None:
        ctx.produce("said", f"{timer.name} {timer.tag} at {timer.time_us}: {self.model.value.n}")


class Sums(hr.ColumnarComputation):
    """Tables, one with rows by a sub column that live for a time; timers and posts in bulk."""

    sums = hr.TableState({"n": int, "half": float, "said": str, "raw": bytes, "odd": bool})
    each = hr.TableState({"times": int}, sub={"n": int}, ttl="1s")
    later = hr.Timer(hr.EVENT_TIME)
    note = hr.Posted(int)
    said = hr.Output(str)

    def process_batch(self, ctx: Any, batch: Any) -> None:
        if batch.stream == "note":
            ctx.produce("said", batch.row_keys, batch["value"].astype(str).astype(object))
            return
        rows = self.sums.at(batch.keys)
        total = rows["n"] + batch.sum("n")
        rows.upsert(n=total, half=total / 2, said="so far", raw=b"\x00\x01", odd=total % 2 == 1)
        seen = self.each.at(batch.keys, n=batch.last("n"))
        seen.upsert(times=seen["times"] + 1)
        self.later.set(batch.keys, batch.keys.times_us + 3_000, tags=7)
        ctx.post(batch.keys, batch.sum("n"), times_us=batch.keys.times_us + 2_500)

    def process_timers(self, ctx: Any, fired: Any) -> None:
        said = self.sums.at(fired.keys)["n"].astype(str).astype(object)
        ctx.produce("said", fired.keys, said)


class InOrder(hr.Computation):
    """Says what came, in order of event time: what waits for that is stored."""

    said = hr.Output(str)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        ctx.produce("said", f"{record.value.id} at {record.timestamp_us}")


class Gone(hr.Computation):
    """Is removed, and its state kept."""

    count = hr.ValueState(int, default=0)
    never = hr.Timer(hr.EVENT_TIME)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.count.value += 1
        self.never.set(10**15)

    def process_timer(self, ctx: Any, timer: hr.Fired) -> None:
        """Nothing."""


class Again(hr.Computation):
    """Is added, and reads again what was retained."""

    each = hr.ListState(int)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.each.append(record.value.n)


def draw() -> hr.Pipeline:
    """Return the pipeline."""
    pipeline = hr.Pipeline("kept")
    source = hr.sources.Iterable([], Item, event_time="at")
    read = pipeline.inject(
        "items", source, ids="id", horizon="1h", watermark=hr.bounded_delay("1ms")
    )
    keeps = pipeline.compute("keeps", Keeps(), keys={read: "key"}, retain=["out"])
    sums = pipeline.compute("sums", Sums(), keys={read: "key"})
    ordered = pipeline.compute("in_order", InOrder(), keys={keeps["out"]: "key"}, ordered=True)
    pipeline.compute("gone", Gone(), keys={read: "key"})
    pipeline.sink("keeps", keeps["said"], hr.sinks.Console())
    pipeline.sink("sums", sums["said"], hr.sinks.Console(), weak=True)
    pipeline.sink("in_order", ordered["said"], hr.sinks.Console())
    return pipeline


def found(t: Any) -> dict[str, Any]:
    """Return all that is stored, as plain data."""
    head = t.current()
    of_keys = {
        name: {
            key: {
                "state": msgspec.to_builtins(_plain(t.state(name, key))),
                "timers": [[one.name, one.tag, one.time_us] for one in t.timers(name, key)],
            }
            for key in sorted(t.keys(name))
        }
        for name in ("keeps", "sums", "in_order")
    }
    return {
        "keys": of_keys,
        "duplicates": head.counts["items.ids"].duplicates,
        "per_worker": {str(at): held for at, held in sorted(t.per_worker("keeps").items())},
        "workers": t.layout.workers,
        "bins": len(t.layout),
        "migrations": [[m.id, str(m.state)] for m in head.migrations],
        "answers": [[a.number, a.applied] for a in head.answers],
        "counts": {name: counts.records for name, counts in sorted(head.counts.items())},
        "watermarks": {name: list(of) for name, of in sorted(head.watermarks.items())},
        "removed": sorted(head.stored_schema.get("removed", [])),
    }


def _plain(value: Any) -> Any:
    """Return what a table's rows have by sub value with that as text."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return value


def taken_over(storage: str) -> Any:
    """Take a storage over in which a step was begun: its source must be there with what belongs to it."""
    t = looked_at(storage)
    t.push_many("items", items(0, 15))
    t.resume()
    return t


def looked_at(storage: str) -> Any:
    """Return what reads a storage, and does not go on with it."""
    t = drive(draw(), storage=MemoryStore(), workers=3, bins=BINS, settings=SETTINGS)
    t.close()
    t._store = LocalStore(storage)
    return t


def gone_on_with(t: Any) -> dict[str, Any]:
    """Go on from the crash to the end of all input; return what was found on the way."""
    t.run()
    then = found(t)
    kept_pipeline = draw()
    stream = kept_pipeline.nodes["keeps"]["out"]
    kept_pipeline.compute("again", Again(), keys={stream: "key"})
    t.change(kept_pipeline, begin={"again": "beginning"})
    t.push_many("items", items(10, 18))
    t.run()
    t.end()
    t.run()
    return {
        "gone_on_with": then,
        "read_again": {key: t.state("again", key)["each"] for key in sorted(t.keys("again"))},
        "said": {
            name: sorted([o.key, o.value, o.timestamp_us] for o in t.outputs(name))
            for name in ("keeps", "sums", "in_order")
        },
    }
