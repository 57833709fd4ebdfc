"""MillWheel's section 8: the distribution of latencies, with more workers, watermark lag, and the cache.

Open loop, records with random keys, each counted and passed on. Latency with strong and weak productions
(section 8.1, Figure 13); with 1, 2 and 4 workers, and as many times the records (Figure 14); how far the
watermarks of three stages with different keys are behind real time just before a commit moves them (8.2,
Figure 15); and what a worker's memory for state saves of processor time and reading (8.3, Figure 16).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.counted import CountedStore, bytes_read
from benchmarks.counting import RunningCount
from benchmarks.evaluation.common import options
from benchmarks.evaluation.papers import LAG_FIRST_MS, LAG_MORE_MS, LATENCY
from benchmarks.harness import figure, local_session, show
from benchmarks.latency import MODES, STRONG, Mode, Seen, in_turns, measure
from benchmarks.parts import Parts, Told
from benchmarks.places import Place, local
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.picture import figure as new_picture
from headrace.nexmark.harness.picture import save

SHARES = (50, 95, 99, 100)
STAGES = 3
MIB = 1 << 20


class Found(msgspec.Struct, frozen=True):
    """What a part has found: its lines of the table, and its figures."""

    rows: list[list[str]]
    figures: list[dict[str, Any]]


def main() -> int:
    made = options("millwheel", __doc__)
    made.add_argument("--rate", type=int, default=10_000, help="records a second and two workers")
    made.add_argument("--seconds", type=float, default=20.0)
    made.add_argument("--warm", type=float, default=10.0)
    made.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    made.add_argument("--runs", type=int, default=3, help="with each number of workers")
    made.add_argument("--keys", type=int, default=1_000_000, help="of the series of caches")
    made.add_argument("--mib", type=int, nargs="*", default=[4, 8, 16, 24, 32, 64], help="caches")
    Parts.add_option(made)
    chosen = made.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.warm, chosen.workers, chosen.runs = 3.0, 2.0, [1, 2], 1
        chosen.mib, chosen.keys = [1, 64], 100_000
    parts = Parts(Found, list(PARTS), made, chosen)
    failed = parts.measure(parts.missing(), lambda name: PARTS[name](chosen), told)
    show("MillWheel's section 8", *told(parts.found))
    return failed


def told(found: dict[str, Found]) -> Told:
    """Return the table and the figures of what was found."""
    rows = [["figure", "case", *(f"p{share} ms" for share in SHARES[:-1]), "max ms", "MillWheel"]]
    rows += [row for of in found.values() for row in of.rows]
    return rows, [one for of in found.values() for one in of.figures]


#: Runs a pipeline of so many computations, in a mode; returns latencies (s), and what else was seen.
Run = Callable[..., tuple[Any, Seen]]


@contextmanager
def warm(workers: int, chosen: argparse.Namespace) -> Iterator[Run]:
    """Start a session with so many workers and let the JVM compile; give what runs pipelines in it."""
    spark = local_session(workers)
    rate = chosen.rate * workers // 2

    def run(mode: Mode, depth: int = 1) -> tuple[Any, Seen]:
        context = spark.sparkContext
        return measure(context, rate, depth, chosen.seconds, chosen.warm, mode, workers)

    try:
        compiles_s = max(chosen.warm, 1.5 * chosen.seconds)
        measure(spark.sparkContext, rate, STAGES, 0.0, compiles_s)
        yield run
    finally:
        spark.stop()


def distribution(chosen: argparse.Namespace) -> Found:
    """Measure and draw the distribution of latencies, with each kind of productions."""
    with warm(2, chosen) as run:
        ways = in_turns(MODES, run)
    rows, figures = [], []
    picture, axes = new_picture(figsize=(7, 4))
    for mode, (found, _) in ways.items():
        label = str(mode).replace("_ids", ", record ids")
        theirs = "p50 {:g} ms, p95 {:g} ms".format(*LATENCY[label]) if label in LATENCY else ""
        rows.append(["13, distribution", f"{label} productions", *shown(found), theirs])
        shares = np.arange(0, 100)
        axes.plot(np.percentile(found, shares) * 1e3, shares, lw=1, label=label)
        for share in SHARES[:2]:
            ms = float(np.percentile(found, share)) * 1e3
            figures.append(figure(f"{mode}_p{share}_ms", ms, "ms"))
    axes.set(xlabel="ms from when a record was due", ylabel="% of records", xlim=(0, None))
    axes.legend(fontsize=8)
    save(picture, chosen.pictures / "latency.png")
    return Found(rows, figures)


def scaling(chosen: argparse.Namespace) -> Found:
    """Measure and draw latencies with more workers, and as many times the records; in turns."""
    runs: dict[int, list[list[float]]] = {workers: [] for workers in chosen.workers}
    for turn in range(chosen.runs):
        for workers in chosen.workers if turn % 2 == 0 else reversed(chosen.workers):
            with warm(workers, chosen) as run:
                runs[workers].append(percentiles_ms(run(STRONG)[0]))
    medians = {
        workers: [statistics.median(of) for of in zip(*some, strict=True)]
        for workers, some in runs.items()
    }
    rows, figures = [], []
    for workers, late in medians.items():
        label = f"{workers} workers, {chosen.rate * workers // 2:,} records/s"
        theirs = "p50 level, p99 some 100 ms"
        rows.append(["14, scaling", label, *(f"{ms:.1f}" for ms in late), theirs])
        figures.append(figure(f"p50_ms_{workers}_workers", late[0], "ms"))
    picture, axes = new_picture(figsize=(7, 3.6))
    for at, share in enumerate(SHARES[:3]):
        axes.plot([*medians], [late[at] for late in medians.values()], "o-", label=f"p{share}")
    axes.set(xlabel="workers, on two cores", ylabel="ms", ylim=(0, None), xticks=[*medians])
    axes.legend(fontsize=8)
    save(picture, chosen.pictures / "scaling.png")
    return Found(rows, figures)


def lag(chosen: argparse.Namespace) -> Found:
    """Measure and draw how far each stage's watermark is behind, and what each adds to the one before."""
    with warm(2, chosen) as run:
        _, seen = run(STRONG, STAGES)
    by_stage = list(zip(*(seen.lag_ms(share) for share in SHARES), strict=True))
    rows, figures, before = [], [], 0.0
    for stage, late in enumerate(by_stage, 1):
        theirs = f"{LAG_FIRST_MS:g} ms" if stage == 1 else f"adds less than {LAG_MORE_MS:g} ms"
        rows.append(["15, watermark lag", f"stage {stage}", *(f"{ms:.0f}" for ms in late), theirs])
        name = "watermark_lag_ms_stage1" if stage == 1 else f"watermark_added_ms_stage{stage}"
        figures.append(figure(name, late[1] - before, "ms"))
        before = late[1]
    picture, axes = new_picture(figsize=(7, 3.6))
    stages = range(1, len(by_stage) + 1)
    for at, share in enumerate(SHARES[:3]):
        axes.plot(stages, [late[at] for late in by_stage], "o-", label=f"p{share}")
    axes.set(xlabel="stage", ylabel="ms behind real time", ylim=(0, None), xticks=[*stages])
    axes.legend(fontsize=8)
    save(picture, chosen.pictures / "lag.png")
    return Found(rows, figures)


