"""Per-record Python code: a small struct of state, and an event-time timer set by each record.

It measures records per second through handlers that are called record by record, at 10^4 and 10^6
keys, all of which are there before a step counts. With ``--vs`` it also runs Spark's two
``transformWithState`` with the same state and timer, on the same kind of files. As they are slow,
their files are smaller and fewer, and not every key is there.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from benchmarks.harness import figure, local_session, parser, percentile, report, steps_of
from benchmarks.inputs import write_fill, write_input
from benchmarks.peers import PEERS, tracked
from headrace.driver.driver import Driver
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore

GOAL = 400_000
GOAL_RATIO = 30
GOAL_GROWTH = 1.2
IDLE_US = 3_600_000_000


class Track(msgspec.Struct, frozen=True):
    """The state of a key."""

    count: int
    total: float
    last: int


NONE = Track(0, 0.0, 0)


class Tracker(hr.Computation):
    """Keeps a struct for each key, and reports keys that were silent for an hour."""

    track = hr.ValueState(Track, default=NONE)
    idle = hr.Timer(hr.EVENT_TIME)
    silent = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        track = self.track.value
        at = record.timestamp_us
        self.track.value = Track(track.count + 1, track.total + 0.5, at)
        self.idle.set(at + IDLE_US)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("silent", self.track.value.count)


def headrace(
    context: Any, data: Path, folder: Path, chosen: Any, warm: int
) -> tuple[list[float], dict[str, float]]:
    """Run the tracker; return the seconds between commits, and the mean phases."""
    pipeline = hr.Pipeline("user")
    source = hr.sources.Files(str(data / "*.parquet"), event_time="at")
    node = pipeline.compute("track", Tracker(), keys={pipeline.inject("keys", source): "key"})
    pipeline.sink("silent", node, hr.sinks.Files(folder / "out", format="parquet"))
    settings = hr.Settings(
        limit=hr.Limit(chosen.rows, 1 << 40), exchange="auto", cached_bytes=4 << 30
    )
    driver = Driver(
        pipeline,
        LocalStore(folder / "state"),
        SparkRunner(context),
        workers=chosen.workers,
        settings=settings,
        drain=True,
    )
    return steps_of(driver, warm=warm, measured=chosen.files)


def own(context: Any, folder: Path, keys: int, chosen: Any) -> tuple[list[float], dict[str, float]]:
    """Make the input and run the tracker on it; return the same as :func:`headrace`."""
    data = folder / "in"
    data.mkdir(parents=True)
    fill = write_fill(data, chosen.rows, keys)
    # One file more than is measured: at the end of the input all timers are due at once.
    write_input(data, chosen.warm + chosen.files + 1, chosen.rows, keys, first=keys)
    return headrace(context, data, folder, chosen, warm=fill + chosen.warm)


def theirs(
    spark: Any, peer: str, folder: Path, keys: int, chosen: Any
) -> tuple[float, list[float]]:
    """Make a smaller input and run a peer; return its records per second and step times."""
    data = folder / "in"
    data.mkdir(parents=True)
    write_input(data, 4, chosen.peer_rows, keys)
    return tracked(spark, peer, data, folder, warm=1)


def ratios(rates: dict[int, float], peers: dict[int, float]) -> list[dict[str, Any]]:
    """Return Headrace's rates over those of the better peer, that of the fewest keys first."""
    found = []
    for number, (keys, best) in enumerate(sorted(peers.items())):
        ratio = rates[keys] / best
        name = "ratio_transform_with_state" + (f"_{keys}" if number else "")
        found.append(figure(name, ratio, "x", f">= {GOAL_RATIO}", ratio >= GOAL_RATIO))
    return found


def own_figures(steps: dict[int, list[float]], chosen: Any) -> list[dict[str, Any]]:
    """Return Headrace's rates and steps, and how much longer a step takes with the most keys."""
    figures = []
    for keys, seconds in steps.items():
        rate = chosen.rows * len(seconds) / sum(seconds)
        figures.append(
            figure(f"records_per_second_{keys}", rate, "records/s", f">= {GOAL}", rate >= GOAL)
        )
        for p in (50, 95):
            ms = percentile(seconds, p / 100) * 1e3
            figures.append(figure(f"step_p{p}_ms_{keys}", ms, "ms"))
    if len(steps) > 1:
        few, many = (statistics.median(steps[keys]) for keys in (min(steps), max(steps)))
        grown = many / few
        figures.append(
            figure("step_many_keys_over_few", grown, "x", f"<= {GOAL_GROWTH}", grown <= GOAL_GROWTH)
        )
    return figures


def options() -> argparse.ArgumentParser:
    """Return the parser of this program."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, nargs="*", default=[10_000, 1_000_000])
    made.add_argument("--files", type=int, default=20, help="how many files (steps) count")
    made.add_argument("--rows", type=int, default=100_000, help="records a file and step")
    made.add_argument("--warm", type=int, default=30, help="steps with all keys that do not count")
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--vs", nargs="*", choices=["tws-pandas", "tws-rows"], default=[])
    made.add_argument("--peer-rows", type=int, default=20_000, help="records a file, peers")
    return made


def main() -> None:
    chosen = options().parse_args()
    if chosen.quick:
        chosen.files, chosen.warm = min(chosen.files, 6), min(chosen.warm, 3)
    spark = local_session(2)
    rows = [["keys", "what", "records/s", "step p50 ms", "step p95 ms"]]
    steps: dict[int, list[float]] = {}
    peers: dict[int, float] = {}
    beside: list[dict[str, Any]] = []
    phases: dict[str, Any] = {}

    def row(keys: int, what: str, rate: float, seconds: list[float]) -> None:
        times = [f"{percentile(seconds, share) * 1e3:.0f}" for share in (0.5, 0.95)]
        rows.append([f"{keys:,}", what, f"{rate:,.0f}", *times])

    folder = Path(tempfile.mkdtemp(prefix="headrace-user-"))
    try:
        for keys in chosen.keys:
            seconds, spent = own(spark.sparkContext, folder / str(keys), keys, chosen)
            steps[keys] = seconds
            phases[str(keys)] = {name: value * 1e3 for name, value in spent.items()}
            row(keys, "headrace", chosen.rows * len(seconds) / sum(seconds), seconds)
            for peer in chosen.vs:
                rate, batches = theirs(spark, peer, folder / f"{peer}-{keys}", keys, chosen)
                peers[keys] = max(peers.get(keys, 0.0), rate)
                beside.append(figure(f"records_per_second_{keys}_{peer}", rate, "records/s"))
                row(keys, PEERS[peer], rate, batches)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    rates = {keys: chosen.rows * len(found) / sum(found) for keys, found in steps.items()}
    figures = [*ratios(rates, peers), *own_figures(steps, chosen), *beside]
    report("Per-record Python with state and a timer", rows, figures, chosen, phases=phases)


if __name__ == "__main__":
    main()
