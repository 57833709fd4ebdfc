"""Visits to a shop, with the plan that each customer had at that time: a report for each day.

$ headrace run examples/gallery/sessions.py --storage state/sessions --runner inline
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from sessions_data import Click, Plan, clicks, plans

import headrace as hr
from headrace.ops import Count, Lookup, Map, Max, Mean, Min, Session, Sum, Tumbling


class Visit(msgspec.Struct, frozen=True):
    """A visit of a customer, as the report needs it."""

    plan: str
    pages: int
    seconds: int
    cents: int
    bought: int


def visits(batch: hr.KeyedBatch) -> dict[str, Any]:
    """Return the columns of `Visit`."""
    return {
        "plan": np.where(batch.nulls("plan"), "guest", batch["plan"]),
        "pages": batch["pages"],
        "seconds": (batch["last"] - batch["first"]) // 1_000_000,
        "cents": batch["cents"],
        "bought": (batch["cents"] > 0).astype(np.int64),
    }


def show(step: int, days: Any) -> None:
    """Print the report of each day, plan by plan."""
    for day in sorted(days.to_pylist(), key=lambda day: (day["window_start"], day["key"])):
        print(
            f"{day['window_start']:%a %d %b}  {day['key']:5}  {day['visits']:3} visits"
            f"  {day['pages']:4.1f} pages  {day['seconds'] / 60:4.1f} min"
            f"  {day['bought']:4.0%} bought  {day['cents'] / 100:8,.2f} EUR"
        )


def pipeline() -> hr.Pipeline:
    """Build the pipeline."""
    p = hr.Pipeline("sessions")
    source = hr.sources.Iterable(clicks, Click, event_time="at")
    clicked = p.inject("clicks", source, watermark=hr.bounded_delay("10m"), ids="click")
    changed = p.inject("plans", hr.sources.Iterable(plans, Plan, event_time="at"))

    session = Session("30m", pages=Count(), cents=Sum("cents"), first=Min("at"), last=Max("at"))
    sessions = p.compute("sessions", session, keys={clicked: "customer"})
    lookup = Lookup(table_columns=["plan"])
    known = p.compute("with_plan", lookup, keys={sessions: "key", changed: "customer"})
    visited = p.compute("visits", Map(visits, Visit), keys={known: "key"})
    day = Tumbling(
        "1d",
        visits=Count(),
        pages=Mean("pages"),
        seconds=Mean("seconds"),
        bought=Mean("bought"),
        cents=Sum("cents"),
    )
    daily = p.compute("daily", day, keys={visited: "plan"})
    p.sink("daily", daily, hr.sinks.Calls(show))
    return p