class Cache(NamedTuple):
    """What a cache did.

    Attributes:
        late_ms: percentiles of how late records were.
        cores: how many cores the Python workers kept busy.
        mib_read: how much they and the driver read from storage, in MiB a second.
    """

    late_ms: list[float]
    cores: float
    mib_read: float


def caches(chosen: argparse.Namespace) -> Found:
    """Measure and draw what a worker's memory for state saves."""
    with local() as place:
        with_cache(place, chosen.mib[-1], chosen)  # (the JVM compiles)
        there = [with_cache(place, mib, chosen) for mib in chosen.mib]
        back = [with_cache(place, mib, chosen) for mib in reversed(chosen.mib)]
    found = {mib: mean(*two) for mib, *two in zip(chosen.mib, there, reversed(back), strict=True)}
    rows, figures = [], []
    for mib, cache in found.items():
        late = [f"{ms:.1f}" for ms in cache.late_ms]
        label = f"{mib} MiB a worker: {cache.cores:.2f} cores, {cache.mib_read:.1f} MiB/s read"
        rows.append(["16, cache", label, *late, "half of the processors' time"])
        figures.append(figure(f"cores_{mib}_mib", cache.cores, "cores"))
        figures.append(figure(f"read_{mib}_mib", cache.mib_read, "MiB/s"))
    picture, axes = new_picture(figsize=(7, 3.6))
    for what, label in (("cores", "processor time"), ("mib_read", "bytes read")):
        values = [getattr(cache, what) for cache in found.values()]
        axes.plot(chosen.mib, [value / max(*values, 1e-9) for value in values], "o-", label=label)
    axes.set(xlabel="MiB of state that a worker keeps", ylabel="of the most", ylim=(0, 1.05))
    axes.legend(fontsize=8)
    save(picture, chosen.pictures / "cache.png")
    return Found(rows, figures)


def with_cache(place: Place, mib: int, chosen: argparse.Namespace) -> Cache:
    """Count with a cache of so many MiB a worker."""
    load = LoadTest(rate=chosen.rate // 10, bins=1_024, warm_s=chosen.warm, seconds=chosen.seconds)
    first, last = load.window
    with tempfile.TemporaryDirectory(
        prefix="headrace-cache-", ignore_cleanup_errors=True
    ) as folder:
        store = CountedStore(Path(folder) / "store")
        seen = place.run(RunningCount(chosen.keys), load, store=store, cached_bytes=mib * MIB)
        begin = seen.begin_us / 1e6
        read = bytes_read(Path(folder) / "store", begin + first, begin + last)
    (begun, before), *_, (ended, after) = [one for one in seen.busy if first <= one[0] < last]
    window = seen.latencies.between(first, last)
    return Cache(
        window.percentiles_ms(SHARES), (after - before) / (ended - begun), read / load.seconds / MIB
    )


def mean(one: Cache, other: Cache) -> Cache:
    """Return what is midway between two runs: the machine's speed drifts."""
    late = [statistics.mean(two) for two in zip(one.late_ms, other.late_ms, strict=True)]
    return Cache(
        late,
        statistics.mean((one.cores, other.cores)),
        statistics.mean((one.mib_read, other.mib_read)),
    )


def shown(found: Any) -> list[str]:
    """Return the percentiles of latencies (s), in ms, as they are told."""
    return [f"{ms:.1f}" for ms in percentiles_ms(found)]


def percentiles_ms(found: Any) -> list[float]:
    """Return the percentiles of latencies (s), in ms."""
    return [float(ms) for ms in np.percentile(found, SHARES) * 1e3]


#: What measures each part.
PARTS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "distribution": distribution,
    "scaling": scaling,
    "lag": lag,
    "cache": caches,
}


if __name__ == "__main__":
    sys.exit(main())
