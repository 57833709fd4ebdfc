"""A quarter of the bins move, uniform to skewed to uniform, while records come at a constant rate.

Two hosts (a standalone master with two workers on two loopback addresses), nothing shared between them
but a store that is as slow as one across a network. Half of the bins of one host move to the other at a
third of the time, and back at two thirds: all at once, fluid, batched, and batched with what moves copied
ahead. Latency counts from the time that a record was scheduled until a sink has its step's results, in
buckets of 250 ms; compared are windows of the same length, before and while state moves.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tests.spark.conftest import session
from tests.support.cluster import cluster_settings, standalone_cluster

import headrace as hr
from benchmarks.counting import Counted
from benchmarks.harness import ROOT, figure, parser, report
from benchmarks.inputs import FilledThenPaced
from benchmarks.throttled import ThrottledStore
from headrace.driver import Driver
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.manifest import Head
from headrace.ledger.migrations import Goal
from headrace.migration.rounds import AllAtOnce, Batched, Fluid
from headrace.runners.spark import SparkRunner

BUCKET_US = 250_000
WORKERS = 2
#: To the other host, and back.
ASKED = 2
WAYS: dict[str, dict[str, Any]] = {
    "all at once": {"strategy": AllAtOnce()},
    "fluid": {"strategy": Fluid()},
    "batched": {"strategy": Batched()},
    "batched, prepared": {"strategy": Batched(), "prepare": True},
}
GOAL_PREPARED = 1.15
#: The steady window ends so long before the first migration.
APART_S = 3.0
GOAL_ALL_AT_ONCE = 10.0
#: All at once is worth comparing with where it takes so many times the steady maximum.
BAD = 20.0


@dataclass
class Run:
    """What a run showed: when each step's records were scheduled and had their results; what moved."""

    scheduled: list[Any] = field(default_factory=list)
    latency: list[Any] = field(default_factory=list)
    moving: list[tuple[float, float, int, int]] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)

    def window(self, first_s: float, last_s: float) -> Any:
        """Return the latencies (s) of the records that were scheduled in a window."""
        at, took = np.concatenate(self.scheduled), np.concatenate(self.latency)
        return took[(at >= first_s) & (at < last_s)]


class Watch:
    """Follows a run, asks for its migrations in time, and ends it.

    Args:
        driver: what runs.
        source: what it reads.
        way: how state moves.
        chosen: the options.
    """

    def __init__(
        self, driver: Driver, source: FilledThenPaced, way: str, chosen: argparse.Namespace
    ) -> None:
        self.ends: dict[int, int] = {}
        self.memory: list[tuple[float, float]] = []
        self._driver = driver
        self._source = source
        self._way = WAYS[way]
        self._bins: list[tuple[int, int]] = []
        self._due = [chosen.warm + chosen.seconds, chosen.warm + 2 * chosen.seconds]
        self._end = chosen.warm + 3 * chosen.seconds

    def __call__(self, summary: hr.StepSummary) -> None:
        """Take notice of a step."""
        head, now = summary.head, self._source.elapsed_s()
        self.ends[summary.step] = head.positions["records"]
        if self._due and now > self._due[0] and head.migration is None:
            self._due.pop(0)
            to = 0 if self._bins else 1
            self._bins = self._bins or moved_bins(Layout.from_wire(head.layout))
            goal = Goal("move", bins=self._bins, to=to, **self._way)
            command = Command("migrate", goal=goal, nonce=uuid.uuid4().hex)
            CommandLog(self._driver.store).put(command, head.commands)
        if len(self.memory) < now:
            self.memory.append((now, python_mib()))
        done = sum(migration.ended is not None for migration in head.migrations)
        if now > self._end and done == ASKED:
            self._driver.ask_to_stop(drain=False)


