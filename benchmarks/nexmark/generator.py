"""How fast NEXMark's events are made: ``python -m benchmarks.nexmark.generator``.

On one core, as Arrow tables with all columns: each kind in tables of its own, as pipelines read them; all
kinds in one stream, a struct for each; both also out of order. Told is the median of some runs, in turns.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.evaluation.common import options
from benchmarks.harness import figure, report
from headrace.nexmark.events import read, schema_of
from headrace.nexmark.timeline import Kind, Timeline

APART = (Kind.PERSON, Kind.AUCTION, Kind.BID)
#: What is made: which tables, in groups of how many events they arrive out of order, and the goal.
CASES: dict[str, tuple[tuple[Kind, ...], int, float | None]] = {
    "each kind in its own table": (APART, 1, 2e6),
    "each kind in its own table, out of order": (APART, 2_048, None),
    "all in one stream": ((Kind.EVENT,), 1, None),
    "all in one stream, out of order": ((Kind.EVENT,), 2_048, None),
}


def main() -> None:
    made = options("generator", __doc__)
    made.add_argument("--events", type=int, default=4_000_000)
    made.add_argument("--runs", type=int, default=5)
    chosen = made.parse_args()
    if chosen.quick:
        chosen.events, chosen.runs = 500_000, 2
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    for _ in range(chosen.runs):
        for case, (kinds, disorder, _) in CASES.items():
            found[case].append(speed(kinds, disorder, chosen.events))
    rows, figures = [["what", "events/s/core", "MB/s"]], []
    for case, speeds in found.items():
        events, nbytes = (statistics.median(of) for of in zip(*speeds, strict=True))
        rows.append([case, f"{events:,.0f}", f"{nbytes / 1e6:,.0f}"])
        asked = CASES[case][2]
        goal = (f">= {asked:,.0f}", events >= asked) if asked else ()
        name = case.replace(",", "").replace(" ", "_")
        figures.append(figure(name, events, "events/s/core", *goal))
    report("NEXMark's generator", rows, figures, chosen)


def speed(kinds: tuple[Kind, ...], disorder: int, events: int) -> tuple[float, float]:
    """Make events; return how many of them, and how many bytes, a second of the processor takes."""
    timeline = Timeline(events=events, disorder=disorder)
    begun, nbytes = time.process_time(), 0
    for kind in kinds:
        for table in read(timeline, kind, 0, events, schema_of(kind).names):
            nbytes += table.nbytes
    took = time.process_time() - begun
    return events / took, nbytes / took


if __name__ == "__main__":
    main()
