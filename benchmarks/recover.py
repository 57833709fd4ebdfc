"""Recovery: the driver is killed, and started again; how long until the first new step is committed.

A running count with many keys in a process of its own is killed with SIGKILL once all keys are there, and
started again. The time of the first new step is counted from when Spark is up. It is taken after a short
history and after a long one, because it must not grow with history, and for two numbers of keys, because
it may grow at most with the part of the state that is touched, which is the same.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.floor import BatchCount
from benchmarks.harness import ROOT, figure, local_session, parser, report
from benchmarks.inputs import Filled
from headrace.driver import Driver
from headrace.runners.spark import SparkRunner
from headrace.storage import LocalStore


def child(storage: str, keys: int, hot: int, rows: int) -> None:
    """Run until killed; say when Spark is up, and each committed step."""
    spark = local_session(2)
    print("UP", time.time(), flush=True)
    pipeline = hr.Pipeline("recover")
    stream = pipeline.inject("keys", Filled(keys, rows, hot))
    pipeline.compute("count", BatchCount(), keys={stream: "key"})
    driver = Driver(
        pipeline, LocalStore(storage), SparkRunner(spark.sparkContext), workers=2, bins=1_024,
        settings=hr.Settings(cached_bytes=8 << 30),
    )  # fmt: skip
    driver.listeners.append(
        lambda s: print("STEP", s.step, s.head.positions["keys"], time.time(), flush=True)
    )
    driver.run()


def run_until(
    storage: Path, keys: int, hot: int, rows: int, until: Any
) -> tuple[float, float, int]:
    """Run a child until ``until(step, position, steps)``, and kill it.

    Returns:
        When Spark was up, when its first step was committed, and how many steps it made.
    """
    arguments = [str(item) for item in (storage, keys, hot, rows)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recover", "--child", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    up = first = 0.0
    steps = 0
    try:
        assert process.stdout is not None
        for line in process.stdout:
            word, *rest = line.split()
            if word == "UP":
                up = float(rest[0])
            elif word == "STEP":
                steps += 1
                first = first or float(rest[2])
                if until(int(rest[0]), int(rest[1]), steps):
                    break
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return up, first, steps


def main() -> None:
    if "--child" in sys.argv:
        at = sys.argv.index("--child")
        storage, keys, hot, rows = sys.argv[at + 1 : at + 5]
        return child(storage, int(keys), int(hot), int(rows))
    options = parser(__doc__)
    options.add_argument("--keys", type=int, nargs="*", default=[1_000_000, 10_000_000])
    options.add_argument("--rows", type=int, default=1_000, help="records a step, once filled")
    options.add_argument(
        "--hot", type=int, default=1_000, help="keys that are touched, once filled"
    )
    options.add_argument(
        "--history", type=int, nargs="*", default=[50, 1_000], help="steps before the kill"
    )
    chosen = options.parse_args()
    if chosen.quick:
        chosen.keys, chosen.history = chosen.keys[:1], [20, 300]
    rows = [["keys", "steps of history", "first new step, s"]]
    found: dict[tuple[int, int], float] = {}
    for keys in chosen.keys:
        folder = Path(tempfile.mkdtemp(prefix="headrace-recover-"))
        for history in chosen.history:
            goal = history

            def reached(
                step: int, position: int, steps: int, goal: int = goal, keys: int = keys
            ) -> bool:
                return position > keys and step >= goal

            run_until(folder, keys, chosen.hot, chosen.rows, reached)
            up, first, _ = run_until(folder, keys, chosen.hot, chosen.rows, lambda *_: True)
            found[keys, history] = first - up
            rows.append([f"{keys:,}", f"{history:,}", f"{first - up:.2f}"])
        shutil.rmtree(folder, ignore_errors=True)
    few, many = chosen.history[0], chosen.history[-1]
    first_keys = chosen.keys[0]
    grown = found[first_keys, many] / found[first_keys, few]
    figures = [
        figure("seconds_to_first_step", found[chosen.keys[-1], many], "s"),
        figure("long_over_short_history", grown, "x", "<= 1.2", grown <= 1.2),
        *(figure(f"seconds_{k}_keys_{h}_steps", s, "s") for (k, h), s in found.items()),
    ]
    if len(chosen.keys) > 1:
        more = found[chosen.keys[-1], many] / found[first_keys, many]
        figures.append(figure("many_over_few_keys", more, "x"))
    report("From the start of a killed driver to its first new step", rows, figures, chosen)
    return None


if __name__ == "__main__":
    main()
