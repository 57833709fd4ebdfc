"""State moves under load: from 2 to 4 workers and back. ``make demo-rescale`` runs it."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from load import Readings
from pipeline import draw
from rich import box
from rich.console import Console
from rich.table import Table

import headrace as hr
from headrace.observe.progress import ProgressLine


class Bills:
    """The bills so far, by meter."""

    def __init__(self, meters: int) -> None:
        self.readings = np.zeros(meters, dtype=np.int64)
        self.watt_hours = np.zeros(meters, dtype=np.int64)

    def receive(self, step: int, rows: Any) -> None:
        """Add the bills of a step."""
        for name in ("readings", "watt_hours"):
            np.add.at(getattr(self, name), rows["key"].to_numpy(), rows[name].to_numpy())

    def check(self, source: Readings, sent: int) -> tuple[int, int, int]:
        """Return the numbers of missing readings, of doubled readings, and of wrong sums."""
        said, meters = source.says(np.arange(sent)), len(self.readings)
        off = self.readings - np.bincount(said["meter"], minlength=meters)
        used = np.bincount(said["meter"], weights=said["watt_hours"], minlength=meters)
        wrong = np.count_nonzero(self.watt_hours != used)
        return int(-off[off < 0].sum()), int(off[off > 0].sum()), int(wrong)


def committed(job: hr.Job) -> int:
    """Return how many readings are in committed steps."""
    return job.head.positions.get("readings", [0])[0] if job.head else 0


def rescale(job: hr.Job, workers: int, quiet_s: float) -> hr.Migration:
    """Wait under load, rescale, and wait until the step times after the migration are known."""
    job.wait(quiet_s)
    move = job.rescale(workers, prepare=True)
    move.wait("5m")
    while not move.after.steps and job.running:
        job.wait("0.1s")
    return move


def told(moves: list[hr.Migration]) -> Table:
    """Return a table of how long steps took before, during and after each migration."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("migration", no_wrap=True)
    for name in ("", "steps", "p50 ms", "p99 ms", "max ms"):
        table.add_column(name, justify="right")
    for move in moves:
        times = {"before": move.before, "during": move.during, "after": move.after}
        for when, of in times.items():
            ms = (f"{us / 1e3:.0f}" for us in (of.p50_us, of.p99_us, of.max_us))
            what = move.what if when == "before" else ""
            table.add_row(what, when, f"{of.steps}", *ms, end_section=when == "after")
    return table


def how(move: hr.Migration) -> str:
    """Return a summary of a migration."""
    facts, done = move.facts, move.progress
    assert facts.began is not None and facts.ended is not None
    seconds = (facts.ended.clock_us - facts.began.clock_us) / 1e6
    return (
        f"{move.what}: {move.state}, {done.bins} bins and {done.nbytes / 1e6:.1f} MB moved "
        f"in {done.rounds} rounds, {seconds:.1f} s"
    )


def main() -> int:
    """Run meters under a constant load, rescale twice, and show how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--meters", type=int, default=200_000)
    parser.add_argument("--rate", type=int, default=20_000, help="readings a second")
    parser.add_argument("--bins", type=int, default=64)
    parser.add_argument("--quiet", type=float, default=5.0, help="seconds before each migration")
    chosen = parser.parse_args()
    # A task slot for each of four workers, however many cores there are.
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--conf spark.master=local[4] pyspark-shell")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("headrace.spark").setLevel(logging.INFO)  # says where Spark's log is
    source, bills = Readings(chosen.meters, chosen.rate), Bills(chosen.meters)
    storage = Path(tempfile.mkdtemp(prefix="headrace-rescale-"))
    try:
        with ProgressLine("meters", every_s=1.0) as progress:
            job = hr.run(
                draw(source, bills.receive),
                storage=storage,
                workers=2,
                bins=chosen.bins,
                listeners=[progress],
            )
            with job:
                while committed(job) < chosen.meters and job.running:  # each meter once
                    job.wait("0.1s")
                moves = [rescale(job, workers, chosen.quiet) for workers in (4, 2)]
                source.stop()
                job.drain()
    finally:
        shutil.rmtree(storage)
    sent = committed(job)
    missing, twice, wrong = bills.check(source, sent)
    print(*map(how, moves), sep="\n")
    Console().print(told(moves))
    print(
        f"{sent:,} readings sent, {bills.readings.sum():,} billed, of {chosen.meters:,} meters: "
        f"{missing} missing, {twice} twice, {wrong} sums wrong"
    )
    return int(bool(missing or twice or wrong or any(move.state != "done" for move in moves)))


if __name__ == "__main__":
    sys.exit(main())
