"""A driver process that may stop itself (SIGSTOP) inside a commit. Used by
tests/faults/kills/test_stopped_inside_a_commit.py.

usage: stalled_driver.py STORAGE STEPS [--stall-at STEP] [--before-link | --after-link] [--unprotected]
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from typing import Any

import msgspec

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.errors import HeadraceError
from headrace.ledger.manifest import manifest_name
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore


class Tick(msgspec.Struct):
    n: int
    at: int


class Count(hr.Computation):
    count = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += record.value.n


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("storage")
    parser.add_argument("steps", type=int)
    parser.add_argument("--stall-at", type=int, default=-1)
    parser.add_argument("--after-link", action="store_true")
    parser.add_argument("--unprotected", action="store_true")
    chosen = parser.parse_args()
    link = os.link

    def stalling_link(source: Any, target: Any, **more: Any) -> None:
        stalls = str(target).endswith(manifest_name(chosen.stall_at))
        if stalls and not chosen.after_link:
            os.kill(os.getpid(), signal.SIGSTOP)
        link(source, target, **more)
        if stalls and chosen.after_link:
            os.kill(os.getpid(), signal.SIGSTOP)

    os.link = stalling_link
    pipeline = hr.Pipeline("ticks")
    source = hr.sources.Iterable(
        lambda: (Tick(n, n) for n in itertools.count()), Tick, event_time="at"
    )
    pipeline.compute("count", Count(), keys={pipeline.inject("ticks", source): "n"})
    driver = Driver(
        pipeline,
        LocalStore(chosen.storage),
        InlineRunner(),
        workers=1,
        bins=16,
        settings=Settings(limit=hr.Limit(10, 1 << 20), base_every=2, retain_steps=1, slices=2),
        check_predecessor=not chosen.unprotected,
    )
    done = [0]

    def count(summary: Any) -> None:
        print("committed", summary.step, flush=True)
        done[0] += 1
        if done[0] >= chosen.steps:
            driver.request_stop(drain=False)

    driver.listeners.append(count)
    try:
        driver.run()
    except HeadraceError as error:
        print(type(error).__name__, str(error).splitlines()[0], flush=True)
        sys.exit(4)


if __name__ == "__main__":
    main()
