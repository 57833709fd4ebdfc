"""From 2 to 4 workers and back under a constant load, compared with Spark's own way.

All keys come once; then, in an open loop, records at a constant rate. The steady windows show the
usual time from one commit to the next. A gap of more than twice their p99 is a missed step. Missed
steps count from the request of a migration until some seconds after its end. They are also counted
in the steady windows as a control, to see what the machine does by itself.

Each run has a session of its own, because a session keeps Python processes for workers that it once
had. (With ``--ready`` all of them are started ahead, to see what else takes time.)

Spark's way runs on the same keys and rate, in the same session: stop a query, repartition its state
offline, start it again (``benchmarks/offline.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

import headrace as hr
from benchmarks.counted import CountedStore, bytes_read
from benchmarks.counting import Counted
from benchmarks.harness import figure, local_session, parser, report
from benchmarks.inputs import FilledThenPaced
from benchmarks.offline import Outage, repartitioned
from headrace.coordinator.load.bin_sizes import sizes_of_bins
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.nexmark.pace import Pace
from headrace.observe.top import phases_of
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore

FEW, MANY = 2, 4
#: A gap between commits is a missed step if it is more than this many times the steady p99.
MISSED = 2.0
GOAL_BYTES = 1.05
#: Seconds after the end of a migration in which a gap still counts as its effect.
SETTLE_S = 5.0
#: By this step each slice has been written once, so all bins are measured.
MEASURED_STEPS = 260
#: The phases of a gap are recorded if it is this many times the median of recent gaps; and how many
#: of these there are.
LONG, USUAL = 2.5, 64
#: How many missed steps of a run are printed. All are in the JSON.
PRINTED = 6
WAYS = [f"{FEW} to {MANY}", f"{MANY} to {FEW}"]

Window = tuple[float, float]


class Commit(msgspec.Struct, frozen=True):
    """A commit, and the gap before it.

    Attributes:
        at: when, in seconds since 1970.
        gap: seconds since the commit before.
        step, workers: the step, and its number of workers.
        doing: the state of the migration, if one is under way.
        phases: where the time of a long gap went, in milliseconds, as ``headrace top`` shows it.
    """

    at: float
    gap: float
    step: int
    workers: int
    doing: str
    phases: dict[str, float]


class Commits:
    """Records all commits of a run.

    Args:
        store: the pipeline's storage. Its manifests say where the time of a long gap went.
    """

    def __init__(self, store: Path) -> None:
        self.all: list[Commit] = []
        self._ledger = Ledger(LocalStore(store))
        self._newest: deque[float] = deque(maxlen=USUAL)

    def __call__(self, summary: hr.StepSummary) -> None:
        now, head = time.time(), summary.head
        move = next((one for one in head.migrations if one.is_under_way), None)
        doing = f"{move.what}, {move.state}, round {move.next + 1}" if move else ""
        gap = now - self.all[-1].at if self.all else 0.0
        self._newest.append(gap)
        phases = self._phases() if gap > LONG * statistics.median(self._newest) else {}
        workers = head.layout.workers
        self.all.append(Commit(now, gap, summary.step, workers, doing, phases))

    def _phases(self) -> dict[str, float]:
        timings = [one.timing for one in self._ledger.newest(1) if one.timing is not None]
        return {phase.name: phase.ms for phase in phases_of(timings)}

    def between(self, window: Window) -> list[Commit]:
        """Return the commits in a span of time."""
        return [commit for commit in self.all if window[0] <= commit.at < window[1]]


@dataclass
class Move:
    """A migration under load: the time before it, its own, and what it moved.

    Attributes:
        steady, moving: the commits before; and those from the request until the end, and some
            seconds more.
        window: when it was under way, in seconds since 1970.
        bins, nbytes: what moved, by the manifests.
        least: the fewest bytes that make workers equal.
        nread: the bytes that all processes read from storage meanwhile, above the usual.
        born: when Python processes started, in seconds since 1970.
    """

    steady: list[Commit]
    moving: list[Commit]
    window: Window
    bins: int
    nbytes: int
    least: float
    nread: float
    born: list[float]

    @property
    def longest(self) -> float:
        """The longest gap that is not a missed step, in seconds."""
        return MISSED * shown(self.steady)[1]

    @property
    def missed(self) -> list[Commit]:
        """The gaps that are missed steps."""
        return [commit for commit in self.moving if commit.gap > self.longest]

    @property
    def by_itself(self) -> int:
        """How many gaps of the steady window would count as missed."""
        return sum(commit.gap > self.longest for commit in self.steady)

    @property
    def outage(self) -> float:
        """The longest missed gap, in seconds; 0 if none was missed."""
        return max((commit.gap for commit in self.missed), default=0.0)

    @property
    def seconds(self) -> float:
        """How long it was under way."""
        return self.window[1] - self.window[0]

    def causes(self) -> list[dict[str, Any]]:
        """Return what is known of each missed step: phases above a tenth of it, new processes."""
        return [
            {
                "step": of.step,
                "gap_ms": round(of.gap * 1e3),
                "doing": of.doing,
                "phases_ms": {
                    name: round(ms) for name, ms in of.phases.items() if ms > of.gap * 100
                },
                "python_processes_started": sum(of.at - of.gap < at < of.at for at in self.born),
            }
            for of in self.missed
        ]


@dataclass
class Run:
    """A session: Headrace from few workers to many and back, and Spark's way."""

    commits: Commits
    moves: list[Move]
    spark: Outage

    @property
    def missed_of_either(self) -> int:
        """How many steps on the way to many workers are missed by the higher steady p99 of the two.

        Many workers on few cores take longer steps at all times. That is not an effect of the
        migration.
        """
        longest = max(move.longest for move in self.moves)
        return sum(commit.gap > longest for commit in self.moves[0].moving)


