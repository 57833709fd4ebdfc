"""Monthly bills for the requests to an API. Kill it at any moment: each request is billed once.

$ headrace run examples/gallery/billing.py --storage state/billing --runner inline --available-now
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from billing_data import Usage, usage

import headrace as hr
from headrace.ops import CalendarWindows, Count, Map, Running, Sum

BERLIN = "Europe/Berlin"
FREE, NORMAL = 10_000, 100_000  # requests in a month
NORMAL_PRICE, LATER_PRICE = 30, 12  # cents for a thousand


class Bill(msgspec.Struct, frozen=True):
    """A customer's month."""

    month: str
    reports: int
    requests: int
    cents: int


def price(batch: hr.KeyedBatch) -> dict[str, Any]:
    """Return the columns of `Bill`: some requests are free, and further ones are cheaper."""
    requests = batch["requests"]
    normal = np.clip(requests - FREE, 0, NORMAL - FREE)
    later = np.maximum(requests - NORMAL, 0)
    starts = [
        datetime.fromtimestamp(us // 1_000_000, ZoneInfo(BERLIN)) for us in batch["window_start"]
    ]
    return {
        "month": [f"{start:%Y-%m}" for start in starts],
        "reports": batch["reports"],
        "requests": requests,
        "cents": (normal * NORMAL_PRICE + later * LATER_PRICE) // 1_000,
    }


def show(step: int, months: Any) -> None:
    """Print what months have brought."""
    for row in sorted(months.to_pylist(), key=lambda row: row["key"]):
        print(
            f"{row['key']}  {row['bills']} bills  {row['reports']:,} reports"
            f"  {row['requests']:10,} requests  {row['cents'] / 100:9,.2f} EUR"
        )


def pipeline() -> hr.Pipeline:
    """Build the pipeline. The bills go to the folder `bills`."""
    p = hr.Pipeline("billing")
    source = hr.sources.Iterable(usage, Usage, event_time="at")
    used = p.inject(
        "usage",
        source,
        watermark=hr.bounded_delay("1h"),
        ids=("server", "number"),
        horizon="4d",
    )
    month = CalendarWindows(
        "month", time_zone=BERLIN, allowed_lateness="3d", reports=Count(), requests=Sum("requests")
    )
    months = p.compute("months", month, keys={used: "customer"})
    bills = p.compute("bills", Map(price, Bill), keys={months: "key"})
    p.sink("bills", bills, hr.sinks.Files("bills"))

    sums = Running(
        bills=Count(), reports=Sum("reports"), requests=Sum("requests"), cents=Sum("cents")
    )
    turnover = p.compute("turnover", sums, keys={bills: "month"})
    p.sink("turnover", turnover, hr.sinks.Calls(show))
    return p
