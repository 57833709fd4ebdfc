"""Clicks in a shop, as phones and browsers send them, and the plans of its customers."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import msgspec

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
DAYS, CUSTOMERS = 3, 500


class Click(msgspec.Struct, frozen=True):
    """A page that a customer has opened; `cents` were paid there."""

    click: str
    customer: str
    page: str
    cents: int
    at: datetime


class Plan(msgspec.Struct, frozen=True):
    """A customer's plan, from a point in time on."""

    customer: str
    plan: str
    at: datetime


def clicks() -> list[Click]:
    """Return the clicks of three days as they arrive: late from phones, and some twice."""
    rng = random.Random(1)
    arrivals: list[tuple[datetime, Click]] = []
    for number in range(CUSTOMERS * DAYS * 6 // 5):
        customer = f"c{int(CUSTOMERS * rng.betavariate(1, 2)):03}"
        at = MONDAY + timedelta(days=rng.randrange(DAYS), hours=min(23.5, rng.gauss(16, 4)))
        offline = timedelta(minutes=8) if rng.random() < 0.1 else timedelta(seconds=4)
        for page in range(1 + int(rng.expovariate(0.2))):
            bought = rng.random() < 0.04
            cents = rng.randrange(500, 12_000) if bought else 0
            click = Click(f"{number}-{page}", customer, "/pay" if bought else "/shop", cents, at)
            copies = 2 if rng.random() < 0.03 else 1
            arrivals += [(at + offline * rng.random(), click) for _ in range(copies)]
            at += timedelta(seconds=rng.lognormvariate(4, 1))
    return [click for _, click in sorted(arrivals, key=lambda arrival: arrival[0])]


def plans() -> list[Plan]:
    """Return all changes of plans. A customer without a plan is a guest."""
    rng = random.Random(2)
    joined = [f"c{number:03}" for number in range(CUSTOMERS) if rng.random() < 0.8]
    first = [Plan(customer, rng.choice(["free", "plus"]), MONDAY) for customer in joined]
    changes = [
        Plan(customer, rng.choice(["plus", "pro"]), MONDAY + DAYS * rng.random() * timedelta(1))
        for customer in joined
        if rng.random() < 0.3
    ]
    return first + sorted(changes, key=lambda change: change.at)
