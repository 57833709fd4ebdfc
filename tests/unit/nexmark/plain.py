"""NEXMark's model once more, event by event, as its authors tell it: an oracle that knows no arrays.

What is drawn by chance it does not make; it says what may come of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BASE_US = 1_436_918_400_000_000


def kinds(count: int) -> list[tuple[str, int | None]]:
    """Return the kind of each event, and its id if it has one: one person, three auctions, 46 bids."""
    found: list[tuple[str, int | None]] = []
    person = auction = 1_000
    while len(found) < count:
        found.append(("person", person))
        person += 1
        for _ in range(3):
            found.append(("auction", auction))
            auction += 1
        found += [("bid", None)] * 46
    return found[:count]


@dataclass
class Seen:
    """What there is before an event, with it."""

    people: int = 0
    auctions: int = 0

    def add(self, kind: str) -> None:
        self.people += kind == "person"
        self.auctions += kind == "auction"

    def person_problem(self, number: int, hot: int) -> str | None:
        """Say what is wrong with a seller or bidder; ``hot`` is the place of the hot one in its batch."""
        newest = self.people - 1
        if number - 1_000 == newest // 100 * 100 + hot:
            return None
        oldest = max(self.people - 1_000, 0)
        return None if oldest <= number - 1_000 < self.people + 10 else f"person {number}: {self}"

    def auction_problem(self, number: int, in_flight: int) -> str | None:
        """Say what is wrong with what is bid for."""
        newest = self.auctions - 1
        if number - 1_000 == newest // 100 * 100:
            return None
        oldest = max(newest - in_flight, 0)
        return None if oldest <= number - 1_000 <= newest + 10 else f"auction {number}: {self}"


def time_us(number: int, rate: int) -> int:
    """Return when an event is."""
    return BASE_US + number * 1_000_000 // rate


def arrivals(events: int, group: int) -> list[int]:
    """Return the numbers of events in the order in which they arrive."""
    found = []
    for first in range(0, events, group):
        numbers: Any = range(first, first + group)
        if first + group <= events:
            numbers = [first + at * 953 % group for at in range(group)]
        found += [number for number in numbers if number < events]
    return found
