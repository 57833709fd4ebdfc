"""Per-record Python code: a small struct of state, and an event-time timer set by each record.

Records per second through handlers that are called record by record, at 10^4 and 10^6 keys; beside
it (``--vs``) Spark's two ``transformWithState`` with the same state and timer, on the same kind of files.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from benchmarks.harness import figure, local_session, parser, percentile, report, steps_of
from benchmarks.inputs import write_input
from benchmarks.peers import PEERS, tracked
from headrace.driver import Driver
from headrace.runners.spark import SparkRunner
from headrace.storage import LocalStore

GOAL = 400_000
GOAL_RATIO = 30
IDLE_US = 3_600_000_000


class Track(msgspec.Struct, frozen=True):
    """What is kept of a key."""

    count: int
    total: float
    last: int


NONE = Track(0, 0.0, 0)


class Tracker(hr.Computation):
    """Keeps a struct for each key; tells of keys that were silent for an hour."""

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
    context: Any, data: Path, folder: Path, chosen: Any
) -> tuple[list[float], dict[str, float]]:
    """Run the tracker; return the seconds between commits, and the mean phases."""
    pipeline = hr.Pipeline("user")
    source = hr.sources.Files(str(data / "*.parquet"), event_time="at")
    node = pipeline.compute("track", Tracker(), keys={pipeline.inject("keys", source): "key"})
    pipeline.sink("silent", node, hr.sinks.Files(folder / "out", format="parquet"))
    settings = hr.Settings(
        limit=hr.Limit(chosen.rows, 1 << 40), exchange="shuffle", cached_bytes=4 << 30
    )
    driver = Driver(
        pipeline, LocalStore(folder / "state"), SparkRunner(context), workers=chosen.workers,
        settings=settings, drain=True,
    )  # fmt: skip
    return steps_of(driver, warm=chosen.warm)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--keys", type=int, nargs="*", default=[10_000, 1_000_000])
    options.add_argument("--files", type=int, default=16, help="how many files (steps)")
    options.add_argument("--rows", type=int, default=100_000, help="records a file and step")
    options.add_argument("--warm", type=int, default=6, help="steps that do not count")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--vs", nargs="*", choices=["tws-pandas", "tws-rows"], default=[])
    options.add_argument("--peer-rows", type=int, default=20_000, help="records a file, peers")
    chosen = options.parse_args()
    spark = local_session(2)
    rows = [["keys", "what", "records/s", "step p50 ms", "step p95 ms"]]
    rates: dict[int, float] = {}
    steps: dict[int, float] = {}
    best_peer = 0.0
    phases: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="headrace-user-"))
    try:
        for keys in chosen.keys:
            own = folder / str(keys)
            (own / "in").mkdir(parents=True)
            write_input(own / "in", chosen.files, chosen.rows, keys)
            seconds, spent = headrace(spark.sparkContext, own / "in", own, chosen)
            rates[keys] = chosen.rows * len(seconds) / sum(seconds)
            steps[keys] = percentile(seconds, 0.5)
            phases[str(keys)] = {name: value * 1e3 for name, value in spent.items()}
            rows.append([f"{keys:,}", "headrace", f"{rates[keys]:,.0f}", f"{steps[keys] * 1e3:.0f}",
                         f"{percentile(seconds, 0.95) * 1e3:.0f}"])  # fmt: skip
        for peer in chosen.vs:
            few = folder / peer
            (few / "in").mkdir(parents=True)
            write_input(few / "in", 4, chosen.peer_rows, chosen.keys[0])
            rate, batches = tracked(spark, peer, few / "in", few, warm=1)
            best_peer = max(best_peer, rate)
            rows.append([f"{chosen.keys[0]:,}", PEERS[peer], f"{rate:,.0f}",
                         f"{percentile(batches, 0.5) * 1e3:.0f}", ""])  # fmt: skip
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    first = rates[chosen.keys[0]]
    figures = []
    if best_peer:
        ratio = first / best_peer
        figures.append(
            figure(
                "ratio_transform_with_state", ratio, "x", f">= {GOAL_RATIO}", ratio >= GOAL_RATIO
            )
        )
    for keys, rate in rates.items():
        figures.append(
            figure(f"records_per_second_{keys}", rate, "records/s", f">= {GOAL}", rate >= GOAL)
        )
    if len(steps) == 2:
        grown = steps[chosen.keys[1]] / steps[chosen.keys[0]]
        figures.append(figure("step_many_keys_over_few", grown, "x", "<= 1.2", grown <= 1.2))
    report("Per-record Python with state and a timer", rows, figures, chosen, phases=phases)


if __name__ == "__main__":
    main()