def shown(commits: list[Commit]) -> tuple[float, float, float]:
    """Return p50, p99 and maximum of the gaps, in seconds."""
    p50, p99, most = np.percentile([commit.gap for commit in commits], [50, 99, 100])
    return float(p50), float(p99), float(most)


def least_bytes(head: Head, workers: int) -> float:
    """Return the fewest bytes that have to change their worker to make all workers equal."""
    layout = Layout.from_wire(head.layout)
    sizes = sizes_of_bins(head, layout)
    assert sizes is not None, "the state is not measured yet: warm up for longer"
    most = max(workers, layout.workers)
    loads = np.bincount(layout.owners, weights=sizes, minlength=most)
    target = np.where(np.arange(most) < workers, sum(sizes) / workers, 0.0)
    return float(np.maximum(loads - target, 0.0).sum())


def ours(context: Any, folder: Path, keys: int, chosen: argparse.Namespace) -> Any:
    """Run the count, and rescale it there and back."""
    store, commits, runner = (
        CountedStore(folder / "store"),
        Commits(folder / "store"),
        SparkRunner(context),
    )
    pipeline = hr.Pipeline("rescale")
    stream = pipeline.inject("records", FilledThenPaced(Pace(chosen.rate), keys))
    counts = pipeline.compute("count", Counted("key"), keys={stream: "key"})
    pipeline.sink("out", counts, hr.sinks.Calls(lambda step, rows: None))
    job = hr.run(
        pipeline,
        storage=store,
        workers=FEW,
        bins=chosen.bins,
        runner=runner,
        settings=hr.Settings(cached_bytes=8 << 30),
        listeners=[commits],
    )
    with job:
        while job.running and (job.head is None or job.head.positions.get("records", 0) < keys):
            job.wait("0.1s")
        while job.running and job.current().step < MEASURED_STEPS:
            job.wait("0.1s")
        if chosen.ready:
            runner.make_ready(MANY)
        job.wait(chosen.warm)
        moves = [
            rescaled(job, workers, commits, folder / "store", chosen) for workers in (MANY, FEW)
        ]
    return commits, moves


