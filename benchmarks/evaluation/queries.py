"""Megaphone's Figures 5 to 12: NEXMark's queries in open loop, while a quarter of the state moves.

Half of what one worker owns moves to the other, and back: all at once, batched, and batched with what moves
copied ahead; of the queries with state that the paper does not have, the first and the last of these. They
run on two hosts, with nothing shared but a store as slow as one across a network. Before the clock begins,
events have made state. Then there are four windows of one length, in each of which as many of the query's
own windows end: two in which nothing moves, and two at whose beginnings state moves, midway between two
ends. Compared are the longest latency while state moved, in both migrations, the median of all runs, and
the longest in the two windows before, the median of all runs of the query in whatever way; beside it stands
the ratio of the second window and the first, in which nothing moves: what chance alone makes of it.
Query 16 is asked at half the rate: of all of it, it leaves two cores nothing to move state with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from benchmarks.evaluation.common import add_hosts, hosts, options
from benchmarks.evaluation.papers import QUERIES
from benchmarks.harness import figure, show
from benchmarks.parts import Parts, Told
from benchmarks.places import Place
from benchmarks.ways import (
    COLUMNS,
    Outcome,
    cells,
    outcomes,
    plain,
    runs_of,
    unmoved,
    unmoved_cells,
)
from headrace.nexmark.harness.load import LoadTest, Query
from headrace.nexmark.harness.picture import draw_ways
from headrace.nexmark.queries import module_of
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import Timeline
from headrace.pipeline import Node

ONCE, BATCHED, PREPARED = "all at once", "batched", "batched, prepared"
GOAL = 1.2
STATELESS = {"q1", "q2"}
#: Queries with state that are not in the paper.
MORE = ["q9", "q11", "q12", "q15", "q16", "q17", "q18", "q19", "q20"]

#: What a query has found: what each way came to.
Found = dict[str, Outcome]


class Case(msgspec.Struct, frozen=True):
    """How a query is asked.

    Attributes:
        draw: its ``migratable``, with its windows.
        dilation: how many times faster event time passes.
        seconds_open: how long auctions are open, in seconds of the clock.
        ends_every: one of its windows ends each so many seconds of the clock, beginning with the history.
        share: how much of the rate it is asked at: less where two cores have nothing left at all of it.
    """

    draw: Callable[[Market], Node]
    dilation: int = 1
    seconds_open: float = 10.0
    ends_every: float = 10.0
    share: float = 1.0

    def rate(self, chosen: argparse.Namespace) -> int:
        """Return how many events a second come."""
        return round(chosen.rate * self.share)

    def workload(self, rate: int, history: int) -> Query:
        """Return it as a workload."""
        in_flight = max(100, round(rate * 3 / 50 * self.seconds_open))
        timeline = Timeline(rate=rate // self.dilation, in_flight=in_flight)
        return Query(self.draw, timeline, history=history)

    def problem(self, chosen: argparse.Namespace) -> str:
        """Say why it cannot be asked so that its windows compare; or nothing."""
        rate = self.rate(chosen)
        if rate % self.dilation:
            return f"--rate is not a multiple of {self.dilation}"
        before = chosen.history / rate % self.ends_every
        begins = [before + chosen.warm + at * chosen.seconds for at in (-1, 0, 1, 2, 3)]
        ends = [int(begin // self.ends_every) for begin in begins]
        if len({last - first for first, last in zip(ends, ends[1:], strict=False)}) > 1:
            return (
                "not as many of its windows end in each of ours: choose other --warm or --seconds"
            )
        to_an_end = min(min(at % self.ends_every, -at % self.ends_every) for at in begins)
        if to_an_end < min(0.4, self.ends_every / 4):
            return "state would move as a window ends: choose another --warm"
        return ""


def cases() -> dict[str, Case]:
    """Return the queries, those of the paper as it asks them, where windows decide how much state there is.

    Query 5 every second over the last minute, as Megaphone's; query 8 over hours, in dilated time. Query
    16, which has two rows of state for nearly every bid, at half the rate.
    """
    names = [*(f"q{n}" for n in range(1, 9)), *MORE]
    found = {name: Case(module_of(name).migratable) for name in names}
    found["q5"] = Case(partial(module_of("q5").migratable, size="60s", every="1s"), ends_every=1.0)
    found["q8"] = Case(
        partial(module_of("q8").migratable, window="4000s"), dilation=200, ends_every=20.0
    )
    found["q16"] = Case(module_of("q16").migratable, share=0.5)
    return found


def main() -> int:
    made = options("queries", __doc__)
    made.add_argument("--queries", nargs="*", default=list(cases()))
    made.add_argument("--rate", type=int, default=10_000)
    made.add_argument("--seconds", type=float, default=20.0, help="each of four windows")
    made.add_argument("--history", type=int, default=1_000_000, help="events before the clock")
    made.add_argument(
        "--warm", type=float, default=65.5, help="seconds before the second steady window"
    )
    made.add_argument("--bins", type=int, default=4_096)
    made.add_argument("--runs", type=int, default=3, help="of what is asked for")
    add_hosts(made)
    Parts.add_option(made)
    chosen = made.parse_args()
    if chosen.quick:
        chosen.queries, chosen.seconds, chosen.warm = ["q3"], 10.0, 15.5
        chosen.history, chosen.runs = 200_000, 1
    for name in chosen.queries:
        if problem := cases()[name].problem(chosen):
            made.error(f"{name}: {problem}")
    parts = Parts(Found, list(cases()), made, chosen, "queries")
    with hosts(chosen) as place:
        failed = parts.measure(
            parts.missing(chosen.queries), lambda name: of_query(place, name, chosen), told
        )
    show("NEXMark while state moves", *told(parts.found))
    return failed


def of_query(place: Place, name: str, chosen: argparse.Namespace) -> Found:
    """Run a query in each way; draw it."""
    case = cases()[name]
    rate = case.rate(chosen)
    load = LoadTest(rate=rate, bins=chosen.bins, warm_s=chosen.warm, seconds=3 * chosen.seconds)
    workload = case.workload(rate, chosen.history)
    runs = runs_of(place, workload, load, times_of(name, chosen.runs))
    titled = {f"{name}, {way}": of.middle_seen for way, of in runs.items()}
    draw_ways(titled, load, chosen.pictures / f"{name}.png")
    found = outcomes(runs)
    for way, of in found.items():
        print(name, way, f"{of.ratio:.2f}", flush=True)
    return found


def times_of(name: str, runs: int) -> dict[str, int]:
    """Return how often a query runs in each way: once, unless something is asked of it."""
    if name in STATELESS:
        return {ONCE: 1, PREPARED: 1}
    return {ONCE: 1} | ({} if name in MORE else {BATCHED: 1}) | {PREPARED: runs}


def told(found: dict[str, Found]) -> Told:
    """Return the table and the figures of what was found."""
    rows = [["query", "way", "runs", "KB moved, about", "s there, back", *COLUMNS, "Megaphone"]]
    figures: list[dict[str, Any]] = []
    for query, ways in found.items():
        for way, of in ways.items():
            rows.append(
                [
                    query,
                    way,
                    str(len(of.runs)),
                    f"{of.nbytes / 1e3:,.0f}",
                    ", ".join(f"{seconds:.2f}" for seconds in of.there_and_back),
                    *cells(of),
                    QUERIES.get(query, "") if way == ONCE else "",
                ]
            )
            asked = way == PREPARED and query not in STATELESS
            goal = (f"<= {GOAL}", of.ratio <= GOAL) if asked else ()
            name = f"{query}_{plain(way)}_max_over_steady_max"
            figures.append(figure(name, of.ratio, "x", *goal))
        rows.append([query, "nothing moves", "", "", "", *unmoved_cells(ways), ""])
        chance, *_ = unmoved(ways)
        figures.append(figure(f"{query}_unmoved_max_over_max", chance, "x"))
    return rows, figures


if __name__ == "__main__":
    sys.exit(main())
