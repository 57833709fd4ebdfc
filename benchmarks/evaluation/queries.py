"""Megaphone's Figures 5 to 12: NEXMark's queries in open loop, while a quarter of the state moves.

Half of what one worker owns moves to the other at a third of the time, and back at two thirds: all at
once, batched, and batched with what moves copied ahead; of the queries with state that the paper does not
have, the first and the last of these. They run on two hosts, with nothing shared but a store as slow as
one across a network. Migrations begin between two ends of windows (of 10
and 30 s of the clock). Before the clock begins, events have made state. Compared are windows of one length:
the longest latency while state moved, of the worse of both migrations and the median run, with the longest
before, the median of all runs of the query.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from benchmarks.evaluation.common import options
from benchmarks.evaluation.papers import QUERIES
from benchmarks.harness import figure, show
from benchmarks.parts import Parts
from benchmarks.places import Place, local, two_hosts
from benchmarks.ways import Outcome, outcomes, plain, runs_of
from headrace.nexmark.harness.load import Load, Query
from headrace.nexmark.harness.picture import draw_ways
from headrace.nexmark.queries import module_of
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import Timeline
from headrace.topology import Node

COMPARED = ["all at once", "batched", "batched, prepared"]
GOAL = 1.2
STATELESS = {"q1", "q2"}
#: Queries with state that are not in the paper.
MORE = ["q9", "q11", "q12", "q15", "q16", "q17", "q18", "q19", "q20"]
#: Windows of the clock end at its multiples.
WINDOW_S = 10.0
SHARES = (50.0, 99.0, 100.0)

#: What a query has found: what each way came to.
Found = dict[str, Outcome]


class Case(msgspec.Struct, frozen=True):
    """How a query is asked.

    Attributes:
        draw: its ``migratable``, with its windows.
        dilation: how many times faster event time passes.
        seconds_open: how long auctions are open, in seconds of the clock.
    """

    draw: Callable[[Market], Node]
    dilation: int = 1
    seconds_open: float = 10.0

    def workload(self, rate: int, history: int) -> Query:
        """Return it as a workload."""
        in_flight = max(100, round(rate * 3 / 50 * self.seconds_open))
        timeline = Timeline(rate=max(1, rate // self.dilation), in_flight=in_flight)
        return Query(self.draw, timeline, history=history)


def cases() -> dict[str, Case]:
    """Return the queries, those of the paper as it asks them, where windows decide how much state there is.

    Query 5 every second over the last minute, as Megaphone's; query 8 over hours, in dilated time.
    """
    names = [*(f"q{n}" for n in range(1, 9)), *MORE]
    found = {name: Case(module_of(name).migratable) for name in names}
    found["q5"] = Case(partial(module_of("q5").migratable, size="60s", every="1s"))
    found["q8"] = Case(partial(module_of("q8").migratable, window="1h"), dilation=120)
    return found


def main() -> None:
    made = options("queries", __doc__)
    made.add_argument("--queries", nargs="*", default=list(cases()))
    made.add_argument("--rate", type=int, default=20_000)
    made.add_argument("--seconds", type=float, default=20.0, help="each of three windows")
    made.add_argument("--history", type=int, default=2_000_000, help="events before the clock")
    made.add_argument("--warm", type=float, default=25.0)
    made.add_argument("--bins", type=int, default=4_096)
    made.add_argument("--runs", type=int, default=3, help="of those with state")
    made.add_argument("--hosts", type=int, choices=[1, 2], default=2)
    Parts.add_option(made)
    chosen = made.parse_args()
    if (
        not (chosen.warm + chosen.seconds) % WINDOW_S
        or not (chosen.warm + 2 * chosen.seconds) % WINDOW_S
    ):
        made.error("a migration would begin where windows end: choose other --warm or --seconds")
    if chosen.quick:
        chosen.queries, chosen.seconds, chosen.warm = ["q3"], 5.0, 10.0
        chosen.history, chosen.runs = 200_000, 1
    parts = Parts(Found, list(cases()), made, chosen, "queries")
    with two_hosts() if chosen.hosts == 2 else local() as place:
        for name in parts.missing(chosen.queries):
            parts.add(name, of_query(place, name, chosen))
            parts.write(*told(parts.found))
    show("NEXMark while state moves", *told(parts.found))


def of_query(place: Place, name: str, chosen: argparse.Namespace) -> Found:
    """Run a query in each way; draw it."""
    load = Load(rate=chosen.rate, bins=chosen.bins, warm_s=chosen.warm, seconds=3 * chosen.seconds)
    workload = cases()[name].workload(chosen.rate, chosen.history)
    ways = [COMPARED[0], COMPARED[-1]] if name in MORE else COMPARED
    runs = runs_of(place, workload, load, ways, 1 if name in STATELESS else chosen.runs)
    titled = {f"{name}, {way}": of.middle_seen for way, of in runs.items()}
    draw_ways(titled, load, chosen.pictures / f"{name}.png")
    found = outcomes(runs, SHARES)
    for way, of in found.items():
        print(name, way, f"{of.ratio:.2f}", flush=True)
    return found


def told(found: dict[str, Found]) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Return the table and the figures of what was found."""
    times = [f"{when} {what} ms" for when in ("steady", "moving") for what in ("p50", "p99", "max")]
    last = ["max over steady max", "Megaphone"]
    rows = [["query", "way", "KB moved", "s there, back", *times, *last]]
    figures: list[dict[str, Any]] = []
    for query, ways in found.items():
        for way, of in ways.items():
            rows.append([
                query, way, f"{of.nbytes / 1e3:,.0f}",
                ", ".join(f"{seconds:.2f}" for seconds in of.there_and_back),
                *(f"{ms:.0f}" for ms in of.late_ms), f"{of.ratio:.2f}",
                QUERIES.get(query, "") if way == COMPARED[0] else "",
            ])  # fmt: skip
            asked = way == COMPARED[-1] and query not in STATELESS
            goal = (f"<= {GOAL}", of.ratio <= GOAL) if asked else ()
            name = f"{query}_{plain(way)}_max_over_steady_max"
            figures.append(figure(name, of.ratio, "x", *goal))
    return rows, figures


if __name__ == "__main__":
    main()
