"""A driver process that is killed; see test_kills_at_system_calls.py, and
tests/faults/kills/test_remote_pipelines.py.

usage: killed_driver.py STORAGE EFFECTS RECORDS
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import msgspec

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.runners.inline import InlineRunner
from headrace.storage import open_store


class Hit(msgspec.Struct):
    key: int
    amount: int
    at: int


class Numbered(msgspec.Struct):
    number: int
    total: int


class Numbering(hr.Computation):
    number = hr.ValueState(int, default=0)
    total = hr.ValueState(int, default=0)
    out = hr.Output(Numbered)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        self.total.value += record.value.amount
        ctx.produce("out", Numbered(self.number.value, self.total.value))


def main() -> None:
    storage, effects, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    told = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def take(step: int, rows: Any) -> None:
        columns = [rows.column(name).to_pylist() for name in ("key", "number", "total")]
        line = json.dumps({"id": step, "rows": list(zip(*columns, strict=True))})
        os.write(told, f"\n{line}\n".encode())  # (the line before may be torn)
        os.fsync(told)

    pipeline = hr.Pipeline("struck")
    hits = [Hit(n % 7, n % 5, n) for n in range(records)]
    stream = pipeline.inject("hits", hr.sources.Iterable(hits, Hit, event_time="at"))
    counts = pipeline.compute("counts", Numbering(), keys={stream: "key"})
    pipeline.sink("counts", counts, hr.sinks.Calls(take, idempotent=True))
    driver = Driver(
        pipeline,
        open_store(storage),
        InlineRunner(),
        workers=2,
        bins=16,
        drain=True,
        settings=Settings(
            limit=hr.Limit(4, 1 << 20), base_every=3, slices=2, retain_steps=1, sweep_every=4
        ),
    )
    try:
        driver.run()
    finally:
        driver.close()


if __name__ == "__main__":
    main()
