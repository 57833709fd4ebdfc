"""The requests that a web service has answered in an afternoon, with three incidents."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import msgspec

NOON = datetime(2026, 9, 1, 12, tzinfo=UTC)
HOURS = 4
USUAL_MS = {"/cart": 30, "/login": 12, "/pay": 80, "/search": 45}


class Call(msgspec.Struct, frozen=True):
    """A request that was answered, and how long that took."""

    endpoint: str
    micros: int
    at: datetime


def calls() -> list[Call]:
    """Return the calls in the order in which they were answered."""
    rng = random.Random(8)
    answered: list[tuple[datetime, Call]] = []
    for endpoint, ms in USUAL_MS.items():
        minutes = rng.expovariate(30)
        while minutes < HOURS * 60:
            micros = 1_000 * ms * rng.lognormvariate(0, 0.4)
            if endpoint == "/pay" and 95 <= minutes < 100:  # the bank is slow
                micros *= 3
            if endpoint == "/search" and minutes >= 180 and rng.random() < 0.03:  # a bad replica
                micros *= 12
            if not (endpoint == "/login" and 130 <= minutes < 150):  # nobody can reach it
                at = NOON + timedelta(minutes=minutes)
                logged = at + timedelta(microseconds=micros, seconds=2 * rng.random())
                answered.append((logged, Call(endpoint, int(micros), at)))
            minutes += rng.expovariate(30)
    return [call for _, call in sorted(answered, key=lambda item: item[0])]
