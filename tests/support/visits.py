"""A computation that tests of driven pipelines share: it counts, and says so; a timer says it once more."""

from __future__ import annotations

import headrace as hr


class Count(hr.Computation):
    seen = hr.ValueState(int, default=0)
    later = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1
        self.later.set(record.timestamp_us + 10_000_000)
        ctx.produce("out", self.seen.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", -self.seen.value)
