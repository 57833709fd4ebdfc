"""The main job, from raw data to a picture: ``make demo``. Kill it and restart it at any time."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import prepare
import report
from pipeline import build

import headrace as hr
from headrace.observe.progress import ProgressLine


def main() -> None:
    """Prepare the stream, run the pipeline on Spark until the input ends, and show the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("demo-data"))
    parser.add_argument("--rows", type=int, default=4_000, help="records a step")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runner", choices=["spark", "inline"], default="spark")
    parser.add_argument("--exchange", choices=["auto", "driver", "host", "shuffle"], default="auto")
    chosen = parser.parse_args()
    out = chosen.data / "out"
    begun = time.monotonic()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("headrace.spark").setLevel(logging.INFO)  # says where Spark's log is
    print(f"The stream: {prepare.prepare(chosen.data)}", file=sys.stderr)
    settings = hr.Settings(limit=hr.Limit(chosen.rows, 16 << 20), exchange=chosen.exchange)
    with ProgressLine("flights") as progress:
        job = hr.run(
            build(chosen.data, out),
            storage=chosen.data / "state",
            workers=chosen.workers,
            runner=chosen.runner,
            settings=settings,
            listeners=[progress],
        )
        with job:
            job.drain()
    head = job.head
    assert head is not None
    counts = head.counts["airports"]
    print(
        f"{counts.records + counts.late:,} departures in {head.step + 1} steps: "
        f"{counts.records:,} on time, {counts.late} late, "
        f"{head.counts['departures.ids'].duplicates:,} sent twice, "
        f"{time.monotonic() - begun:.0f} s; state in {chosen.data / 'state'}"
    )
    print(report.text(out))
    picture = chosen.data / "flights.png"
    report.plot(out, picture)
    print(f"Picture: {picture}")


if __name__ == "__main__":
    main()
