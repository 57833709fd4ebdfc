"""A computation that shows which records were late."""

from __future__ import annotations

import headrace as hr


class Windows(hr.Computation):
    """Counts records in windows of 10, and says so when the watermark has reached their end."""

    counts = hr.MapState(int, int)
    close = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        start = record.timestamp_us // 10 * 10
        self.counts[start] = self.counts.get(start, 0) + 1
        self.close.set(start + 10, tag=str(start))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.counts.pop(int(timer.tag)))
