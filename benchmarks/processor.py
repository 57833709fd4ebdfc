"""A ``StatefulProcessor``, unchanged, on Headrace and on Spark's own engine, in the same run.

The processor keeps a struct for each key, and a timer that each record sets anew. It measures rows
per second with 10^4 and 10^6 keys, of the form that gets rows and of the one that gets DataFrames of
pandas; and beside them the same code written as a computation of Headrace.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.harness import figure, local_session, parser, percentile, report, steps_of
from benchmarks.inputs import write_fill, write_input
from benchmarks.peers import PEERS, tracked, tracker
from benchmarks.user import Tracker
from headrace.driver.driver import Driver
from headrace.pipeline import Node, Pipeline, Stream
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore

GOAL_RATIO = 20
GOAL_SHARE = 0.5
FORMS = {"rows": "tws-rows", "pandas": "tws-pandas"}
Adds = Callable[[Pipeline, Stream], Node]


def adds(form: str) -> Adds:
    """Return what adds the code to a pipeline."""

    def computation(pipeline: Pipeline, stream: Stream) -> Node:
        return pipeline.compute("track", Tracker(), keys={stream: "key"})

    def processor(pipeline: Pipeline, stream: Stream) -> Node:
        return hr.spark.stateful_processor(
            stream,
            "key",
            tracker(rows=form == "rows"),
            "key long, count long",
            "Update",
            "EventTime",
            name="track",
            in_pandas=form == "pandas",
        )

    return computation if form == "computation" else processor


def headrace(context: Any, folder: Path, form: str, keys: int, chosen: Any) -> list[float]:
    """Run the code on Headrace; return the seconds between commits."""
    data = folder / "in"
    if not data.exists():
        data.mkdir(parents=True)
        write_fill(data, chosen.rows, keys)
        # One file more than is measured: at the end of the input all timers are due at once.
        first = -(-keys // chosen.rows)
        write_input(
            data, chosen.warm + chosen.files + 1, chosen.rows, keys, first=first * chosen.rows
        )
    pipeline = hr.Pipeline("processor")
    source = hr.sources.Files(str(data / "*.parquet"), event_time="at")
    node = adds(form)(pipeline, pipeline.inject("keys", source))
    pipeline.sink("silent", node, hr.sinks.Files(folder / f"out-{form}", format="parquet"))
    driver = Driver(
        pipeline,
        LocalStore(folder / f"state-{form}"),
        SparkRunner(context),
        workers=chosen.workers,
        settings=hr.Settings(limit=hr.Limit(chosen.rows, 1 << 40), cached_bytes=4 << 30),
        drain=True,
    )
    fill = -(-keys // chosen.rows)
    return steps_of(driver, warm=fill + chosen.warm, measured=chosen.files)[0]


def theirs(spark: Any, form: str, folder: Path, keys: int, chosen: Any) -> float:
    """Make a smaller input and run the processor on Spark's engine; return rows per second."""
    data = folder / f"in-{form}"
    data.mkdir(parents=True)
    write_input(data, 4, chosen.peer_rows, keys)
    return tracked(spark, FORMS[form], data, folder, warm=1)[0]


def options() -> argparse.ArgumentParser:
    """Return the parser of this program."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, nargs="*", default=[10_000, 1_000_000])
    made.add_argument("--files", type=int, default=20, help="how many files (steps) count")
    made.add_argument("--rows", type=int, default=100_000, help="records a file and step")
    made.add_argument("--warm", type=int, default=10, help="steps with all keys that do not count")
    made.add_argument("--workers", type=int, default=2)
    made.add_argument(
        "--peer-rows", type=int, default=20_000, help="records a file, Spark's engine"
    )
    return made


def main() -> None:
    chosen = options().parse_args()
    if chosen.quick:
        chosen.files, chosen.warm = min(chosen.files, 5), min(chosen.warm, 3)
    spark = local_session(2)
    table = [["keys", "what", "rows/s", "step p50 ms"]]
    figures: list[dict[str, Any]] = []
    folder = Path(tempfile.mkdtemp(prefix="headrace-processor-"))
    try:
        for keys in chosen.keys:
            place, rates = folder / str(keys), dict[str, float]()
            for form in ("computation", *FORMS):
                seconds = headrace(spark.sparkContext, place, form, keys, chosen)
                rate = rates[form] = chosen.rows * len(seconds) / sum(seconds)
                figures.append(figure(f"rows_per_second_{keys}_{form}", rate, "rows/s"))
                middle = f"{percentile(seconds, 0.5) * 1e3:.0f}"
                table.append([f"{keys:,}", f"headrace, {form}", f"{rate:,.0f}", middle])
            for form, peer in FORMS.items():
                rate = theirs(spark, form, place / "spark", keys, chosen)
                figures.append(figure(f"rows_per_second_{keys}_{peer}", rate, "rows/s"))
                ratio, share = rates[form] / rate, rates[form] / rates["computation"]
                goal = f">= {GOAL_RATIO}"
                figures.append(
                    figure(f"ratio_{keys}_{form}", ratio, "x", goal, ratio >= GOAL_RATIO)
                )
                goal = f">= {GOAL_SHARE}"
                figures.append(
                    figure(f"share_{keys}_{form}", share, "x", goal, share >= GOAL_SHARE)
                )
                table.append([f"{keys:,}", f"Spark, {PEERS[peer]}", f"{rate:,.0f}", ""])
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    report("A StatefulProcessor, unchanged", table, figures, chosen)


if __name__ == "__main__":
    main()
