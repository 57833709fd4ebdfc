"""Recovery: a driver is killed and restarted; how long until the first new step is committed.

A running count with many keys runs in a process of its own. Once all keys are there, the process is
killed with SIGKILL and started again. The time until the first new step counts from when Spark is
up.

It is measured after a short history and a long one, because it must not grow with history. It is
measured for two numbers of keys, because it may grow at most with the part of the state that is
touched, which is the same. Each time is the median of several kills. Beside it is the time of the
first bare job of a session, which shows how much of it is spent on starting Python processes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace as hr
from benchmarks.floor import BatchCount, driver_floor
from benchmarks.harness import ROOT, figure, local_session, parser, report
from benchmarks.inputs import Filled
from headrace.driver.driver import Driver
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore

GOAL_GROWTH = 1.2
#: A child that takes longer is stuck.
LONGEST_S = 900.0
Until = Callable[[int, int], bool]


def child(storage: str, keys: int, hot: int, rows: int) -> None:
    """Run until killed. Print when Spark is up, and each committed step."""
    spark = local_session(2)
    print("UP", time.time(), flush=True)
    pipeline = hr.Pipeline("recover")
    stream = pipeline.inject("keys", Filled(keys, rows, hot))
    pipeline.compute("count", BatchCount(), keys={stream: "key"})
    driver = Driver(
        pipeline,
        LocalStore(storage),
        SparkRunner(spark.sparkContext),
        workers=2,
        bins=1_024,
        settings=hr.Settings(cached_bytes=8 << 30),
    )
    driver.listeners.append(
        lambda s: print("STEP", s.step, s.head.positions["keys"], time.time(), flush=True)
    )
    driver.run()


def bare_child() -> None:
    """Run the bare job of a step once, and print the same as :func:`child`."""
    spark = local_session(2)
    print("UP", time.time(), flush=True)
    driver_floor(spark.sparkContext)()
    print("STEP", 0, 0, time.time(), flush=True)
    time.sleep(60)  # to be killed, like the others


def run_until(what: list[Any], until: Until) -> float:
    """Run a child until ``until(step, position)`` holds, and kill it.

    Returns:
        The seconds from when Spark was up until the first step was committed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recover", "--child", *map(str, what)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    give_up = threading.Timer(LONGEST_S, os.killpg, (process.pid, signal.SIGKILL))
    give_up.start()
    up = first = 0.0
    try:
        assert process.stdout is not None
        for line in process.stdout:
            word, *rest = line.split()
            if word == "UP":
                up = float(rest[0])
            elif word == "STEP":
                first = first or float(rest[2])
                if until(int(rest[0]), int(rest[1])):
                    break
    finally:
        give_up.cancel()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not first:
        raise SystemExit("the child ended before its first step")
    return first - up


def at_once(step: int, position: int) -> bool:
    """Return True: the first step is enough."""
    return True


def recovered(keys: int, chosen: argparse.Namespace) -> dict[int, float]:
    """Fill a state; return the seconds to the first new step, by the length of the history."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-recover-"))
    what = [folder, keys, chosen.hot, chosen.rows]
    found = {}
    try:
        for history in chosen.history:

            def reached(step: int, position: int, history: int = history) -> bool:
                return position > keys and step >= history

            run_until(what, reached)
            kills = [run_until(what, at_once) for _ in range(chosen.kills)]
            found[history] = statistics.median(kills)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def growth(name: str, more: float, less: float) -> dict[str, Any]:
    """Return a ratio of two times as a figure."""
    grown = more / less
    return figure(name, grown, "x", f"<= {GOAL_GROWTH}", grown <= GOAL_GROWTH)


def figures_of(found: dict[int, dict[int, float]], bare: float) -> list[dict[str, Any]]:
    """Return the longest time, the growth of times with history and with keys, and all times."""
    fewest, most = min(found), max(found)
    short, long = min(found[most]), max(found[most])
    figures = [figure("seconds_to_first_step", found[most][long], "s")]
    figures += [
        growth(
            "long_over_short_history" + ("" if keys == most else f"_{keys}"),
            found[keys][long],
            found[keys][short],
        )
        for keys in sorted(found, reverse=True)
    ]
    if most > fewest:
        figures.append(growth("many_over_few_keys", found[most][long], found[fewest][long]))
    figures.append(figure("seconds_to_first_bare_job", bare, "s"))
    return figures + [
        figure(f"seconds_{keys}_keys_{history}_steps", seconds, "s")
        for keys, times in found.items()
        for history, seconds in times.items()
    ]


def main() -> None:
    if "--child" in sys.argv:
        what = sys.argv[sys.argv.index("--child") + 1 :]
        if what == ["bare"]:
            return bare_child()
        storage, *numbers = what
        return child(storage, *map(int, numbers))
    options = parser(__doc__)
    options.add_argument("--keys", type=int, nargs="*", default=[1_000_000, 10_000_000])
    options.add_argument("--rows", type=int, default=1_000, help="records a step, once filled")
    options.add_argument("--hot", type=int, default=1_000, help="keys touched, once filled")
    options.add_argument(
        "--history", type=int, nargs="*", default=[50, 1_000], help="steps before the kill"
    )
    options.add_argument("--kills", type=int, default=5, help="kills after each history")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.keys, chosen.history, chosen.kills = chosen.keys[:1], [20, 200], 1
    bare = statistics.median(run_until(["bare"], at_once) for _ in range(chosen.kills))
    found = {keys: recovered(keys, chosen) for keys in chosen.keys}
    rows = [["keys", "steps of history", "first new step, s"]]
    rows += [
        [f"{keys:,}", f"{history:,}", f"{seconds:.2f}"]
        for keys, times in found.items()
        for history, seconds in times.items()
    ]
    rows.append(["", "the first bare job", f"{bare:.2f}"])
    report(
        "From the start of a killed driver to its first new step",
        rows,
        figures_of(found, bare),
        chosen,
    )
    return None


if __name__ == "__main__":
    main()
