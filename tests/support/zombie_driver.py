"""A driver whose pipeline can stop one of its own tasks. Used by tests/spark/test_zombies.py.

usage: zombie_driver.py FOLDER RUN [--master URL] [--exchange EXCHANGE]

The first task, in all processes, that meets the marked record notes its process in FOLDER/stopped and
stops it. What each committed step says of itself goes to FOLDER/RUN.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from headrace.driver.driver import Driver, Settings
from headrace.errors import HeadraceError
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore
from tests.support.stopping import stop_once

RECORDS, A_STEP, MARKED = 400, 20, 130
#: A frozen executor is given up after some seconds instead of two minutes; an application has one slot on
#: each host, so that the next one finds room.
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "1s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.executorEnv.PYTHONHASHSEED": "0",
}


class Row(msgspec.Struct):
    key: int
    n: int


class Sums(hr.Computation):
    """Running sums; what comes out shows all of the state."""

    deterministic = True

    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.n
        if record.value.n == MARKED:
            stop_once(self.mark)
        ctx.produce("out", self.total.value)


class Again(hr.Computation):
    """A layer below: how often each sum came, so that a record that is lost or doubled shows."""

    deterministic = True

    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += record.value
        ctx.produce("out", self.count.value)


def pipeline(folder: Path) -> hr.Pipeline:
    drawn = hr.Pipeline("zombies")
    rows = [Row(n % 7, n) for n in range(RECORDS)]
    stream = drawn.inject("rows", hr.sources.Iterable(rows, Row, event_time="n"))
    sums = drawn.compute("sums", Sums(str(folder / "stopped")), keys={stream: "key"})
    again = drawn.compute("again", Again(), keys={sums: "value"})
    drawn.sink("sums", sums, hr.sinks.Files(folder / "out" / "sums"))
    drawn.sink("again", again, hr.sinks.Files(folder / "out" / "again"))
    return drawn


def runner(master: str | None) -> Runner:
    if master is None:
        return InlineRunner()
    from headrace.runners.spark.runner import SparkRunner
    from tests.spark.conftest import session

    return SparkRunner(session(master, **SETTINGS).sparkContext)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run")
    parser.add_argument("--master")
    parser.add_argument("--exchange", default="driver")
    chosen = parser.parse_args()
    driver = Driver(
        pipeline(chosen.folder),
        LocalStore(chosen.folder / "storage"),
        runner(chosen.master),
        workers=2,
        bins=16,
        drain=True,
        settings=Settings(
            limit=hr.Limit(A_STEP, 1 << 20),
            exchange=chosen.exchange,
            base_every=4,
            retain_steps=2,
            slices=4,
            packed_bytes=0,  # (so that a zombie leaves files behind)
        ),
    )
    log = open(chosen.folder / f"{chosen.run}.jsonl", "w")  # noqa: SIM115

    def note(summary: Any) -> None:
        manifest, _ = driver.ledger.read(summary.step)
        files = [*manifest.runs, *manifest.outputs]
        line = {
            "step": manifest.step,
            "epoch": manifest.epoch,
            "try": manifest.attempt,
            "files": [[file.name, file.layer, file.worker] for file in files],
            "state": manifest.state_digests,
            "streams": manifest.stream_digests,
            "rows": [division.end for division in manifest.divisions.values()],
        }
        log.write(json.dumps(line) + "\n")
        log.flush()

    driver.listeners.append(note)
    try:
        driver.run()
        driver.close()
    except HeadraceError as error:
        print(type(error).__name__, str(error).splitlines()[0], flush=True)
        sys.exit(4)


if __name__ == "__main__":
    main()
