"""What the servers of an API report: how many requests they have answered, and for whom."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec

NEW_YEAR = datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
DAYS, CUSTOMERS = 100, 40


class Usage(msgspec.Struct, frozen=True):
    """Requests that a server has answered for a customer."""

    server: str
    number: int  # counts the server's reports: together they are the record's id
    customer: str
    requests: int
    at: datetime


def usage() -> list[Usage]:
    """Return a hundred days of reports as they arrive: some days late, some twice."""
    rng = random.Random(7)
    sizes = [int(rng.lognormvariate(7, 1.2)) for _ in range(CUSTOMERS)]
    arrivals: list[tuple[datetime, Usage]] = []
    for server in ("fra-1", "fra-2", "waw-1"):
        for number in range(DAYS * 48):
            at = NEW_YEAR + timedelta(minutes=30 * number, seconds=60 * rng.random())
            customer = rng.randrange(CUSTOMERS)
            requests = 1 + int(sizes[customer] * rng.expovariate(1))
            report = Usage(server, number, f"customer-{customer:02}", requests, at)
            delay = timedelta(minutes=5) if rng.random() < 0.98 else timedelta(days=2)
            arrivals.append((at + delay * rng.random(), report))
            if rng.random() < 0.03:  # the answer was lost, so the server sends it again
                arrivals.append((at + timedelta(days=1) * rng.random(), report))
    return [report for _, report in sorted(arrivals, key=lambda arrival: arrival[0])]
