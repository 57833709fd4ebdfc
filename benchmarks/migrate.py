"""A quarter of the bins moves, uniform to skewed to uniform, under a constant load.

There are two hosts: a standalone master with two workers on two loopback addresses. They share
nothing but a store that is as slow as one across a network. Half of the bins of one host move to
the other at a third of the time, and back at two thirds: all at once, fluid, batched, and batched
with reading ahead. Latency counts from the time that a record was scheduled until a sink has its
step's results, in buckets of 250 ms. Windows of equal length are compared, before and while state
moves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.counting import RunningCount
from benchmarks.harness import figure, parser, report
from benchmarks.places import two_hosts
from benchmarks.ways import WAYS, Runs, plain, runs_of
from headrace.nexmark.harness.latency import Latencies
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.picture import draw_ways

GOAL_PREPARED = 1.15
GOAL_ALL_AT_ONCE = 10.0
#: Comparing with all at once is meaningful if its maximum is this many times the steady one.
BAD = 20.0
SHARES = (50.0, 99.9, 100.0)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rate", type=int, default=20_000)
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--bins", type=int, default=256)
    options.add_argument("--call-ms", type=float, default=10.0)
    options.add_argument("--megabytes", type=float, default=100.0)
    options.add_argument("--seconds", type=float, default=40.0, help="each of three windows")
    options.add_argument("--warm", type=float, default=40.0)
    options.add_argument("--runs", type=int, default=5)
    options.add_argument("--ways", nargs="*", default=list(WAYS))
    options.add_argument("--picture", type=Path)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.keys, chosen.seconds, chosen.warm, chosen.runs = 200_000, 15.0, 25.0, 1
    load = LoadTest(
        rate=chosen.rate, bins=chosen.bins, warm_s=chosen.warm, seconds=3 * chosen.seconds
    )
    with two_hosts(call_ms=chosen.call_ms, megabytes=chosen.megabytes) as place:
        times = dict.fromkeys(chosen.ways, chosen.runs)
        runs = runs_of(place, RunningCount(chosen.keys, tasks=1), load, times)
    if chosen.picture:
        draw_ways({way: of.seen[0] for way, of in runs.items()}, load, chosen.picture)
    rows = [head(), *(row(way, of) for way, of in runs.items())]
    memory = {way: [gib * 1024 for gib in of.gib] for way, of in runs.items()}
    title = "A quarter of the bins move, and back"
    report(title, rows, figures_of(runs), chosen, memory_mib=memory)


def head() -> list[str]:
    """Return the head of the table."""
    times = [
        f"{when} {what}"
        for when in ("steady", "moving")
        for what in ("p50 ms", "p99.9 ms", "max ms")
    ]
    return ["way", "bins", "MB", "s", *times]


def row(way: str, runs: Runs) -> list[str]:
    """Return the row of a way."""
    moved, times = runs.moved, (f"{ms:.0f}" for ms in runs.late_ms(SHARES))
    return [way, str(moved.bins), f"{moved.nbytes / 1e6:.1f}", f"{moved.seconds:.1f}", *times]


def figures_of(runs: dict[str, Runs]) -> list[dict[str, Any]]:
    """Return all figures, those with goals first."""
    first, rest = [], []
    for way, of in runs.items():
        found = of.middle
        rest += [
            figure(f"{plain(way)}_max_over_steady_max", found.ratio, "x"),
            figure(f"{plain(way)}_p999_over_steady_p999", _over(found.moving, found.steady), "x"),
            figure(f"{plain(way)}_seconds", of.moved.seconds, "s"),
        ]
    prepared, once = runs.get("batched, prepared"), runs.get("all at once")
    if prepared is not None:
        found = prepared.middle
        for what, ratio in (("max", found.ratio), ("p999", _over(found.moving, found.steady))):
            name = f"prepared_{what}_over_steady_{what}"
            first.append(figure(name, ratio, "x", f"<= {GOAL_PREPARED}", ratio <= GOAL_PREPARED))
        if once is not None:
            gain = once.middle.moving.max_ms / found.moving.max_ms
            goal = (f">= {GOAL_ALL_AT_ONCE:g}", gain >= GOAL_ALL_AT_ONCE)
            given = goal if once.middle.ratio >= BAD else ()
            first.append(figure("all_at_once_max_over_prepared_max", gain, "x", *given))
    return [*first, *rest]


def _over(moving: Latencies, steady: Latencies) -> float:
    return moving.percentiles_ms([99.9])[0] / steady.percentiles_ms([99.9])[0]


if __name__ == "__main__":
    main()
