"""A driver whose counters a test compares with its outputs; see tests/soak/test_counters_after_kills.py.

usage: counted_driver.py FOLDER [--to-the-end]

It reads FOLDER/hits.jsonl, which it makes at first, slowly enough to be killed; or to the end.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from pathlib import Path

import msgspec

import headrace as hr

RECORDS = 60_000
SECOND = 1_000_000


class Hit(msgspec.Struct):
    key: str
    amount: int
    at: int


class Counted(msgspec.Struct):
    key: str
    number: int
    large: bool
    timer: bool


class Counts(hr.Computation):
    """Numbers the records of each key, counts large ones, and says when a key was quiet."""

    number = hr.ValueState(int, default=0)
    quiet = hr.Timer(hr.EVENT_TIME)
    large = hr.Counter()
    out = hr.Output(Counted)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        large = record.value.amount > 90
        if large:
            self.large.add()
        ctx.produce("out", Counted(record.value.key, self.number.value, large, False))
        self.quiet.set(record.timestamp_us + 2 * SECOND)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", Counted(str(ctx.key), self.number.value, False, True))


def make(file: Path) -> None:
    """Write the records, in order of event time."""
    rng, at = random.Random(5), 0
    lines = []
    for _ in range(RECORDS):
        at += rng.randrange(20_000)
        hit = {"key": f"k{rng.randrange(200)}", "amount": rng.randrange(100), "at": at}
        lines.append(json.dumps(hit) + "\n")
    begun = file.with_suffix(".begun")
    begun.write_text("".join(lines))
    begun.rename(file)


def main() -> None:
    """Run until it is killed, or to the end."""
    folder, to_the_end = Path(sys.argv[1]), "--to-the-end" in sys.argv
    logging.basicConfig(level=logging.ERROR)
    if not (file := folder / "hits.jsonl").exists():
        make(file)
    pipeline = hr.Pipeline("counted")
    source = hr.sources.Files(file, type=Hit, event_time="at")
    hits = pipeline.inject("hits", source, watermark=hr.ascending())
    counts = pipeline.compute("counts", Counts(), keys={hits: "key"})
    pipeline.sink("counts", counts, hr.sinks.Files(folder / "out", format="jsonl"))
    rows = 2_000 if to_the_end else 40

    def slowly(done: hr.StepSummary) -> None:
        if not to_the_end:
            time.sleep(0.01)

    with hr.run(
        pipeline,
        storage=folder / "storage",
        runner="inline",
        workers=2,
        bins=16,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 22), base_every=8),
        heartbeat=hr.HeartbeatSettings(period_s=0.1, patience_s=0.4),
        listeners=[slowly],
    ) as job:
        job.drain()


if __name__ == "__main__":
    main()