def rescaled(
    job: hr.Job, workers: int, commits: Commits, store: Path, chosen: argparse.Namespace
) -> Move:
    """Observe the commits, rescale, and go on until the migration has settled."""
    begun = time.time()
    job.wait(chosen.seconds)
    asked, least = time.time(), least_bytes(job.current(), workers)
    move = job.rescale(workers, prepare=True)
    assert move.wait("10m") == "done", move.why
    ended = time.time()
    job.wait(f"{SETTLE_S}s")
    usual = bytes_read(store, begun, asked) / (asked - begun)
    nread = bytes_read(store, asked, ended) - usual * (ended - asked)
    facts = move.facts
    assert facts.ended is not None
    return Move(
        commits.between((begun, asked)),
        commits.between((asked, ended + SETTLE_S)),
        (asked, facts.ended.clock_us / 1e6),
        facts.bins,
        facts.nbytes,
        least,
        nread,
        births(),
    )


def births() -> list[float]:
    """Return the start times of Spark's present Python processes, in seconds since 1970."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in process.cmdline():
                found.append(process.create_time())
    return found


def measure(keys: int, chosen: argparse.Namespace) -> Run:
    """Run both ways in a session of their own."""
    spark = local_session(chosen.slots)
    folder = Path(tempfile.mkdtemp(prefix="headrace-rescale-"))
    try:
        commits, moves = ours(spark.sparkContext, folder, keys, chosen)
        outage = repartitioned(
            spark, folder, keys=keys, rate=chosen.rate, workers=(FEW, MANY), seconds=chosen.seconds
        )
        return Run(commits, moves, outage)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def picture(run: Run, file: Path) -> None:
    """Draw the gaps between commits, of Headrace and of Spark."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure_, axes = plt.subplots(2, 1, sharey=True, figsize=(9, 5))
    begun = run.moves[0].steady[0].at
    ours = [commit for commit in run.commits.all if commit.at >= begun]
    theirs = run.spark.commits
    spans = [move.window for move in run.moves]
    panels: list[tuple[str, Any, Any, list[Window]]] = [
        (
            f"Headrace: {FEW} → {MANY} → {FEW} workers while it runs",
            np.array([c.at for c in ours]),
            np.array([c.gap for c in ours]),
            spans,
        ),
        (
            f"Spark: stop, repartition {FEW} → {MANY} offline, start",
            theirs[1:],
            np.diff(theirs),
            [run.spark.window],
        ),
    ]
    longest = max(gaps.max() for _, _, gaps, _ in panels)
    for axis, (title, at, gaps, moving) in zip(axes, panels, strict=True):
        start = at[0]
        axis.vlines(at - start, 1, gaps * 1e3, color="#2471a3", lw=1)
        for first, last in moving:
            axis.axvspan(first - start, last - start, color="#cccccc", alpha=0.6)
        axis.set_yscale("log")
        axis.set_ylim(10, longest * 1.5e3)
        axis.set_ylabel("gap between commits, ms")
        axis.set_title(title, fontsize=9, loc="left")
    axes[-1].set_xlabel("s; state moves in the grey spans")
    figure_.tight_layout()
    figure_.savefig(file, dpi=110)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--keys", type=int, nargs="*", default=[1_000_000])
    options.add_argument("--far", action="store_true", help="10^7 keys, too")
    options.add_argument("--rate", type=int, default=20_000, help="records a second")
    options.add_argument("--bins", type=int, default=256)
    options.add_argument("--slots", type=int, default=MANY)
    options.add_argument("--seconds", type=float, default=30.0, help="each steady window")
    options.add_argument("--warm", type=float, default=20.0)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument(
        "--ready", action="store_true", help="Python processes of workers to come are there before"
    )
    options.add_argument("--picture", type=Path)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.keys, chosen.bins, chosen.runs = [100_000], 64, 1
        chosen.seconds, chosen.warm = 5.0, 2.0
    if chosen.far:
        chosen.keys = [*chosen.keys, 10**7]
    found = {keys: [measure(keys, chosen) for _ in range(chosen.runs)] for keys in chosen.keys}
    if chosen.picture:
        picture(found[max(found)][0], chosen.picture)
    tell(found, chosen)


