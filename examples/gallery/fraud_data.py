"""A day of card payments and their confirmations, with some fraud."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

MIDNIGHT = datetime(2026, 5, 4, tzinfo=UTC)
LARGE = 20_000  # cents


class Payment(msgspec.Struct, frozen=True):
    """A payment; `in_shop` if the card itself was there."""

    payment: str
    card: str
    country: str
    in_shop: bool
    cents: int
    at: datetime


class Confirmation(msgspec.Struct, frozen=True):
    """The card's owner has confirmed a payment."""

    payment: str
    card: str
    at: datetime


def payments() -> list[Payment]:
    """Return a day's payments as they arrive: offline shops send theirs later, some come twice."""
    rng = random.Random(3)
    arrivals: list[tuple[datetime, Payment]] = []
    for payment, _ in made():
        delay = timedelta(minutes=15 if rng.random() < 0.05 else 0.1)
        for _ in range(2 if rng.random() < 0.02 else 1):
            arrivals.append((payment.at + delay * rng.random(), payment))
    return [payment for _, payment in sorted(arrivals, key=lambda arrival: arrival[0])]


def confirmations() -> list[Confirmation]:
    """Return the answers to large payments. Thieves give none, and some owners forget it."""
    rng = random.Random(4)
    asked = [payment for payment, stolen in made() if payment.cents >= LARGE and not stolen]
    answers = [
        Confirmation(
            payment.payment, payment.card, payment.at + timedelta(minutes=4) * rng.random()
        )
        for payment in asked
        if rng.random() < 0.99
    ]
    return sorted(answers, key=lambda answer: answer.at)


def made() -> Iterator[tuple[Payment, bool]]:
    """Return what is paid, card by card, and whether a thief does it."""
    rng = random.Random(5)
    number = 0
    for card in (f"card-{number:03}" for number in range(400)):
        paid = [
            (24 * rng.betavariate(4, 3), int(rng.lognormvariate(8, 1)), "DE", rng.random() < 0.6)
            for _ in range(rng.randrange(20))
        ]
        honest = len(paid)
        hour = 23 * rng.random()
        if rng.random() < 0.015:  # a stolen number is tried first
            paid += [(hour + n / 40, rng.randrange(50, 150), "DE", False) for n in range(4)]
            paid += [(hour + 0.12, rng.randrange(LARGE, 5 * LARGE), "DE", False)]
        if rng.random() < 0.01:  # a copied card
            paid += [(hour + n / 3, 4_999, country, True) for n, country in enumerate(("DE", "BR"))]
        for order, (hours, cents, country, in_shop) in enumerate(paid):
            at = MIDNIGHT + timedelta(hours=hours)
            yield Payment(f"p{number}", card, country, in_shop, cents, at), order >= honest
            number += 1
