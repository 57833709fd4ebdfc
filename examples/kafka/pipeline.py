"""Visits of pages by the minute, from a topic of Kafka to another. ``make demo-kafka`` runs it.

``HEADRACE_DEMO_SERVERS`` in the environment says where Kafka is.
"""

from __future__ import annotations

import os
from datetime import datetime

import msgspec

import headrace as hr

#: The topics that are read and written.
VISITS, COUNTS = "visits", "counts"


class Visit(msgspec.Struct):
    """A visit of a page."""

    page: str
    user: str
    at: datetime


def pipeline() -> hr.Pipeline:
    """Return the pipeline."""
    servers = os.environ["HEADRACE_DEMO_SERVERS"]
    p = hr.Pipeline("visits")
    visits = p.inject(
        "visits",
        hr.sources.Kafka(VISITS, servers=servers, type=Visit, event_time="at"),
        watermark=hr.bounded_delay("10s"),
    )
    counts = p.compute("counts", hr.ops.TumblingCount("1m"), keys={visits: "page"})
    value = {"key": "page", "window_start": "minute", "count": "visits"}
    p.sink("counts", counts, hr.sinks.Kafka(COUNTS, servers, value=value))
    return p