def tell(found: dict[int, list[Run]], chosen: argparse.Namespace) -> None:
    """Report the results."""
    rows = [
        [
            "keys",
            "workers",
            "s",
            "MB moved",
            "missed",
            "by itself",
            "steady p50 ms",
            "p99 ms",
            "moving p50 ms",
            "p99 ms",
            "max ms",
            "Spark's outage s",
        ]
    ]
    figures, causes = [], {}
    for keys, runs in found.items():
        for number, run in enumerate(runs):
            for move, way in zip(run.moves, WAYS, strict=True):
                cells = [*shown(move.steady)[:2], *shown(move.moving)]
                theirs = f"{run.spark.seconds:.1f}" if way == WAYS[0] else ""
                rows.append(
                    [
                        f"{keys:,}",
                        way,
                        f"{move.seconds:.1f}",
                        f"{move.nbytes / 1e6:.1f}",
                        str(len(move.missed)),
                        str(move.by_itself),
                        *(f"{s * 1e3:.0f}" for s in cells),
                        theirs,
                    ]
                )
                causes[f"{keys} keys, run {number + 1}, {way}"] = move.causes()
        figures += figures_of(keys, runs)
    worst = max(len(run.moves[0].missed) for runs in found.values() for run in runs)
    first = figure("missed_steps", worst, "steps", "= 0", worst == 0)
    report(
        "From 2 to 4 workers and back, under a constant load",
        rows,
        [first, *figures],
        chosen,
        causes=causes,
    )
    for where, missed in causes.items():
        for of in missed[:PRINTED]:
            print(f"missed: {where}: {of}")


def figures_of(keys: int, runs: list[Run]) -> list[dict[str, Any]]:
    """Return the figures for a number of keys: the worst of several runs, the median of ratios."""
    there, back = ([run.moves[at] for run in runs] for at in (0, 1))
    outage = max(move.outage for move in there)
    theirs = statistics.median(run.spark.seconds for run in runs)
    over = statistics.median(move.nbytes / move.least for move in there)
    minutes = sum(move.steady[-1].at - move.steady[0].at for move in there) / 60
    found = [
        figure(f"outage_s_{keys}", outage, "s", "= 0", outage == 0),
        figure(f"spark_outage_s_{keys}", theirs, "s"),
        figure(f"bytes_moved_over_least_{keys}", over, "x", f"<= {GOAL_BYTES}", over <= GOAL_BYTES),
        figure(
            f"bytes_read_over_least_{keys}",
            statistics.median(move.nread / move.least for move in there),
            "x",
        ),
        figure(f"missed_steps_{keys}", max(len(move.missed) for move in there), "steps"),
        figure(f"missed_steps_back_{keys}", max(len(move.missed) for move in back), "steps"),
        figure(
            f"missed_steps_by_the_steady_p99_of_either_{keys}",
            max(run.missed_of_either for run in runs),
            "steps",
        ),
        figure(
            f"long_gaps_a_steady_minute_{keys}",
            sum(move.by_itself for move in there) / minutes,
            "gaps",
        ),
        figure(f"migration_s_{keys}", statistics.median(move.seconds for move in there), "s"),
    ]
    found += [
        figure(
            f"spark_{part.replace(' ', '_')}_s_{keys}",
            statistics.median(run.spark.parts[part] for run in runs),
            "s",
        )
        for part in runs[0].spark.parts
    ]
    for when, of in (("steady", [m.steady for m in there]), ("moving", [m.moving for m in there])):
        for at, what in enumerate(("p50", "p99", "max")):
            ms = statistics.median(shown(commits)[at] for commits in of) * 1e3
            found.append(figure(f"{when}_{what}_ms_{keys}", ms, "ms"))
    return found


if __name__ == "__main__":
    main()
