"""5 GiB of texts on one worker: it is started again, and goes on within the bound on memory.

A column of Arrow holds 2 GiB of texts at most, so this state is read in several tables. Figures are
printed, and written to the file that HEADRACE_SOAK_JSON names. It needs 15 GiB of disk.
"""

from __future__ import annotations

import functools
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from benchmarks.memory import CONSTANT_MIB, GOAL, resident_mib

import headrace as hr
from headrace.driver.driver import Driver
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore
from tests.support.results import recording

pytestmark = pytest.mark.soak

MIB = 1 << 20
SIZE = 100_000
GIB = float(os.environ.get("HEADRACE_SOAK_GIB", "5"))
BOUND_MIB = 256
#: Records of a step while state is filled, and afterwards.
FILL_ROWS, ROWS, STEPS = 2_560, 320, 8
KEYS = -(-int(GIB * 1_024 * MIB) // (SIZE * FILL_ROWS)) * FILL_ROWS


class Touch(msgspec.Struct):
    key: int
    at: int


def text_of(key: int, at: int) -> str:
    """Return the text that a record leaves for its key."""
    part = f"{key} at {at}, "
    return (part * (SIZE // len(part) + 1))[:SIZE]


def last_at(key: int, before: int) -> int:
    """Return when a key was touched last before a record; -1 for never."""
    return max((at for at in touches()[key] if at < before), default=-1)


def records() -> Iterator[Touch]:
    """Yield each key once, and then keys at random."""
    drawn = random.Random(11)
    for n in range(KEYS + (STEPS + 1) * ROWS):
        yield Touch(n if n < KEYS else drawn.randrange(KEYS), n)


@functools.cache
def touches() -> dict[int, list[int]]:
    """Return when each key is touched."""
    found: dict[int, list[int]] = {}
    for of in records():
        found.setdefault(of.key, []).append(of.at)
    return found


class Texts(hr.ColumnarComputation):
    """Keeps a text for each key, and checks the one before."""

    held = hr.TableState({"text": str})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.held.at(batch.keys)
        keys = batch["key"][batch.starts].tolist()
        firsts, lasts = (
            batch["at"][at].tolist() for at in (batch.starts, batch.starts + batch.counts - 1)
        )
        for key, first, text in zip(keys, firsts, rows["text"], strict=True):
            before = last_at(key, first)
            if text != ("" if before < 0 else text_of(key, before)):
                raise AssertionError(f"key {key} had {text[:40]!r} at {first}")
        texts = [text_of(key, at) for key, at in zip(keys, lasts, strict=True)]
        rows.upsert(text=np.array(texts, dtype=object))


def go_on(folder: str, rows: int, until: int) -> dict[str, Any]:
    """Run up to a number of records. Return what it took."""
    pipeline = hr.Pipeline("texts")
    source = hr.sources.Iterable(records, Touch, event_time="at")
    pipeline.compute("keep", Texts(), keys={pipeline.inject("keys", source): "key"})
    driver = Driver(
        pipeline,
        LocalStore(folder),
        InlineRunner(),
        workers=1,
        bins=1_024,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 40), cached_bytes=BOUND_MIB * MIB),
    )
    touches()
    before, started, seen, done = resident_mib(), time.perf_counter(), [], 0
    highest = 0.0

    def note(summary: hr.StepSummary) -> None:
        nonlocal done, highest
        done += summary.records
        seen.append(time.perf_counter() - started)
        highest = max(highest, resident_mib())
        if done >= until:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    driver.run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return {
        "records": done,
        "first_step_s": seen[0],
        "seconds": seen[-1],
        "grown_mib": highest - before,
        "peak_within_steps_mib": peak - before,
    }


def child(folder: Path, rows: int, until: int) -> dict[str, Any]:
    """Run in a process of its own, so that memory is that of this run."""
    command = [sys.executable, "-m", __name__, str(folder), str(rows), str(until)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_worker_with_5_gib_of_texts_is_started_again_within_the_bound(tmp_path: Path) -> None:
    """It failed beyond 2 GiB, and blamed the user's code."""
    with recording("five_gib_of_texts") as keep:
        filled = child(tmp_path, FILL_ROWS, KEYS)
        again = child(tmp_path, ROWS, STEPS * ROWS)
        size = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        found: dict[str, Any] = {"gib": GIB, "bound_mib": BOUND_MIB, "disk_gib": size / (1 << 30)}
        found |= {"filled": filled, "again": again}
        keep(found)
        print(json.dumps(found, indent=2))
        assert filled["records"] == KEYS and again["records"] == STEPS * ROWS
        assert again["grown_mib"] <= GOAL * BOUND_MIB + CONSTANT_MIB


if __name__ == "__main__":
    print(json.dumps(go_on(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