def measure(master: str, folder: Path, way: str, chosen: argparse.Namespace) -> Run:
    """Run one way on a cluster; return what was seen."""
    path = {"spark.executorEnv.PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}  # this code, and the store
    spark = session(master, **cluster_settings(slots=chosen.slots), **path)
    store_at = folder / f"store-{uuid.uuid4().hex[:8]}"
    source, released = FilledThenPaced(chosen.rate, chosen.keys), {}
    pipeline = hr.Pipeline("migrate")
    stream = pipeline.inject("records", source)
    node = pipeline.compute("count", Counted("key"), keys={stream: "key"})
    sink = hr.sinks.Calls(lambda step, rows: released.update({step: time.time_ns() // 1_000}))
    pipeline.sink("out", node, sink)
    driver = Driver(
        pipeline, ThrottledStore(f"{chosen.call_ms:g}:{chosen.megabytes:g}:{store_at}"),
        SparkRunner(spark.sparkContext), workers=WORKERS, bins=chosen.bins,
        settings=hr.Settings(exchange="driver", slices=chosen.slices),
    )  # fmt: skip
    watch = Watch(driver, source, way, chosen)
    driver.listeners.append(watch)
    try:
        driver.run()
        head = driver.coordinator.head
        assert head is not None
        return seen(head, source, watch, released, chosen.keys)
    finally:
        driver.close()
        spark.stop()
        shutil.rmtree(store_at, ignore_errors=True)


def seen(
    head: Head, source: FilledThenPaced, watch: Watch, released: dict[int, int], keys: int
) -> Run:
    """Return what a run that has ended showed, since all keys were there."""
    run, begun, before = Run(memory=watch.memory), source.scheduled_us(keys), 0
    for migration in head.migrations:
        assert migration.state == "done", migration
        assert migration.began is not None and migration.ended is not None
        first, last = (m.clock_us - begun for m in (migration.began, migration.ended))
        run.moving.append((first / 1e6, last / 1e6, migration.bins, migration.nbytes))
    for step in sorted(watch.ends):
        numbers, before = np.arange(before, watch.ends[step]), watch.ends[step]
        numbers = numbers[numbers >= keys]
        if step in released and numbers.size:
            at = source.scheduled_us(numbers)
            run.scheduled.append((at - begun) / 1e6)
            run.latency.append((released[step] - at) / 1e6)
    return run


def moved_bins(layout: Layout) -> list[tuple[int, int]]:
    """Return half of the bins of the first worker, every second one."""
    own = np.flatnonzero(layout.owners == 0)[::2]
    return [tuple(layout.bin(int(at))) for at in own]  # type: ignore[misc]


def python_mib() -> float:
    """Return the memory of all Python workers."""
    mine = psutil.Process().children(recursive=True)
    everybody = [p for p in psutil.process_iter(["cmdline"]) if "pyspark.daemon" in _line(p)]
    return sum(_rss(p) for p in {*mine, *everybody}) / 2**20


def _line(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or [])


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


@dataclass(frozen=True)
class Outcome:
    """A run in figures: latencies in ms, steady and while state moves, and what moved."""

    steady: tuple[float, float, float]
    moving: tuple[float, float, float]
    seconds: float
    bins: int
    nbytes: int

    @classmethod
    def of(cls, run: Run, chosen: argparse.Namespace) -> Outcome:
        """Compare windows of one length: some time before the first migration, and from each on."""
        # (records of the last steps before it may have to wait for the migration)
        last = min(begun for begun, *_ in run.moving) - APART_S
        first = last - chosen.seconds
        steady = _shown(run.window(first, last))
        windows = [run.window(begun, begun + chosen.seconds) for begun, *_ in run.moving]
        moving = max((_shown(window) for window in windows), key=lambda shown: shown[2])
        seconds = max(ended - begun for begun, ended, *_ in run.moving)
        return cls(steady, moving, seconds, run.moving[0][2], run.moving[0][3])


def _shown(latencies: Any) -> tuple[float, float, float]:
    p50, p999, most = (float(np.percentile(latencies, p)) * 1e3 for p in (50, 99.9, 100))
    return p50, p999, most


def middle(outcomes: list[Outcome]) -> Outcome:
    """Return the one with the median maximum."""
    return sorted(outcomes, key=lambda found: found.moving[2])[len(outcomes) // 2]


def picture(runs: dict[str, Run], file: Path) -> None:
    """Draw the timelines, as the paper's Figure 1 does."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure_, axes = plt.subplots(
        len(runs), 1, sharex=True, sharey=True, figsize=(9, 2.1 * len(runs))
    )
    for axis, (way, run) in zip(np.atleast_1d(axes), runs.items(), strict=True):
        at, took = np.concatenate(run.scheduled) * 1e6, np.concatenate(run.latency) * 1e3
        bucket = (at // BUCKET_US).astype(np.int64)
        edges = np.flatnonzero(np.diff(bucket, prepend=-1))
        parts = np.split(took, edges[1:])
        seconds = bucket[edges] * BUCKET_US / 1e6
        for share, colour in ((100, "#c0392b"), (99, "#e59866"), (50, "#2471a3")):
            label = "max" if share == 100 else f"p{share}"
            axis.plot(
                seconds, [np.percentile(part, share) for part in parts], colour, lw=1, label=label
            )
        for begun, ended, *_ in run.moving:
            axis.axvspan(begun, ended, color="#cccccc", alpha=0.6)
        axis.set_yscale("log")
        axis.set_ylabel("ms")
        axis.set_title(way, fontsize=9, loc="left")
    np.atleast_1d(axes)[0].legend(ncols=3, fontsize=8)
    np.atleast_1d(axes)[-1].set_xlabel("s; state moves in the grey spans")
    figure_.tight_layout()
    figure_.savefig(file, dpi=110)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rate", type=int, default=20_000)
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--bins", type=int, default=256)
    options.add_argument("--slices", type=int, default=64)
    options.add_argument("--slots", type=int, default=1)
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
    runs: dict[str, list[Run]] = {way: [] for way in chosen.ways}
    folder = Path(tempfile.mkdtemp(prefix="headrace-migrate-"))
    try:
        with standalone_cluster(folder, slots=chosen.slots) as master:
            for _ in range(chosen.runs):
                for way in chosen.ways:
                    runs[way].append(measure(master, folder, way, chosen))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell(runs, chosen)


def tell(runs: dict[str, list[Run]], chosen: argparse.Namespace) -> None:
    """Report what was found."""
    found = {way: middle([Outcome.of(run, chosen) for run in of]) for way, of in runs.items()}
    rows = [["way", "bins", "MB", "s", *(f"{when} {what}" for when in ("steady", "moving")
             for what in ("p50 ms", "p99.9 ms", "max ms"))]]  # fmt: skip
    figures = []
    for way, outcome in found.items():
        rows.append([way, str(outcome.bins), f"{outcome.nbytes / 1e6:.1f}", f"{outcome.seconds:.1f}",
                     *(f"{ms:.0f}" for ms in (*outcome.steady, *outcome.moving))])  # fmt: skip
        name = way.replace(", ", "_").replace(" ", "_")
        over = outcome.moving[2] / outcome.steady[2]
        figures.append(figure(f"{name}_max_over_steady_max", over, "x"))
        figures.append(
            figure(f"{name}_p999_over_steady_p999", outcome.moving[1] / outcome.steady[1], "x")
        )
        figures.append(figure(f"{name}_seconds", outcome.seconds, "s"))
    prepared, once = found.get("batched, prepared"), found.get("all at once")
    first = []
    if prepared is not None:
        for at, what in ((2, "max"), (1, "p999")):
            ratio = prepared.moving[at] / prepared.steady[at]
            first.append(figure(f"prepared_{what}_over_steady_{what}", ratio, "x",
                                f"<= {GOAL_PREPARED}", ratio <= GOAL_PREPARED))  # fmt: skip
    if prepared is not None and once is not None:
        bad = once.moving[2] / once.steady[2]
        gain = once.moving[2] / prepared.moving[2]
        goal = (f">= {GOAL_ALL_AT_ONCE:g}", gain >= GOAL_ALL_AT_ONCE) if bad >= BAD else ()
        first.append(figure("all_at_once_max_over_prepared_max", gain, "x", *goal))
    memory = {
        way: [statistics.median(mib for _, mib in run.memory), max(mib for _, mib in run.memory)]
        for way, (run, *_) in runs.items() if run.memory
    }  # fmt: skip
    if chosen.picture:
        picture({way: of[0] for way, of in runs.items()}, chosen.picture)
    report(
        "A quarter of the bins move, and back", rows, [*first, *figures], chosen, memory_mib=memory
    )


if __name__ == "__main__":
    main()
