"""Megaphone's section 5.3: how long migrations take and records wait, by bins, keys and load; and memory.

Cumulative counts, all keys there before. A quarter of the bins move and come back, all at once, one bin at
a time (fluid), in rounds that do not get in each other's way (batched), and these with what moves copied
ahead (prepared). Two hosts, with nothing shared but a store as slow as one across a network; or one. The
ways take turns; held against each other are the longest latency while state moved, in the median run, and
the longest before, in the median of all runs of the case.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.counting import RunningCount
from benchmarks.evaluation.common import options
from benchmarks.harness import figure, report
from benchmarks.places import Place, local, two_hosts
from benchmarks.ways import WAYS, Runs, plain, runs_of, steady_max_ms
from headrace.nexmark.harness.load import Load
from headrace.nexmark.harness.picture import TIME, memory_over_time, save
from headrace.nexmark.harness.picture import figure as new_picture

COLOURS = dict(zip(WAYS, ("#c0392b", "#2471a3", "#e59866", "#1e8449"), strict=True))
SHARES = (50.0, 100.0)
#: So long a new session is warmed up.
_COMPILES_S = 30.0


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


def main() -> None:
    made = options("sweeps", __doc__)
    made.add_argument("--series", nargs="*", default=["bins", "keys", "keys and bins", "load"])
    made.add_argument("--ways", nargs="*", default=list(WAYS))
    made.add_argument("--keys", type=int, default=1_000_000)
    made.add_argument("--bits", type=int, default=8, help="log2 of the usual number of bins")
    made.add_argument("--rate", type=int, default=20_000)
    made.add_argument("--seconds", type=float, default=8.0, help="each of three windows")
    made.add_argument("--warm", type=float, default=8.0, help="of each run; the first is longer")
    made.add_argument("--runs", type=int, default=3)
    made.add_argument("--hosts", type=int, choices=[1, 2], default=2)
    chosen = made.parse_args()
    if chosen.quick:
        chosen.series, chosen.ways = ["keys"], ["all at once", "batched, prepared"]
        chosen.keys, chosen.seconds, chosen.warm, chosen.runs = 200_000, 4.0, 8.0, 1
    measured: dict[tuple[int, int, int], dict[str, Runs]] = {}
    found: dict[Point, dict[str, Runs]] = {}
    with two_hosts() if chosen.hosts == 2 else local() as place:
        warm_up(place, chosen)
        for point in points(chosen):
            if point.series not in chosen.series:
                continue
            case = point.keys, point.bits, point.rate  # (the usual one is in each series)
            if case not in measured:
                measured[case] = of_case(place, *case, chosen)
            found[point] = measured[case]
    tell(found, chosen)


def warm_up(place: Place, chosen: argparse.Namespace) -> None:
    """Run the usual case for nobody: the JVMs compile for half a minute."""
    load = Load(
        rate=chosen.rate, bins=1 << chosen.bits, warm_s=1.0 if chosen.quick else _COMPILES_S
    )
    place.warm_up(RunningCount(chosen.keys), load)


def of_case(
    place: Place, keys: int, bits: int, rate: int, chosen: argparse.Namespace
) -> dict[str, Runs]:
    """Run a case in each way."""
    load = Load(rate=rate, bins=1 << bits, warm_s=chosen.warm, seconds=3 * chosen.seconds)
    found = runs_of(place, RunningCount(keys), load, chosen.ways, chosen.runs)
    for way, runs in found.items():
        ratio = runs.moving_max_ms / steady_max_ms(found)
        print(f"{keys:,} keys, 2^{bits} bins, {rate:,}/s", way, f"{ratio:.2f}", flush=True)
    return found


def tell(found: dict[Point, dict[str, Runs]], chosen: argparse.Namespace) -> None:
    """Report what was found, and draw it."""
    rows = [["series", "case", "way", "bins moved", "MB", "s", "steady p50 ms", "steady max ms",
             "moving p50 ms", "moving max ms", "max over steady max",
             "memory GiB, median", "most"]]  # fmt: skip
    figures: list[dict[str, Any]] = []
    for point, runs in found.items():
        for way, of in runs.items():
            moved, ratio = of.moved, of.moving_max_ms / steady_max_ms(runs)
            rows.append([point.series, point.label, way, str(moved.bins), f"{moved.nbytes / 1e6:.1f}",
                         f"{moved.seconds:.2f}", *(f"{ms:.0f}" for ms in of.late_ms(SHARES)),
                         f"{ratio:.2f}", *(f"{gib:.2f}" for gib in of.gib)])  # fmt: skip
            name = f"{point.keys}_keys_{point.bits}_bits_{point.rate}_{plain(way)}"
            figures.append(figure(f"{name}_max_over_steady_max", ratio, "x"))
    draw(found, chosen)
    draw_memory(max(found, key=lambda point: point.keys), found, chosen)
    report("Migrations by bins, keys and load", rows, figures, chosen)


def draw(found: dict[Point, dict[str, Runs]], chosen: argparse.Namespace) -> None:
    """Draw for each series how long migrations take, and the longest that a record waits meanwhile."""
    series = list(dict.fromkeys(point.series for point in found))
    picture, axes = new_picture(1, len(series), figsize=(4.2 * len(series), 3.8), squeeze=False)
    for name, axis in zip(series, axes[0], strict=True):
        for way in chosen.ways:
            some = [(point, of[way]) for point, of in found.items() if point.series == name]
            took = [of.moved.seconds for _, of in some]
            most = [of.moving_max_ms for _, of in some]
            axis.loglog(took, most, "o-", color=COLOURS[way], lw=1, ms=4, label=way)
            for at, (point, _) in enumerate(some):
                axis.annotate(point.label, (took[at], most[at]), fontsize=5)
        axis.set(title=f"varied: {name}", xlabel="s that the migration takes")
    axes[0, 0].set(ylabel="longest latency meanwhile, ms")
    axes[0, 0].legend(fontsize=7)
    save(picture, chosen.pictures / "sweeps.png")


def draw_memory(
    point: Point, found: dict[Point, dict[str, Runs]], chosen: argparse.Namespace
) -> None:
    """Draw the memory of all Python workers over time, each way below the other."""
    picture, axes = new_picture(
        len(found[point]), 1, figsize=(9, 0.6 + 1.5 * len(found[point])), sharey=True, squeeze=False
    )
    for (way, of), axis in zip(found[point].items(), axes[:, 0], strict=True):
        memory_over_time(axis, of.seen[0], of.load, color=COLOURS[way])
        axis.set_title(f"{way}, {point.label}", fontsize=9, loc="left")
    axes[-1, 0].set(xlabel=f"{TIME}; state moves in the grey spans")
    save(picture, chosen.pictures / "memory.png")


if __name__ == "__main__":
    main()
