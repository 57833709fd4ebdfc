"""What the page shows of a pipeline, made from one look at its storage.

Pure. The server sends these parts when they are asked for; a report holds all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import HeadraceError
from headrace.observe.alerts import Alert, alerts_of
from headrace.observe.bins import bins_of, hottest_bin
from headrace.observe.graph import Graph, graph_of
from headrace.observe.history import Moment
from headrace.observe.moves import migrations_of
from headrace.observe.observer import Seen
from headrace.observe.steps import events_of, steps_of
from headrace.observe.top import newest_of
from headrace.observe.watching import Reading, Sight
from headrace.observe.why import Waits, why


class Live(msgspec.Struct, frozen=True):
    """What changes with every step, and every view needs.

    Attributes:
        reading: the picture, and how current it is.
        alerts: what needs attention; empty while there is no picture.
        ways: for each computation, the way to the holder of its watermark.
        graph: the pipeline's graph; None before the first picture.
        moments: the newest moments of its history. Those before have not changed.
    """

    reading: Reading
    alerts: list[Alert]
    ways: dict[str, list[Waits]]
    graph: Graph | None
    moments: list[Moment]


def live_of(sight: Sight, reading: Reading, moments: Sequence[Moment] = ()) -> Live:
    """Return what the page needs for every view.

    Args:
        sight: the look.
        reading: its reading, under the name by which the server knows the pipeline.
        moments: moments of its history, to be sent along.
    """
    picture, seen = reading.picture, sight.seen
    if picture is None or seen is None:
        return Live(reading, [], {}, None, list(moments))
    ways = ways_of(seen, sight.now_us)
    alerts = alerts_of(picture, ways, hottest_bin(seen.head, seen.measurements))
    graph = graph_of(seen.head, newest_of(seen.window), picture)
    return Live(reading, alerts, ways, graph, list(moments))


def ways_of(seen: Seen, now_us: int) -> dict[str, list[Waits]]:
    """Return the way to the holder of the watermark of each computation."""
    removed = seen.head.stored_schema.get("removed", {})
    found = {}
    for name in sorted(seen.head.counts):
        if name in removed:
            continue
        try:
            found[name] = why(seen.head, name, now_us)
        except HeadraceError:  # not in the stored schema, such as dead letters
            continue
    return found


def parts_of(seen: Seen, now_us: int) -> dict[str, Any]:
    """Return what single views need, by the name under which the server answers."""
    return {
        "steps": {"step": seen.head.step, "steps": steps_of(seen.window)},
        "migrations": migrations_of(seen.head, now_us, seen.window),
        "bins": bins_of(seen.head, seen.measurements),
        "events": {"step": seen.head.step, "events": events_of(seen.head, seen.window)},
    }


PARTS = ("steps", "migrations", "bins", "events")
