"""The pipeline of the third fixture: light steps that are still to be computed again, results that are
staged, because no sink has received them, and the inbox that all came by.

It is never changed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from headrace.driver.driver import Driver
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.sources.inbox import Producer, recorded
from headrace.storage import LocalStore

SETTINGS = hr.Settings(
    limit=hr.Limit(4, 1 << 20), checkpoint_steps=3, base_every=4, slices=4, retain_steps=2
)
STEPS = 8


class Hit(msgspec.Struct):
    key: str
    n: int
    at: int


class Tally(hr.Computation):
    """Counts the records of each key, tells it at each one, and at the end of each hundred of time."""

    deterministic = True
    number = hr.ValueState(int, default=0)
    over = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(str)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.number.value += 1
        self.over.set(record.timestamp_us // 100 * 100 + 100)
        ctx.produce("out", f"{self.number.value}: {record.value.n}")

    def process_timer(self, ctx: Any, timer: hr.Fired) -> None:
        ctx.produce("out", f"{self.number.value} by {timer.time_us}")


def appended(inbox: LocalStore) -> None:
    """Let two producers append what there is, and finish."""
    for name, first in (("ann", 0), ("bob", 3)):
        producer = Producer(inbox, name, type=Hit, event_time="at")
        for batch in range(6):
            numbers = range(10 * batch + first, 10 * batch + first + 4)
            producer.append([Hit("xyz"[n % 3], n, 10 * n) for n in numbers])
        producer.finish()


def draw(inbox: LocalStore, take: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("light")
    source = hr.sources.Inbox(inbox, Hit, event_time="at", producers=["ann", "bob"])
    hits = pipeline.inject("hits", source)
    tally = pipeline.compute("tally", Tally(), keys={hits: "key"})
    pipeline.sink("told", tally["out"], hr.sinks.Calls(take, idempotent=True))
    return pipeline


def open_on(folder: Path, take: Any) -> Driver:
    """Take the pipeline over; its sink has a thread of its own."""
    runner = InlineRunner()
    runner.concurrent = True
    driver = Driver(
        draw(LocalStore(folder / "inbox"), take),
        LocalStore(folder / "storage"),
        runner,
        workers=2,
        bins=8,
        drain=True,
        settings=SETTINGS,
    )
    driver.open()
    return driver


def left_unreceived(folder: Path) -> None:
    """Work for some steps, of which no sink receives a thing, and stop where one was light."""
    gone = threading.Event()

    def take(delivery: Any) -> None:
        gone.wait()
        raise OSError("gone")

    appended(LocalStore(folder / "inbox"))
    driver = open_on(folder, take)
    while driver.coordinator.head is None or driver.coordinator.head.step < STEPS:
        assert driver.turn() is None
    gone.set()  # (it is not closed: a driver that is gone closes nothing)


def found(folder: Path) -> dict[str, Any]:
    """Return what is stored, as plain data."""
    opened = Ledger(LocalStore(folder / "storage")).open_uncheckpointed()
    assert opened.head is not None
    return {
        "step": opened.head.step,
        "checkpoint": opened.head.checkpoint,
        "light": [manifest.step for manifest in opened.uncheckpointed],
        "unreleased": {str(step): len(files) for step, files in opened.head.unreleased.items()},
        "unstaged": sum(manifest.unstaged for manifest in opened.uncheckpointed),
    }


def gone_on_with(folder: Path) -> dict[str, Any]:
    """Go on to the end; return what a sink was told of each key in all, and what is recorded."""
    rows: dict[int, list[Any]] = {}

    def take(delivery: Any) -> None:
        told = [[row["key"], row["value"]] for row in delivery.rows.to_pylist()]
        assert rows.setdefault(delivery.id, told) == told

    driver = open_on(folder, take)
    while driver.turn() is None:
        pass
    driver.close()
    said = defaultdict(list)
    for id_ in sorted(rows):
        for key, value in rows[id_]:
            said[key].append(value)
    inbox, storage = LocalStore(folder / "inbox"), LocalStore(folder / "storage")
    return {
        "said": said,
        "recorded": {name: recorded(name, inbox=inbox, storage=storage) for name in ("ann", "bob")},
    }
