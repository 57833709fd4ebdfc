"""A pipeline that is in trouble, with its dashboard. ``make demo-dashboard`` runs it.

Open the address that it prints, and find out from the page alone what is wrong, why, since when, and what
to do. It takes two minutes until all of it shows. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from orders import Shops
from pipeline import Warehouse, draw

import headrace as hr


def main() -> int:
    """Run it until it is interrupted, or for some time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=600, help="orders a second")
    parser.add_argument("--port", type=int, default=0, help="of the dashboard; 0 for any")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time")
    parser.add_argument("--inline", action="store_true", help="run without Spark")
    chosen = parser.parse_args()
    # A task slot for each of four workers, however many cores there are.
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--conf spark.master=local[4] pyspark-shell")
    logging.basicConfig(format="%(message)s")
    folder = Path(tempfile.mkdtemp(prefix="headrace-dashboard-"))
    try:
        with contextlib.suppress(KeyboardInterrupt):
            run(folder, chosen)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def run(folder: Path, chosen: argparse.Namespace) -> None:
    """Run the pipeline, and let things go wrong one after another."""
    warehouse = Warehouse(0.02)
    with Shops(folder / "orders", chosen.rate, silent_after_s=45):
        job = hr.run(
            draw(folder / "orders", warehouse),
            storage=folder / "state",
            workers=2,
            bins=256,
            runner="inline" if chosen.inline else "spark",
            dashboard=chosen.port or True,
        )
        with job:
            print("Find out what is wrong with this pipeline, from the page alone. Ctrl-C ends it.")
            ends = time.monotonic() + chosen.seconds
            warehouse_slows = time.monotonic() + 15
            workers = 4
            move: hr.Migration | None = None
            while job.running and time.monotonic() < ends:
                job.wait("0.5s")
                if time.monotonic() > warehouse_slows:
                    warehouse.seconds = 1.2
                is_idle = move is None or move.state in ("done", "aborted")
                if is_idle and job.head is not None and job.head.done > 20:
                    move = job.rescale(workers, strategy=hr.fluid())
                    workers = 6 - workers
            job.stop()


if __name__ == "__main__":
    sys.exit(main())
