"""The scores of a game's players on an evening."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import msgspec

EVENING = datetime(2026, 6, 6, 18, tzinfo=UTC)
HOURS = 4
REGIONS = ("asia", "europe", "north america")
NAMES = ("fox", "owl", "lynx", "heron", "otter", "raven", "newt", "ibis")


class Score(msgspec.Struct, frozen=True):
    """What a player has scored in a match."""

    match: str
    region: str
    player: str
    points: int
    at: datetime


def scores() -> list[Score]:
    """Return the scores of an evening as they arrive: some phones send them later, or twice."""
    rng = random.Random(6)
    skills = {f"{rng.choice(NAMES)}{number}": rng.betavariate(2, 5) for number in range(300)}
    players = {region: sorted(skills)[n::3] for n, region in enumerate(REGIONS)}
    arrivals: list[tuple[datetime, Score]] = []
    for number in range(4_000):
        region = rng.choice(REGIONS)
        at = EVENING + timedelta(hours=HOURS * rng.random())
        for player in rng.sample(players[region], 4):
            points = max(0, int(1_000 * rng.gauss(skills[player], 0.15)))
            score = Score(f"m{number}", region, player, points, at)
            delay = timedelta(minutes=20 if rng.random() < 0.05 else 0.5)
            copies = 2 if rng.random() < 0.02 else 1
            arrivals += [(at + delay * rng.random(), score) for _ in range(copies)]
    return [score for _, score in sorted(arrivals, key=lambda arrival: arrival[0])]
