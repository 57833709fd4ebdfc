"""Megaphone's section 5.2: what bins cost, by their number, as long as nothing moves.

Cumulative counts of keys drawn uniformly from a domain, all of which are there before the measured
records come, in open loop; answered is each record, or each key of a step. All numbers of bins take turns;
told is the median of some runs, of each percentile. With 2 bins a worker has one: as
good as none, which stands beside the paper's native dataflow. The paper's hash-count and key-count, which
stand beside the two, differ in how they keep counts: in a map of keys, or in an array.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.counting import RunningCount
from benchmarks.evaluation.common import options
from benchmarks.evaluation.papers import (
    HASH_COUNT_256M,
    KEY_COUNT_256M,
    KEY_COUNT_8192M,
    Percentiles,
)
from benchmarks.harness import figure, show
from benchmarks.parts import Parts
from benchmarks.places import Place, local
from benchmarks.ways import plain
from headrace.nexmark.harness.latency import Latencies, ccdf
from headrace.nexmark.harness.load import Load
from headrace.nexmark.harness.picture import figure as new_picture
from headrace.nexmark.harness.picture import save

SHARES = (90.0, 99.0, 99.99, 100.0)
#: 2^12 bins are to cost at most so much over none, at p99.
GOAL = 1.1


Runs = list[Latencies]
#: What a case has found: percentiles (ms) by the log2 of bins.
Found = dict[int, list[float]]


class Case(msgspec.Struct, frozen=True):
    """A count, and the paper's column beside it."""

    name: str
    theirs_is: str
    keys: int
    emit: str
    theirs: Percentiles
    their_keys: str

    @property
    def label(self) -> str:
        """What is run."""
        return f"{self.name}, {self.keys:,} keys"

    @property
    def picture(self) -> str:
        """What its picture is called."""
        return f"overhead_{plain(self.name)}_{self.keys}"


CASES = [
    Case("by record", "hash-count", 1_000_000, "record", HASH_COUNT_256M, "256M"),
    Case("by key", "key-count", 1_000_000, "key", KEY_COUNT_256M, "256M"),
    Case("by key", "key-count", 10_000_000, "key", KEY_COUNT_8192M, "8192M"),
]


def main() -> None:
    made = options("overhead", __doc__)
    made.add_argument("--bits", type=int, nargs="*", default=[1, 4, 6, 8, 10, 12, 14, 16, 18, 20])
    made.add_argument("--rate", type=int, default=50_000)
    made.add_argument("--seconds", type=float, default=20.0)
    made.add_argument("--warm", type=float, default=10.0)
    made.add_argument("--runs", type=int, default=3)
    Parts.add_option(made)
    chosen = made.parse_args()
    if chosen.quick:
        chosen.bits, chosen.seconds, chosen.warm, chosen.runs = [1, 12], 4.0, 3.0, 1
    by_label = {case.label: case for case in (CASES[:1] if chosen.quick else CASES)}
    parts = Parts(Found, list(by_label), made, chosen)
    if missing := parts.missing():
        with local() as place:
            one(place, CASES[0], chosen.bits[0], chosen)  # the JVM compiles for half a minute
            for label in missing:
                parts.add(label, of_case(place, by_label[label], chosen))
                parts.write(*told(parts.found))
    show("What bins cost", *told(parts.found))


def of_case(place: Place, case: Case, chosen: argparse.Namespace) -> Found:
    """Count with each number of bins; draw it."""
    runs = in_turns(place, case, chosen)
    draw(case, runs, chosen)
    return {bits: percentiles_ms(some, SHARES) for bits, some in runs.items()}


def in_turns(place: Place, case: Case, chosen: argparse.Namespace) -> dict[int, Runs]:
    """Count with each number of bins, some times; there and back, since the machine's speed drifts."""
    found: dict[int, Runs] = {bits: [] for bits in chosen.bits}
    for number in range(chosen.runs):
        for bits in chosen.bits if number % 2 == 0 else reversed(chosen.bits):
            found[bits].append(one(place, case, bits, chosen))
    return found


def percentiles_ms(runs: Runs, shares: Sequence[float]) -> list[float]:
    """Return percentiles: the median of all runs, of each."""
    each = zip(*(run.percentiles_ms(shares) for run in runs), strict=True)
    return [statistics.median(of) for of in each]


def middle(runs: Runs) -> Latencies:
    """Return the run whose 99th percentile is the median one."""
    return sorted(runs, key=lambda run: run.percentiles_ms([99.0])[0])[len(runs) // 2]


def one(place: Place, case: Case, bits: int, chosen: argparse.Namespace) -> Latencies:
    """Count with so many bins; return how late records were."""
    load = Load(
        rate=chosen.rate, bins=1 << bits, warm_s=chosen.warm, seconds=chosen.seconds, cool_s=1.0
    )
    seen = place.run(RunningCount(case.keys, emit=case.emit), load)
    return seen.latencies.between(*load.window)


def told(found: dict[str, Found]) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Return the table and the figures of what was found."""
    heads = ["p90", "p99", "p99.99", "max"]
    rows = [["answers", "keys", "log2 bins", *(f"{head} ms" for head in heads), "Megaphone's count, keys",
             *(f"its {head} ms" for head in heads)]]  # fmt: skip
    first: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    for case in (case for case in CASES if case.label in found):
        by_bits = found[case.label]
        for bits, own in by_bits.items():
            theirs = case.theirs.get(None if bits == 1 else bits, ())
            count = f"{case.theirs_is}, {case.their_keys}" if theirs else ""
            rows.append([case.name, f"{case.keys:,}", "none" if bits == 1 else str(bits),
                         *(f"{ms:.1f}" for ms in own), count,
                         *([f"{ms:g}" for ms in theirs] or [""] * len(heads))])  # fmt: skip
            figures += [
                figure(f"{plain(case.name)}_{case.keys}_{bits}_bits_{head}", ms, "ms")
                for head, ms in zip(heads, own, strict=True)
            ]
        if {1, 12} <= by_bits.keys():
            ratio = by_bits[12][heads.index("p99")] / by_bits[1][heads.index("p99")]
            name = f"{plain(case.name)}_{case.keys}_p99_4096_bins_over_none"
            first.append(figure(name, ratio, "x", f"<= {GOAL}", ratio <= GOAL))
    return rows, [*first, *figures]


def draw(case: Case, runs: dict[int, Runs], chosen: argparse.Namespace) -> None:
    """Draw which share of records is later than a latency."""
    picture, axis = new_picture(figsize=(6, 3.6))
    for bits, some in runs.items():
        shares = ccdf(middle(some).histogram())
        axis.loglog(*shares, lw=1, label="none" if bits == 1 else f"2^{bits}")
    axis.set(title=case.label, xlabel="ms", ylabel="share of records that are later")
    axis.legend(fontsize=7)
    save(picture, chosen.pictures / f"{case.picture}.png")


if __name__ == "__main__":
    main()
