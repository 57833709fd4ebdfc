"""Megaphone's section 5.3: how long migrations take and records wait, by bins, keys and load; and memory.

Cumulative counts, all keys there before. A quarter of the bins move and come back, all at once, one bin at
a time (fluid), in 32 rounds (batched), and these with what moves copied ahead (prepared). Fluid with more
than 2^8 bins would take hours, and batched with fewer is fluid; both have one run, since each of their
rounds waits for the store. Two hosts, with nothing shared but a store as slow as one across a network; or
one. The ways take turns; held against each other are the longest latency while state moved, in the median
run, and the longest before, in the median of all runs of the case. A migration that takes longer than the
steady window has more steps for one to be long, so p99 stands beside.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from benchmarks.counting import RunningCount
from benchmarks.evaluation.common import add_hosts, hosts, options
from benchmarks.evaluation.papers import SWEEPS
from benchmarks.harness import figure, show
from benchmarks.parts import Parts, Told
from benchmarks.places import Place
from benchmarks.ways import (
    COLUMNS,
    FEWEST_BATCHED,
    WAYS,
    Outcome,
    Runs,
    cells,
    outcomes,
    plain,
    runs_of,
    unmoved_cells,
)
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.picture import TIME, save
from headrace.nexmark.harness.picture import figure as new_picture

COLOURS = dict(zip(WAYS, ("#c0392b", "#2471a3", "#e59866", "#1e8449"), strict=True))
#: Fluid has a round for each bin that moves.
MOST_FLUID = 256
#: Ways that have one run.
SLOW = {"fluid", "batched"}
#: So long a new session is warmed up.
_COMPILES_S = 30.0


class OfWay(Outcome, frozen=True):
    """What all runs of one way came to, and the memory that state took.

    Attributes:
        memory: of the middle run, in what is looked at: when, and GiB of all Python workers.
    """

    memory: list[tuple[float, float]]


#: What a case has found: what each way came to.
Found = dict[str, OfWay]


class Point(msgspec.Struct, frozen=True):
    """A case of a series.

    Attributes:
        series: what is varied.
        keys, bits, rate: of which keys, log2 of bins, and records a second.
    """

    series: str
    keys: int
    bits: int
    rate: int

    @property
    def label(self) -> str:
        """What it is in its series."""
        keys = f"{self.keys:,} keys"
        return {
            "bins": f"2^{self.bits} bins",
            "keys": keys,
            "keys and bins": f"{keys}, 2^{self.bits} bins",
            "load": f"{self.rate:,}/s",
        }[self.series]

    @property
    def short(self) -> str:
        """What it is in its series, in a picture."""
        keys = f"{self.keys / 1e6:g}M"
        return {
            "bins": f"2^{self.bits}",
            "keys": keys,
            "keys and bins": f"{keys}, 2^{self.bits}",
            "load": f"{self.rate / 1e3:g}k",
        }[self.series]

    @property
    def case(self) -> str:
        """What is run. (The usual case is in each series.)"""
        return f"{self.keys:,} keys, 2^{self.bits} bins, {self.rate:,}/s"

    def times(self, chosen: argparse.Namespace) -> dict[str, int]:
        """Return how often it runs in each way."""
        bins = 1 << self.bits
        left_out = {
            *(["fluid"] if bins > MOST_FLUID else []),
            *(["batched"] if bins < FEWEST_BATCHED else []),
        }
        return {
            way: 1 if way in SLOW else chosen.runs for way in chosen.ways if way not in left_out
        }


def points(chosen: argparse.Namespace) -> Iterator[Point]:
    """Return all cases: of each series what varies, the rest as usual."""
    keys, bits, rate = chosen.keys, chosen.bits, chosen.rate
    for some in (4, 6, 8, 10, 12):
        yield Point("bins", keys, some, rate)
    for factor in (1, 4, 16):
        yield Point("keys", keys // 4 * factor, bits, rate)
    for more in (0, 2, 4):
        yield Point("keys and bins", (keys // 4) << more, bits - 2 + more, rate)
    for factor in (1, 4, 16):
        yield Point("load", keys, bits, rate // 4 * factor)


def main() -> int:
    made = options("sweeps", __doc__)
    made.add_argument("--series", nargs="*", default=["bins", "keys", "keys and bins", "load"])
    made.add_argument("--ways", nargs="*", default=list(WAYS))
    made.add_argument("--keys", type=int, default=1_000_000)
    made.add_argument("--bits", type=int, default=8, help="log2 of the usual number of bins")
    made.add_argument("--rate", type=int, default=20_000)
    made.add_argument("--seconds", type=float, default=8.0, help="each of three windows")
    made.add_argument("--warm", type=float, default=24.0, help="of each run; the first is longer")
    made.add_argument("--runs", type=int, default=2)
    add_hosts(made)
    Parts.add_option(made)
    chosen = made.parse_args()
    if chosen.quick:
        chosen.series, chosen.ways = ["keys"], ["all at once", "batched, prepared"]
        chosen.keys, chosen.seconds, chosen.warm, chosen.runs = 200_000, 4.0, 8.0, 1
    by_case = {point.case: point for point in points(chosen)}
    parts = Parts(Found, list(by_case), made, chosen, "series")
    asked = {point.case: None for point in points(chosen) if point.series in chosen.series}
    failed = 0
    if missing := parts.missing(asked):
        with hosts(chosen) as place:
            warm_up(place, chosen)
            failed = parts.measure(
                missing,
                lambda case: of_case(place, by_case[case], chosen),
                lambda found: told(found, chosen),
            )
    if parts.found:
        draw(parts.found, chosen)
        draw_memory(parts.found, chosen)
    show("Migrations by bins, keys and load", *told(parts.found, chosen))
    return failed


def warm_up(place: Place, chosen: argparse.Namespace) -> None:
    """Run the usual case for nobody: the JVMs compile for half a minute."""
    load = LoadTest(
        rate=chosen.rate, bins=1 << chosen.bits, warm_s=1.0 if chosen.quick else _COMPILES_S
    )
    place.warm_up(RunningCount(chosen.keys), load)


def of_case(place: Place, point: Point, chosen: argparse.Namespace) -> Found:
    """Run a case in each way."""
    load = LoadTest(
        rate=point.rate, bins=1 << point.bits, warm_s=chosen.warm, seconds=3 * chosen.seconds
    )
    runs = runs_of(place, RunningCount(point.keys), load, point.times(chosen))
    found = {way: _of_way(runs[way], of) for way, of in outcomes(runs).items()}
    for way, of in found.items():
        print(point.case, way, f"{of.ratio:.2f}", flush=True)
    return found


def _of_way(runs: Runs, of: Outcome) -> OfWay:
    first, last = runs.load.window
    last = max(last, *(ended for _, ended in of.spans))
    seen = runs.middle_seen.memory
    memory = [(round(at, 2), round(gib, 3)) for at, gib in seen if first <= at < last]
    return OfWay(**msgspec.structs.asdict(of), memory=memory)


def told(found: dict[str, Found], chosen: argparse.Namespace) -> Told:
    """Return the table and the figures of what was found."""
    rows = [
        [
            "series",
            "case",
            "way",
            "runs",
            "bins moved",
            "MB, about",
            "s",
            *COLUMNS,
            "memory GiB, median",
            "most",
            "Megaphone",
        ]
    ]
    figures: dict[str, dict[str, Any]] = {}
    said: set[str] = set()
    for point in points(chosen):
        ways = found.get(point.case, {})
        for way, of in ways.items():
            theirs = "" if point.series in said else SWEEPS.get(point.series, "")
            said.add(point.series)
            rows.append(
                [
                    point.series,
                    point.label,
                    way,
                    str(len(of.runs)),
                    str(of.bins),
                    f"{of.nbytes / 1e6:.1f}",
                    f"{of.seconds:.2f}",
                    *cells(of),
                    *(f"{gib:.2f}" for gib in of.gib),
                    theirs,
                ]
            )
            name = f"{point.keys}_keys_{point.bits}_bits_{point.rate}_{plain(way)}"
            figures[name] = figure(f"{name}_max_over_steady_max", of.ratio, "x")
        if ways:
            rows.append(
                [
                    point.series,
                    point.label,
                    "nothing moves",
                    *[""] * 4,
                    *unmoved_cells(ways),
                    *[""] * 3,
                ]
            )
    return rows, [*figures.values()]


def draw(found: dict[str, Found], chosen: argparse.Namespace) -> None:
    """Draw for each series how long migrations take, and the longest that a record waits meanwhile.

    Where the load is varied, the longest by the load; the line is the longest while nothing moves.
    """
    shown = [point for point in points(chosen) if point.case in found]
    series = list(dict.fromkeys(point.series for point in shown))
    picture, axes = new_picture(1, len(series), figsize=(4.2 * len(series), 3.8), squeeze=False)
    for name, axis in zip(series, axes[0], strict=True):
        some = [point for point in shown if point.series == name]
        for way in chosen.ways:
            of_way = [(point, found[point.case][way]) for point in some if way in found[point.case]]
            at = [float(point.rate) if name == "load" else of.seconds for point, of in of_way]
            most = [of.moving_max_ms for _, of in of_way]
            axis.loglog(at, most, "o-", color=COLOURS[way], lw=1, ms=4, label=way)
            if name != "load":
                for (point, _), *where in zip(of_way, at, most, strict=True):
                    axis.annotate(
                        point.short, where, (3, 3), textcoords="offset points", fontsize=6
                    )
        _draw_steady(axis, name, some, found)
        axis.set(title=f"varied: {name}")
        axis.set(xlabel="records a second" if name == "load" else "s that the migration takes")
        if name == "load":
            axis.set_xticks([point.rate for point in some], [point.short for point in some])
            axis.set_xticks([], minor=True)
        axis.margins(x=0.12)
    axes[0, 0].set(ylabel="longest latency meanwhile, ms")
    axes[0, 0].legend(fontsize=7)
    save(picture, chosen.pictures / "sweeps.png")


def _draw_steady(axis: Any, name: str, points: list[Point], found: Mapping[str, Found]) -> None:
    """Draw the longest latency while nothing moves: by the load, or the median of all cases."""
    steady = [
        statistics.median(
            run.unmoved_max_ms for of in found[point.case].values() for run in of.runs
        )
        for point in points
    ]
    if name == "load":
        rates = [point.rate for point in points]
        axis.loglog(rates, steady, "k--", lw=1, label="nothing moves")
    else:
        axis.axhline(statistics.median(steady), color="k", ls="--", lw=1, label="nothing moves")


def draw_memory(found: Mapping[str, Found], chosen: argparse.Namespace) -> None:
    """Draw the memory of all Python workers over time, where keys are most, the ways below each other."""
    there = [point for point in points(chosen) if point.case in found]
    most = max(there, key=lambda one: one.keys)
    ways = found[most.case]
    picture, axes = new_picture(
        len(ways), 1, figsize=(9, 0.6 + 1.5 * len(ways)), sharey=True, squeeze=False
    )
    for (way, of), axis in zip(ways.items(), axes[:, 0], strict=True):
        axis.plot(*zip(*of.memory, strict=True), color=COLOURS[way], lw=1)
        for began, ended in of.spans:
            axis.axvspan(began, ended, color="#cccccc", alpha=0.6)
        axis.set(ylabel="GiB")
        axis.set_title(f"{way}, {most.case}", fontsize=9, loc="left")
        axis.margins(x=0)
    axes[0, 0].set(ylim=(0, 1.1 * max(gib for of in ways.values() for _, gib in of.memory)))
    axes[-1, 0].set(xlabel=f"{TIME}; state moves in the grey spans")
    save(picture, chosen.pictures / "memory.png")


if __name__ == "__main__":
    sys.exit(main())
