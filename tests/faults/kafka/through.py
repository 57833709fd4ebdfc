"""A driver that counts by key from one topic to another, until it has read what there is, or is killed.

usage: through.py BROKERS INTO OUT FOLDER [MASTER EXCHANGE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from headrace.driver.driver import Driver
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.support.cluster import cluster_settings


class Item(msgspec.Struct):
    """A record: its key, and where it was."""

    key: int
    partition: int
    offset: int


class Counted(msgspec.Struct):
    """A record, and how many of its key there were."""

    seen: int
    partition: int
    offset: int


class Count(hr.Computation):
    """Counts by key. Each record goes on with the count."""

    seen = hr.ValueState(int, default=0)
    out = hr.Output(Counted)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1
        item = record.value
        ctx.produce("out", Counted(self.seen.value, item.partition, item.offset))


def pipeline(brokers: str, into: str, out: str) -> hr.Pipeline:
    """Return the pipeline from topic to topic."""
    made = hr.Pipeline("through")
    where = {"partition": "kafka.partition", "offset": "kafka.offset"}
    items = made.inject("items", hr.sources.Kafka(into, servers=brokers, type=Item, columns=where))
    counts = made.compute("count", Count(), keys={items: "key"})
    made.sink("counts", counts, hr.sinks.Kafka(out, brokers, steps_topic=f"{out}-steps"))
    return made


def runner_on(master: str) -> Runner:
    if not master:
        return InlineRunner()
    settings = {} if master.startswith("local") else cluster_settings()
    return SparkRunner(hr.spark_session(master=master, conf=settings).sparkContext)


def main(
    brokers: str, into: str, out: str, folder: str, master: str = "", exchange: Any = "auto"
) -> None:
    driver = Driver(
        pipeline(brokers, into, out),
        LocalStore(Path(folder)),
        runner_on(master),
        workers=2,
        bins=8,
        # With the shuffle, tasks read; with the others, the driver reads steps that are small.
        settings=hr.Settings(limit=hr.Limit(100, 1 << 20), exchange=exchange),
    )
    driver.request_stop(catch_up=True)
    try:
        driver.run()
    finally:
        driver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
