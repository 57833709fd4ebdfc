"""Megaphone's section 5.2: what bins cost, by their number, as long as nothing moves.

Cumulative counts of keys drawn uniformly from a domain, all of which are there before the measured
records come, in open loop; answered is each record, or each key of a step. All numbers of bins take turns;
told is the median of some runs, of each percentile. With 2 bins a worker has one: as good as none, which
stands beside the paper's native dataflow. The paper's hash-count and key-count, which stand beside the two,
differ in how they keep counts: in a map of keys, or in an array. Held against each other are 2^12 bins and
these two, which run more often, one right after the other: the median of the ratios of such pairs. A step
brings thousands of records, so p99.99 is that of the last of some hundred steps: as good as the maximum.
"""

from __future__ import annotations

import argparse
import statistics
import sys
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
from benchmarks.parts import Parts, Told
from benchmarks.places import Place, local
from benchmarks.ways import plain
from headrace.nexmark.harness.latency import Latencies, ccdf
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.picture import figure as new_picture
from headrace.nexmark.harness.picture import save

SHARES = (90.0, 99.0, 99.99, 100.0)
#: 2^12 bins are to cost at most so much over none, at p99.
GOAL = 1.1
NONE, MANY = 1, 12

Runs = list[Latencies]
#: What a case has found, by the log2 of bins: percentiles (ms) of each run, in turn.
Found = dict[int, list[list[float]]]


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


def main() -> int:
    made = options("overhead", __doc__)
    made.add_argument("--bits", type=int, nargs="*", default=[1, 4, 6, 8, 10, 12, 14, 16, 18, 20])
    made.add_argument("--rate", type=int, default=50_000)
    made.add_argument("--seconds", type=float, default=20.0)
    made.add_argument("--warm", type=float, default=10.0)
    made.add_argument("--runs", type=int, default=2)
    made.add_argument(
        "--pairs", type=int, default=5, help="runs of what is held against each other"
    )
    Parts.add_option(made)
    chosen = made.parse_args()
    if chosen.quick:
        chosen.bits, chosen.seconds, chosen.warm = [NONE, MANY], 4.0, 3.0
        chosen.runs = chosen.pairs = 1
    by_label = {case.label: case for case in (CASES[:1] if chosen.quick else CASES)}
    parts = Parts(Found, list(by_label), made, chosen)
    failed = 0
    if missing := parts.missing():
        with local() as place:
            one(place, CASES[0], chosen.bits[0], chosen)  # the JVM compiles for half a minute
            failed = parts.measure(
                missing, lambda label: of_case(place, by_label[label], chosen), told
            )
    show("What bins cost", *told(parts.found))
    return failed


def of_case(place: Place, case: Case, chosen: argparse.Namespace) -> Found:
    """Count with each number of bins; draw it."""
    runs = in_turns(place, case, chosen)
    draw(case, runs, chosen)
    return {bits: [run.percentiles_ms(SHARES) for run in some] for bits, some in runs.items()}


def in_turns(place: Place, case: Case, chosen: argparse.Namespace) -> dict[int, Runs]:
    """Count with each number of bins, some times; there and back, since the machine's speed drifts."""
    found: dict[int, Runs] = {bits: [] for bits in chosen.bits}
    pair = [bits for bits in (NONE, MANY) if bits in chosen.bits]
    rest = [bits for bits in chosen.bits if bits not in pair]
    for number in range(max(chosen.runs, chosen.pairs)):
        some = [*(pair if number < chosen.pairs else []), *(rest if number < chosen.runs else [])]
        for bits in some if number % 2 == 0 else reversed(some):
            found[bits].append(one(place, case, bits, chosen))
    return found


def medians(runs: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of all runs, of each percentile."""
    return [statistics.median(of) for of in zip(*runs, strict=True)]


def middle(runs: Runs) -> Latencies:
    """Return the run whose 99th percentile is the median one."""
    return sorted(runs, key=lambda run: run.percentiles_ms([99.0])[0])[len(runs) // 2]


def one(place: Place, case: Case, bits: int, chosen: argparse.Namespace) -> Latencies:
    """Count with so many bins; return how late records were."""
    load = LoadTest(
        rate=chosen.rate, bins=1 << bits, warm_s=chosen.warm, seconds=chosen.seconds, cool_s=1.0
    )
    seen = place.run(RunningCount(case.keys, emit=case.emit), load)
    return seen.latencies.between(*load.window)


def told(found: dict[str, Found]) -> Told:
    """Return the table and the figures of what was found."""
    heads = ["p90", "p99", "p99.99", "max"]
    rows = [
        [
            "answers",
            "keys",
            "log2 bins",
            "runs",
            *(f"{head} ms" for head in heads),
            "Megaphone's count, keys",
            *(f"its {head} ms" for head in heads),
        ]
    ]
    first: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    for case in (case for case in CASES if case.label in found):
        by_bits = found[case.label]
        for bits, runs in by_bits.items():
            own, theirs = medians(runs), case.theirs.get(None if bits == NONE else bits, ())
            count = f"{case.theirs_is}, {case.their_keys}" if theirs else ""
            rows.append(
                [
                    case.name,
                    f"{case.keys:,}",
                    "1 (one a worker)" if bits == NONE else str(bits),
                    str(len(runs)),
                    *(f"{ms:.1f}" for ms in own),
                    count,
                    *([f"{ms:g}" for ms in theirs] or [""] * len(heads)),
                ]
            )
            figures += [
                figure(f"{plain(case.name)}_{case.keys}_{bits}_bits_{head}", ms, "ms")
                for head, ms in zip(heads, own, strict=True)
            ]
        if {NONE, MANY} <= by_bits.keys():
            p99 = heads.index("p99")
            pairs = zip(by_bits[NONE], by_bits[MANY], strict=True)
            ratios = [many[p99] / none[p99] for none, many in pairs]
            ratio, name = statistics.median(ratios), f"{plain(case.name)}_{case.keys}_p99_4096_bins"
            first.append(figure(f"{name}_over_none", ratio, "x", f"<= {GOAL}", ratio <= GOAL))
            first.append(figure(f"{name}_over_none_least", min(ratios), "x"))
            first.append(figure(f"{name}_over_none_most", max(ratios), "x"))
    return rows, [*first, *figures]


def draw(case: Case, runs: dict[int, Runs], chosen: argparse.Namespace) -> None:
    """Draw which share of records is later than a latency."""
    picture, axis = new_picture(figsize=(6, 3.6))
    for bits, some in runs.items():
        shares = ccdf(middle(some).histogram())
        axis.loglog(*shares, lw=1, label="one a worker" if bits == NONE else f"2^{bits}")
    axis.set(title=case.label, xlabel="ms", ylabel="share of records that are later")
    axis.legend(fontsize=7)
    save(picture, chosen.pictures / f"{case.picture}.png")


if __name__ == "__main__":
    sys.exit(main())
