"""A driver under a steady load that leads, stands by, or is handed over to. Used by tests of fail-over.

usage: leading_driver.py FOLDER RATE [--spark] [--standby] [--handover] [--take-over] [--version NAME]

So many records come in a second, without end, from when the first of all drivers began. Each delivery is
a line of FOLDER/effects: its id and rows, who made it, and when, by the clock that all processes of a
host share.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import headrace as hr
from headrace.errors import ChangeRefused, Fenced, StorageInUse
from headrace.pipeline.source import Offer, Position

KEYS = 7
#: Patient enough for a machine on which a process that is well may have to wait for a second.
LEASE = hr.HeartbeatSettings(period_s=0.1, patience_s=2.0)
FENCED, REFUSED, IN_USE = 3, 4, 5
CODES = {Fenced: FENCED, ChangeRefused: REFUSED, StorageInUse: IN_USE}


class Hit(msgspec.Struct):
    key: int
    amount: int
    at: int


class Numbered(msgspec.Struct):
    number: int
    total: int
    version: str


class Numbering(hr.Computation):
    """Numbers a key's hits and sums them up, so that one that is lost or doubled shows."""

    number = hr.ValueState(int, default=0)
    total = hr.ValueState(int, default=0)
    out = hr.Output(Numbered)

    def __init__(self, version: str) -> None:
        self.version = version

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        self.total.value += record.value.amount
        ctx.produce("out", Numbered(self.number.value, self.total.value, self.version))


class Arriving(hr.sources.Iterable):
    """Records that come one after another, so many in a second."""

    begun: float
    rate: float

    def offer(self, position: Position, limit: hr.Limit) -> Offer | None:
        due = int((time.monotonic() - self.begun) * self.rate) - position
        return (
            super().offer(position, hr.Limit(min(limit.rows, due), limit.bytes))
            if due > 0
            else None
        )


def begun(file: Path) -> float:
    """Return when the first of all drivers began."""
    aside = file.with_suffix(f".{os.getpid()}")
    aside.write_text(repr(time.monotonic()))
    with contextlib.suppress(FileExistsError):
        os.link(aside, file)
    return float(file.read_text())


def hits() -> Iterator[Hit]:
    """Return all records."""
    return (Hit(n % KEYS, n % 5, n) for n in itertools.count())


def pipeline(folder: Path, rate: float, version: str) -> hr.Pipeline:
    told = os.open(folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def take(step: int, rows: Any) -> None:
        columns = [rows.column(name).to_pylist() for name in ("key", "number", "total", "version")]
        line = {
            "id": step,
            "by": os.getpid(),
            "at": time.monotonic(),
            "rows": list(zip(*columns, strict=True)),
        }
        os.write(told, f"\n{json.dumps(line)}\n".encode())  # (the line before may be torn)

    drawn = hr.Pipeline("led")
    source = Arriving(hits, Hit, event_time="at")
    source.begun, source.rate = begun(folder / "begun"), rate
    stream = drawn.inject("hits", source)
    counts = drawn.compute("counts", Numbering(version), keys={stream: "key"})
    drawn.sink("counts", counts, hr.sinks.Calls(take, idempotent=True))
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("rate", type=float)
    for flag in ("--spark", "--standby", "--handover", "--take-over"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--version", default="old")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        job = hr.run(
            pipeline(chosen.folder, chosen.rate, chosen.version),
            storage=chosen.folder / "storage",
            workers=2,
            bins=16,
            runner="spark" if chosen.spark else "inline",
            standby=chosen.standby,
            handover=chosen.handover,
            take_over=chosen.take_over,
            heartbeat=LEASE,
            settings=hr.Settings(limit=hr.Limit(100, 1 << 20), slices=8, base_every=8),
        )
        with job:
            job.wait()
    except (Fenced, ChangeRefused, StorageInUse) as error:
        print(type(error).__name__, error.what, flush=True)
        print(f"at {error.place}", flush=True)
        sys.exit(CODES[type(error)])
    print(f"ended: {job.ended}", flush=True)
    if job.take_over is not None:
        print(f"took over: {msgspec.json.encode(job.take_over).decode()}", flush=True)


if __name__ == "__main__":
    main()
