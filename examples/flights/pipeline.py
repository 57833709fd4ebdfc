"""The flights job: what each airport and carrier usually does, and the days on which it does not.

It follows MillWheel's motivating application (Zeitgeist): a model of the expected traffic for each
key, and spikes and dips against it. A dip is traffic that did *not* come. It can be reported only
when the low watermark has passed, because before that records may just be on their way.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

import headrace as hr

NEW_YORK = ZoneInfo("America/New_York")
HOUR = 3_600_000_000
WARM_UP_DAYS = 21
LEARNING_RATE = 0.2


class Departure(msgspec.Struct, frozen=True):
    """A flight that departed.

    Attributes:
        leg: identifies the flight. Its record may come twice.
    """

    origin: str
    carrier: str
    leg: str


class Usual(msgspec.Struct, frozen=True):
    """The model of one hour of one weekday."""

    mean: float
    seen: int


class Day(msgspec.Struct, frozen=True):
    """A day of a key, closed by the watermark."""

    date: str
    departures: int
    expected: float


class Anomaly(msgspec.Struct, frozen=True):
    """A day that departed from the model."""

    date: str
    kind: str
    departures: int
    expected: float
    sigmas: float


class Traffic(hr.Computation):
    """Counts departures per hour, learns what is usual, and judges each day when it is over."""

    hours = hr.MapState(int, int)  # hour since 1970 → departures, for open days
    usual = hr.MapState(int, Usual)  # weekday * 24 + hour of day, in New York
    days_seen = hr.ValueState(int, default=0)
    midnight = hr.Timer(hr.EVENT_TIME)

    days = hr.Output(Day)
    anomalies = hr.Output(Anomaly)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        hour = record.timestamp_us // HOUR
        self.hours[hour] = self.hours.get(hour, 0) + 1
        if self.midnight.when_us() is None:
            self.midnight.set(end_of_day(record.timestamp))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        start = timer.time - timedelta(microseconds=1)
        first = start.astimezone(NEW_YORK).replace(hour=0, minute=0, second=0, microsecond=0)
        date = first.date().isoformat()
        expected = 0.0
        counts: dict[int, int] = {}
        for number in range(hours_between(first, timer.time)):
            at = int(first.timestamp()) // 3600 + number
            local = datetime.fromtimestamp(at * 3600, NEW_YORK)
            slot = local.weekday() * 24 + local.hour
            counts[slot] = counts.get(slot, 0) + self.hours.pop(at, 0)
            expected += self.usual.get(slot, Usual(0.0, 0)).mean
        total = sum(counts.values())
        self.days_seen.value += 1
        warm = self.days_seen.value > WARM_UP_DAYS
        sigmas = (total - expected) / math.sqrt(max(expected, 1.0))
        unusual = warm and abs(sigmas) > 3.5 and not 0.75 < total / max(expected, 1.0) < 1.33
        rounded = round(expected, 1)
        ctx.produce("days", Day(date, total, rounded if warm else float(total)))
        if unusual:
            kind = "dip" if total < expected else "spike"
            ctx.produce("anomalies", Anomaly(date, kind, total, rounded, round(sigmas, 1)))
        else:
            self.learn(counts)
        if len(self.hours) or not ctx.input_ended:
            self.midnight.set(end_of_day(timer.time))

    def learn(self, counts: dict[int, int]) -> None:
        """Move the model towards a day that was usual."""
        for slot, count in counts.items():
            before = self.usual.get(slot, Usual(float(count), 0))
            mean = before.mean + LEARNING_RATE * (count - before.mean)
            self.usual[slot] = Usual(mean, before.seen + 1)


def end_of_day(when: datetime) -> datetime:
    """Return the next midnight in New York after a time."""
    local = when.astimezone(NEW_YORK)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    return (midnight + timedelta(days=1)).astimezone(ZoneInfo("UTC"))


def hours_between(first: datetime, last: datetime) -> int:
    """Return how many hours a day has: 23, 24 or 25."""
    return int((last.timestamp() - first.timestamp()) // 3600)


def build(data: Path, out: Path) -> hr.Pipeline:
    """Build the pipeline.

    Args:
        data: the directory with ``departures.csv``.
        out: the directory for the results.
    """
    p = hr.Pipeline("flights")
    departures = p.inject(
        "departures",
        hr.sources.Files(data / "departures.csv", event_time="departed", type=Departure),
        watermark=hr.bounded_delay("12h"),
        ids="leg",
        horizon="14d",
    )
    airports = p.compute("airports", Traffic(), keys={departures: "origin"}, late="side")
    carriers = p.compute("carriers", Traffic(), keys={departures: ("origin", "carrier")})
    p.sink("late_departures", airports["late"], hr.sinks.Files(out / "late_departures"))
    p.sink("airport_days", airports["days"], hr.sinks.Files(out / "airport_days"))
    p.sink("airport_anomalies", airports["anomalies"], hr.sinks.Files(out / "airport_anomalies"))
    p.sink("carrier_anomalies", carriers["anomalies"], hr.sinks.Files(out / "carrier_anomalies"))
    return p


def pipeline() -> hr.Pipeline:
    """Return the pipeline over the demo's data, for ``headrace run``."""
    return build(Path("demo-data"), Path("demo-data") / "out")
