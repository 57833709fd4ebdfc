"""Runs of a small pipeline over files, to its end of one kind or another."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from headrace.ledger.head import Head


class Hit(msgspec.Struct, frozen=True):
    page: str
    at: int


class Site:
    """A directory of hits, and a pipeline that counts them in windows of 10 µs."""

    def __init__(self, place: Path, runner: Any = "inline") -> None:
        self.hits = place / "in"
        self.hits.mkdir(exist_ok=True)
        self.storage = place / "state"
        self.runner = runner
        self.head: Head | None = None

    def write(self, name: str, hits: Sequence[tuple[str, int]], *, end: str = "\n") -> None:
        lines = [json.dumps({"page": page, "at": at}) for page, at in hits]
        (self.hits / name).write_text("\n".join(lines) + end)

    def pipeline(self, produced: list[Any], source: hr.sources.Source | None = None) -> hr.Pipeline:
        pipeline = hr.Pipeline("site")
        source = source or hr.sources.Files(self.hits, type=Hit, event_time="at", format="jsonl")
        hits = pipeline.inject("hits", source, watermark=hr.ascending())
        counts = pipeline.compute("counts", hr.ops.TumblingCount("10us"), keys={hits: "page"})
        pipeline.sink(
            "out", counts, hr.sinks.Calls(lambda _, rows: produced.extend(rows.to_pylist()))
        )
        return pipeline

    def run(
        self, end: str, *, source: hr.sources.Source | None = None, pipeline: Any = None, **how: Any
    ) -> Counter[tuple[str, int]]:
        """Run it to an end; return how many hits a page has in each window that was produced."""
        produced: list[Any] = []
        made = (pipeline or self.pipeline)(produced, source)
        with hr.run(made, storage=self.storage, runner=self.runner, workers=2, **how) as job:
            assert getattr(job, end)(300)
        self.head = job.head
        self.ended = job.ended
        found: Counter[tuple[str, int]] = Counter()
        for row in produced:
            window = row["key"], row["window_start"].microsecond
            assert window not in found, "a window is produced once"
            found[window] = row["count"]
        return found

    def late(self) -> int:
        assert self.head is not None
        return sum(of.late for of in self.head.counts.values())
