"""Sensors that have stopped reporting, found by the low watermark, without false alarms.

$ headrace run examples/gallery/devices.py --storage state/devices --runner inline --available-now
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from devices_data import GATEWAYS, Message, messages

import headrace as hr


class Report(msgspec.Struct, frozen=True):
    """A device has fallen silent, or is back after a silence."""

    kind: Literal["silent", "back"]
    last: datetime  # when it was heard of before
    every: timedelta


class Expect(hr.Computation):
    """Expects something of each device. It is silent once it has missed three reports in a row."""

    last = hr.ValueState(datetime)
    every = hr.ValueState(timedelta)
    silent = hr.ValueState(bool, default=False)
    overdue = hr.Timer(hr.EVENT_TIME)
    reports = hr.Output(Report)

    def process_record(self, ctx: hr.Context, record: hr.Record[Message]) -> None:
        message = record.value
        if self.silent.value and self.last.value:
            ctx.produce("reports", Report("back", self.last.value, message.every))
        self.silent.clear()
        if message.kind == "retired":
            self.overdue.cancel()
            self.last.clear()
            self.every.clear()
        else:
            self.last.value = message.at
            self.every.value = message.every
            self.overdue.set(message.at + 3 * message.every)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        self.silent.value = True
        assert self.last.value and self.every.value
        ctx.produce("reports", Report("silent", self.last.value, self.every.value))


def show(step: int, reports: Any) -> None:
    """Print the reports."""
    for report in sorted(reports.to_pylist(), key=lambda row: (row["timestamp"], row["key"])):
        what = f"{report['kind']:6}  last heard of at {report['last']:%H:%M}"
        print(
            f"{report['timestamp']:%H:%M}  {report['key']:13}  {what}, expected every {report['every']}"
        )


def pipeline() -> hr.Pipeline:
    """Build the pipeline."""
    p = hr.Pipeline("devices")
    source = hr.sources.Iterable(messages, Message, event_time="at", partition="gateway")
    heard = p.inject("messages", source, watermark=hr.bounded_delay("2m"), expect=GATEWAYS)
    reports = p.compute("expect", Expect(), keys={heard: "device"}, ordered=True)
    p.sink("reports", reports, hr.sinks.Calls(show))
    return p
