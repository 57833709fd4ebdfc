"""The bills of electricity meters: what each one has used, by a timer of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import headrace as hr

#: Microseconds from the first reading of a bill until the meter is billed.
PERIOD_US = 20_000_000


class Reading(msgspec.Struct, frozen=True):
    """What a meter reports."""

    meter: int
    watt_hours: int


class Bill(msgspec.Struct, frozen=True):
    """What a meter has used since its last bill."""

    readings: int
    watt_hours: int


class Meter(hr.ColumnarComputation):
    """Adds up each meter's readings, and bills them when its period is over."""

    open = hr.TableState({"readings": int, "watt_hours": int})
    due = hr.Timer(hr.EVENT_TIME)
    bills = hr.Output(Bill)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.open.at(batch.keys)
        new = ~rows.exists
        self.due.set(batch.keys[new], batch.min(batch.timestamps_us)[new] + PERIOD_US)
        rows.upsert(
            readings=rows["readings"] + batch.counts,
            watt_hours=rows["watt_hours"] + batch.sum("watt_hours"),
        )

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        rows = self.open.at(fired.keys)
        bill = {"readings": rows["readings"], "watt_hours": rows["watt_hours"]}
        ctx.produce("bills", fired.keys, bill)
        rows.delete()


def draw(source: hr.sources.Source, receive: Callable[[int, Any], None]) -> hr.Pipeline:
    """Return the pipeline: readings in, bills out."""
    p = hr.Pipeline("meters")
    readings = p.inject("readings", source, watermark=hr.ascending())
    meters = p.compute("meters", Meter(), keys={readings: "meter"})
    p.sink("bills", meters["bills"], hr.sinks.Calls(receive))
    return p
