"""Leaderboards of a game: the best players of each region and hour, and the best scores ever.

$ headrace run examples/gallery/leaderboard.py --storage state/leaderboard --runner inline
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from leaderboard_data import Score, scores

import headrace as hr
from headrace.ops import Count, Map, Sum, TopN, Tumbling

PLACES = 3


class Total(msgspec.Struct, frozen=True):
    """A player's hour."""

    region: str
    hour: datetime
    player: str
    points: int
    matches: int


class Podium(msgspec.Struct, frozen=True):
    """The best players of a region and hour, the best one first."""

    players: int
    best: list[Total]


class Board(hr.Computation):
    """Keeps the best totals of a region and hour, and forgets them when it has produced them."""

    players = hr.ValueState(int, default=0)
    best = hr.ListState(Total)
    over = hr.Timer(hr.EVENT_TIME)
    podiums = hr.Output(Podium)

    def process_record(self, ctx: hr.Context, record: hr.Record[Total]) -> None:
        self.players.value += 1
        ranked = sorted([*self.best, record.value], key=lambda total: (-total.points, total.player))
        self.best.replace(ranked[:PLACES])
        # All totals of an hour have one event time, and are there when the watermark passes it.
        self.over.set(record.timestamp_us + 1)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("podiums", Podium(self.players.value, self.best.copy()))
        self.players.clear()
        self.best.clear()


def totals(batch: hr.KeyedBatch) -> dict[str, Any]:
    """Return the columns of `Total`."""
    return {
        "region": batch.row_keys.part(0),
        "hour": batch["window_start"],
        "player": batch.row_keys.part(1),
        "points": batch["points"],
        "matches": batch["matches"],
    }


def show(step: int, podiums: Any) -> None:
    """Print the podiums of hours that are over."""
    for row in sorted(podiums.to_pylist(), key=lambda row: (row["key1"], row["key0"])):
        best = "   ".join(f"{total['player']:>8} {total['points']:6,}" for total in row["best"])
        print(f"{row['key1']:%H:%M}  {row['key0']:13}  {best}   of {row['players']} players")


def show_records(step: int, places: Any) -> None:
    """Print lists of best scores that have changed."""
    for row in sorted(places.to_pylist(), key=lambda row: (row["key"], row["rank"])):
        print(f"best   {row['key']:13}  {row['rank']}. {row['player']:>8} {row['points']:6,}")


def pipeline() -> hr.Pipeline:
    """Build the pipeline."""
    p = hr.Pipeline("leaderboard")
    source = hr.sources.Iterable(scores, Score, event_time="at")
    ids = ("match", "player")
    scored = p.inject("scores", source, watermark=hr.bounded_delay("20m"), ids=ids)
    hour = Tumbling("1h", points=Sum("points"), matches=Count())
    hours = p.compute("hours", hour, keys={scored: ("region", "player")})
    total = p.compute("totals", Map(totals, Total), keys={hours: "key"})
    boards = p.compute("boards", Board(), keys={total: ("region", "hour")})
    p.sink("podiums", boards, hr.sinks.Calls(show))

    best = TopN(PLACES, by="points", columns=["player", "points"])
    records = p.compute("records", best, keys={scored: "region"})
    p.sink("records", records, hr.sinks.Calls(show_records))
    return p
