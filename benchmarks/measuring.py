"""The cost of measuring the loads of bins: every other step is measured, in one run.

One columnar count, two workers, 10 000 records a step. In production only one step in 250 ms is
measured. By default it runs in this process and takes the CPU time of its one thread, because
elapsed time varies by far more than the difference in question. With ``--spark`` it runs on Spark
and has to take elapsed time. The figure is the median over many pairs of neighbouring steps.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import headrace as hr
from benchmarks.floor import BatchCount, Count, Keys
from benchmarks.harness import figure, local_session, parser, report
from headrace.coordinator.load.meter import Meter
from headrace.driver.driver import Driver
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore

#: The number of steps that do not count; even.
_WARM = 60


class EveryOther(Meter):
    """A meter that measures every other step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def wants(self, clock_us: int) -> bool:
        self.steps += 1
        return self.steps % 2 == 0


def pairs(
    runner: Runner, bins: int, rows: int, steps: int, *, per_record: bool
) -> list[tuple[float, float]]:
    """Return the seconds of unmeasured steps, each with those of the next, measured step."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-measuring-"))
    pipeline = hr.Pipeline("measuring")
    computation = Count() if per_record else BatchCount()
    pipeline.compute("count", computation, keys={pipeline.inject("keys", Keys(100_000)): "key"})
    driver = Driver(
        pipeline,
        LocalStore(folder),
        runner,
        workers=2,
        bins=bins,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 30), exchange="driver"),
    )
    driver._steering.meter = EveryOther()
    clock = time.thread_time if isinstance(runner, InlineRunner) else time.perf_counter
    commits: list[float] = []

    def note(summary: hr.StepSummary) -> None:
        commits.append(clock())
        if len(commits) > _WARM + 2 * steps:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
        shutil.rmtree(folder)
    found = [after - before for before, after in itertools.pairwise(commits)]
    # (The time of the first step is not known, so the first known one belongs to a measured step.)
    return list(zip(found[_WARM + 1 :: 2], found[_WARM + 2 :: 2], strict=False))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=10_000, help="records a step")
    options.add_argument("--steps", type=int, default=500, help="pairs of steps")
    options.add_argument("--per-record", action="store_true", help="count record by record")
    options.add_argument("--spark", action="store_true", help="on Spark, in a local session")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.steps = min(chosen.steps, 150)
    spark = local_session(2) if chosen.spark else None
    rows = [["bins", "not measured p50 ms", "measured p50 ms", "more by (median of pairs) ms"]]
    figures = []
    for bits in (8, 12, 16):
        if spark is None:
            runner: Runner = InlineRunner()
        else:
            from headrace.runners.spark.runner import SparkRunner

            runner = SparkRunner(spark.sparkContext)
        found = pairs(runner, 1 << bits, chosen.rows, chosen.steps, per_record=chosen.per_record)
        without, with_ = (statistics.median(column) for column in zip(*found, strict=True))
        more = statistics.median(after - before for before, after in found)
        rows.append(
            [f"2^{bits}", f"{without * 1e3:.2f}", f"{with_ * 1e3:.2f}", f"{more * 1e3:.3f}"]
        )
        figures.append(figure(f"measured_step_more_ms_{1 << bits}", more * 1e3, "ms"))
        figures.append(
            figure(
                f"at_four_a_second_{1 << bits}",
                more * 4 * 100,
                "% of the time",
                "<= 0.5",
                more * 4 <= 0.005,
            )
        )
    if spark is not None:
        spark.stop()
    report("A step that is measured beside one that is not", rows, figures, chosen)


if __name__ == "__main__":
    main()
