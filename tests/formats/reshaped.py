"""The pipeline of the second fixture: its state has had another shape, and some rows still have.

It is never changed.
"""

from __future__ import annotations

from typing import Any

import msgspec

import headrace as hr
from tests.formats.kept_pipeline import SETTINGS, Item, items

__all__ = ["SETTINGS", "First", "FirstSums", "Second", "SecondSums", "draw", "found", "items"]


class Old(msgspec.Struct):
    n: int


class New(msgspec.Struct):
    n: float
    said: str = "now"


class Note(msgspec.Struct):
    n: int


class LongNote(Note):
    said: str = "nothing"


class First(hr.Computation):
    """As it was."""

    model = hr.ValueState(Old)
    added = hr.ValueState(Old)
    by = hr.MapState(str, int)
    held = hr.PerWorker(int, default=0, merge=int.__add__)
    note = hr.Posted(Note)
    out = hr.Output(str)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        if record.stream == "note":
            return
        self.model.value = self.added.value = Old(record.value.n)
        self.by[record.value.id] = record.value.n
        self.held.value += 1
        ctx.post(10**9, Note(record.value.n))


class Second(First):
    """As it is."""

    model = hr.ValueState(New, version=2, upgrade={1: (Old, lambda old: New(old.n / 2, "then"))})  # type: ignore[assignment]
    added = hr.ValueState(Old | None)  # type: ignore[assignment]
    by = hr.MapState(str, str, version=3, upgrade={1: str, 2: None})  # type: ignore[assignment]
    held = hr.PerWorker(str, default="", merge=str.__add__, version=2, upgrade={1: str})  # type: ignore[assignment]
    note = hr.Posted(LongNote)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        if record.stream == "note":
            ctx.produce("out", f"{record.value.n} {record.value.said}")
            return
        self.model.value = New(record.value.n)
        self.added.value = None
        self.by[record.value.id] = record.value.id
        self.held.value += "x"


class FirstSums(hr.ColumnarComputation):
    """As it was."""

    sums = hr.TableState({"n": int, "gone": str})
    other = hr.TableState({"n": int})

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"), gone="x")
        self.other.at(batch.keys).upsert(n=batch.counts)


class SecondSums(FirstSums):
    """As it is."""

    sums = hr.TableState({"n": int, "more": str}, added={"more": "?"}, dropped=["gone"])  # type: ignore[assignment]
    other = hr.TableState({"n": float}, version=2, upgrade={1: lambda old: {"n": old["n"] / 4}})  # type: ignore[assignment]

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"), more="!")
        self.other.at(batch.keys).upsert(n=batch.counts.astype(float))


def draw(*, second: bool) -> hr.Pipeline:
    """Return the pipeline, as it was or as it is."""
    pipeline = hr.Pipeline("reshaped")
    source = hr.sources.Iterable([], Item, event_time="at")
    read = pipeline.inject("items", source)
    it = pipeline.compute("it", Second() if second else First(), keys={read: "key"})
    sums = SecondSums() if second else FirstSums()
    pipeline.compute("sums", sums, keys={read: "key"})
    pipeline.sink("out", it, hr.sinks.Console())
    return pipeline


def found(t: Any) -> dict[str, Any]:
    """Return all that is stored, as plain data."""
    return {
        "it": {key: msgspec.to_builtins(t.state("it", key)) for key in sorted(t.keys("it"))},
        "sums": {key: t.state("sums", key) for key in sorted(t.keys("sums"))},
        "held": {str(worker): held for worker, held in t.per_worker("it").items()},
    }
