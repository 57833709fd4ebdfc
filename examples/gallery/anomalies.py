"""Slow minutes of a web service, against a model that fades, and quantiles of each hour.

$ headrace run examples/gallery/anomalies.py --storage state/anomalies --runner inline
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from anomalies_data import Call, calls

import headrace as hr

MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000
WARM, FEW, FADING, SIGMAS = 30, 10, 0.05, 5.0
#: A sketch counts values by their logarithm. Each quantile is off by at most 2 %.
GAMMA = 1.04
BUCKETS = np.arange(0, 1 + math.ceil(math.log(60_000_000, GAMMA)))


class Anomaly(msgspec.Struct, frozen=True):
    """A minute that was not as expected."""

    calls: int
    mean_ms: float
    expected_ms: float


class Quantiles(msgspec.Struct, frozen=True):
    """The answer times of an hour."""

    calls: int
    p50_ms: float
    p99_ms: float


class Watch(hr.ColumnarComputation):
    """Judges each minute of each endpoint, and sketches each hour, for all endpoints at once."""

    minutes = hr.TableState({"calls": int, "micros": int}, sub={"minute": int})
    models = hr.TableState({"mean": float, "variance": float, "minutes": int})
    sketches = hr.TableState({"calls": int}, sub={"hour": int, "bucket": int})
    minute_over = hr.Timer(hr.EVENT_TIME)
    hour_over = hr.Timer(hr.EVENT_TIME)
    anomalies = hr.Output(Anomaly)
    quantiles = hr.Output(Quantiles)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        parts = batch.by(minute=batch.timestamps_us // MINUTE_US)
        minute = parts.sub["minute"]
        rows = self.minutes.at(parts.keys, minute=minute)
        rows.upsert(calls=rows["calls"] + parts.counts, micros=rows["micros"] + parts.sum("micros"))
        self.minute_over.set(parts.keys, (minute + 1) * MINUTE_US, tags=minute)

        bucket = np.ceil(np.log(batch["micros"]) / math.log(GAMMA)).astype(np.int64)
        parts = batch.by(hour=batch.timestamps_us // HOUR_US, bucket=bucket)
        hour = parts.sub["hour"]
        rows = self.sketches.at(parts.keys, hour=hour, bucket=parts.sub["bucket"])
        rows.upsert(calls=rows["calls"] + parts.counts)
        self.hour_over.set(parts.keys, (hour + 1) * HOUR_US, tags=hour)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        if fired.name == "hour_over":
            self.sum_up(ctx, fired)
            return
        # Minutes of one key come one after another, since each is judged by those before it.
        starts = fired.keys.starts
        lengths = np.diff(starts, append=len(fired))
        ranks = np.arange(len(fired)) - np.repeat(starts, lengths)
        for rank in range(lengths.max()):
            self.judge(ctx, fired[ranks == rank])

    def judge(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        """Compare a minute of each key with the key's model, and move the model towards it."""
        minute = self.minutes.at(fired.keys, minute=fired.tags)
        model = self.models.at(fired.keys)
        calls, seen, expected = minute["calls"], model["minutes"], model["mean"]
        mean = minute["micros"] / calls
        sigma = np.sqrt(model["variance"])
        off = mean - expected
        odd = (seen >= WARM) & (calls >= FEW) & (abs(off) > SIGMAS * sigma)
        values = {"calls": calls, "mean_ms": mean / 1e3, "expected_ms": expected / 1e3}
        ctx.produce(
            "anomalies", fired.keys[odd], {name: column[odd] for name, column in values.items()}
        )
        # The model fades: older minutes count less and less. An odd minute moves it only a little.
        off[odd] = np.clip(off[odd], -sigma[odd], sigma[odd])
        rate = np.maximum(FADING, 1 / (seen + 1))
        variance = (1 - rate) * (model["variance"] + rate * off**2)
        model.upsert(mean=expected + rate * off, variance=variance, minutes=seen + 1)
        minute.delete()

    def sum_up(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        """Produce the quantiles of hours that are over."""
        every = np.repeat(np.arange(len(fired)), len(BUCKETS))
        buckets = np.tile(BUCKETS, len(fired))
        rows = self.sketches.at(fired.keys[every], hour=fired.tags[every], bucket=buckets)
        so_far = np.cumsum(rows["calls"].reshape(len(fired), -1), axis=1)
        calls = so_far[:, -1]
        values = {"calls": calls}
        for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
            bucket = (so_far >= np.ceil(share * calls)[:, None]).argmax(axis=1)
            values[name] = 2 * GAMMA**bucket / (GAMMA + 1) / 1e3
        ctx.produce("quantiles", fired.keys, values)
        rows.delete()


def show_anomalies(step: int, rows: Any) -> None:
    """Print odd minutes."""
    for row in sorted(rows.to_pylist(), key=lambda row: (row["timestamp"], row["key"])):
        times = f"{row['mean_ms']:6.1f} ms instead of {row['expected_ms']:5.1f} ms"
        print(f"{row['timestamp']:%H:%M}  {row['key']:8} {times}  in {row['calls']} calls")


def show_quantiles(step: int, rows: Any) -> None:
    """Print the quantiles of hours."""
    for row in sorted(rows.to_pylist(), key=lambda row: (row["key"], row["timestamp"])):
        times = f"half below {row['p50_ms']:5.1f} ms  99 % below {row['p99_ms']:6.1f} ms"
        print(f"until {row['timestamp']:%H:%M}  {row['key']:8} {times}  in {row['calls']:,} calls")


def pipeline() -> hr.Pipeline:
    """Build the pipeline."""
    p = hr.Pipeline("anomalies")
    source = hr.sources.Iterable(calls, Call, event_time="at")
    answered = p.inject("calls", source, watermark=hr.bounded_delay("10s"))
    watch = p.compute("watch", Watch(), keys={answered: "endpoint"})
    p.sink("anomalies", watch["anomalies"], hr.sinks.Calls(show_anomalies))
    p.sink("quantiles", watch["quantiles"], hr.sinks.Calls(show_quantiles))
    return p
