"""MillWheel's section 8: the distribution of latencies, with more workers, watermark lag, and the cache.

Open loop, records with random keys, each counted and passed on. Latency with strong and weak productions
(section 8.1, Figure 13); with 1, 2 and 4 workers, and as many times the records (Figure 14); how far the
watermarks of three stages with different keys are behind real time just before a commit moves them (8.2,
Figure 15); and what a worker's memory for state saves of processor time and reading (8.3, Figure 16).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.counted import CountedStore, bytes_read
from benchmarks.counting import RunningCount
from benchmarks.evaluation.common import options
from benchmarks.evaluation.papers import LAG_FIRST_MS, LAG_MORE_MS, LATENCY
from benchmarks.harness import figure, local_session, report
from benchmarks.latency import MODES, STRONG, Mode, Seen, in_turns, measure
from benchmarks.places import Place, local
from headrace.nexmark.harness.latency import Latencies
from headrace.nexmark.harness.load import Load
from headrace.nexmark.harness.picture import figure as new_picture
from headrace.nexmark.harness.picture import save

SHARES = (50, 95, 99, 100)
STAGES = 3
MIB = 1 << 20


def main() -> None:
    made = options("millwheel", __doc__)
    made.add_argument("--rate", type=int, default=10_000, help="records a second and two workers")
    made.add_argument("--seconds", type=float, default=20.0)
    made.add_argument("--warm", type=float, default=10.0)
    made.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    made.add_argument("--keys", type=int, default=1_000_000, help="of the series of caches")
    made.add_argument("--mib", type=int, nargs="*", default=[4, 8, 16, 24, 32, 64], help="caches")
    chosen = made.parse_args()
    if chosen.quick:
        chosen.seconds, chosen.warm, chosen.workers = 3.0, 2.0, [2]
        chosen.mib, chosen.keys = [1, 64], 100_000
    rows = [["figure", "case", *(f"p{share} ms" for share in SHARES[:-1]), "max ms", "MillWheel"]]
    figures = [*latencies(chosen, rows), *caches(chosen, rows)]
    report("MillWheel's section 8", rows, figures, chosen)


def latencies(chosen: argparse.Namespace, rows: list[list[str]]) -> list[dict[str, Any]]:
    """Measure what is about latency, in a session for each number of workers."""
    figures = []
    for workers in chosen.workers:
        spark = local_session(workers)
        context, rate = spark.sparkContext, chosen.rate * workers // 2

        def run(mode: Mode, depth: int = 1, context: Any = context, rate: int = rate,
                workers: int = workers) -> tuple[Any, Seen]:  # fmt: skip
            return measure(context, rate, depth, chosen.seconds, chosen.warm, mode, workers)

        measure(
            context, rate, STAGES, 0.0, max(chosen.warm, 1.5 * chosen.seconds)
        )  # the JVM compiles
        if workers == 2:
            figures += distribution(run, chosen, rows)
            figures += watermarks(run(STRONG, STAGES)[1], rows)
        found, _ = run(STRONG)
        label = f"{workers} workers, {rate:,} records/s"
        rows.append(["14, scaling", label, *shown(found), "p50 level, p99 some 100 ms"])
        figures.append(figure(f"p50_ms_{workers}_workers", float(np.median(found)) * 1e3, "ms"))
        spark.stop()
    return figures


def distribution(
    run: Callable[[Mode], tuple[Any, Seen]], chosen: argparse.Namespace, rows: list[list[str]]
) -> list[dict[str, Any]]:
    """Measure and draw the distribution of latencies, with each kind of productions."""
    picture, axes = new_picture(figsize=(7, 4))
    figures = []
    for mode, (found, _) in in_turns(MODES, run).items():
        label = str(mode).replace("_ids", ", record ids")
        theirs = "p50 {:g} ms, p95 {:g} ms".format(*LATENCY[label]) if label in LATENCY else ""
        rows.append(["13, distribution", f"{label} productions", *shown(found), theirs])
        axes.plot(
            np.percentile(found, np.arange(0, 100)) * 1e3, np.arange(0, 100), lw=1, label=label
        )
        for share in SHARES[:2]:
            ms = float(np.percentile(found, share)) * 1e3
            figures.append(figure(f"{mode}_p{share}_ms", ms, "ms"))
    axes.set(xlabel="ms from when a record was due", ylabel="% of records", xlim=(0, None))
    axes.legend(fontsize=8)
    save(picture, chosen.pictures / "latency.png")
    return figures


def watermarks(seen: Seen, rows: list[list[str]]) -> list[dict[str, Any]]:
    """Tell how far each stage's watermark was behind, and what each adds to the one before."""
    shares = [seen.lag_ms(share) for share in SHARES]
    figures, before = [], 0.0
    for stage, late in enumerate(zip(*shares, strict=True), 1):
        theirs = f"{LAG_FIRST_MS:g} ms" if stage == 1 else f"adds less than {LAG_MORE_MS:g} ms"
        rows.append(["15, watermark lag", f"stage {stage}", *(f"{ms:.0f}" for ms in late), theirs])
        name, ms, most = f"watermark_added_ms_stage{stage}", late[1] - before, LAG_MORE_MS
        if stage == 1:
            name, most = "watermark_lag_ms_stage1", LAG_FIRST_MS
        figures.append(figure(name, ms, "ms", f"< {most:g}", ms < most))
        before = late[1]
    return figures


class Cache(NamedTuple):
    """What a cache did.

    Attributes:
        latencies: how late records were.
        cores: how many cores the Python workers kept busy.
        mib_read: how much they read from storage, in MiB a second.
    """

    latencies: Latencies
    cores: float
    mib_read: float


def caches(chosen: argparse.Namespace, rows: list[list[str]]) -> list[dict[str, Any]]:
    """Measure and draw what a worker's memory for state saves."""
    with local() as place:
        with_cache(place, chosen.mib[-1], chosen)  # (the JVM compiles)
        found = {mib: with_cache(place, mib, chosen) for mib in chosen.mib}
    figures = []
    for mib, cache in found.items():
        late = [f"{ms:.1f}" for ms in cache.latencies.percentiles_ms(SHARES)]
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
    return figures


def with_cache(place: Place, mib: int, chosen: argparse.Namespace) -> Cache:
    """Count with a cache of so many MiB a worker."""
    load = Load(rate=chosen.rate // 10, bins=1_024, warm_s=chosen.warm, seconds=chosen.seconds)
    first, last = load.window
    with tempfile.TemporaryDirectory(prefix="headrace-cache-") as folder:
        store = CountedStore(Path(folder) / "store")
        seen = place.run(RunningCount(chosen.keys), load, store=store, cached_bytes=mib * MIB)
        begin = seen.begin_us / 1e6
        read = bytes_read(Path(folder) / "store", begin + first, begin + last)
    (begun, before), *_, (ended, after) = [one for one in seen.busy if first <= one[0] < last]
    window = seen.latencies.between(first, last)
    return Cache(window, (after - before) / (ended - begun), read / load.seconds / MIB)


def shown(found: Any) -> list[str]:
    """Return the percentiles of latencies (s), in ms."""
    return [f"{ms:.1f}" for ms in np.percentile(found, SHARES) * 1e3]


if __name__ == "__main__":
    main()
