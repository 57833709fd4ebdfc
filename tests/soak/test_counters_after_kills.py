"""Counters are a recount of the outputs after a hundred kills of the driver's process."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace.ledger.ledger import Ledger
from headrace.observe.metrics import exposition
from headrace.observe.watching import StorageWatcher
from headrace.storage import LocalStore
from tests.support.processes import ROOT

pytestmark = pytest.mark.soak

KILLS = 100
MODULE = "tests.support.counted_driver"


def counters(storage: Path) -> dict[str, float]:
    """Return the counters as a scraper would read them."""
    text = exposition([StorageWatcher(1, LocalStore(storage), "x").reading()])[0].decode()
    return {
        name: float(value)
        for name, value in re.findall(r"^(headrace_\S+_total\S*) (\S+)$", text, re.M)
    }


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen([sys.executable, "-m", MODULE, str(folder), *more], env=environment)


def committed(storage: Path) -> int:
    try:
        head = Ledger(LocalStore(storage)).open()
    except Exception:  # the storage is being begun
        return -1
    return -1 if head is None else head.step


def test_counters_equal_a_recount_after_a_hundred_kills(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    rng, storage = random.Random(seed), tmp_path / "storage"
    before: dict[str, float] = {}
    for kill in range(KILLS):
        at = committed(storage)
        driver = start(tmp_path)
        deadline = time.monotonic() + 120
        while committed(storage) < at + 2:  # it has taken over, and made a step
            assert driver.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "it makes no step"
            time.sleep(0.02)
        time.sleep(rng.expovariate(1 / 0.15))
        driver.kill()
        driver.wait()
        now = counters(storage)
        for name, value in before.items():
            assert now[name] >= value, f"{name} went back after kill {kill}"
        before = now
    driver = start(tmp_path, "--to-the-end")
    assert driver.wait(timeout=1200) == 0
    lines = [
        json.loads(line)
        for file in sorted((tmp_path / "out").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    read = sum(1 for _ in (tmp_path / "hits.jsonl").open())
    found = counters(storage)
    of = '{computation="counts",pipeline="counted"}'
    assert found['headrace_injector_records_total{injector="hits",pipeline="counted"}'] == read
    assert found[f"headrace_records_total{of}"] == read
    assert found[f"headrace_produced_records_total{of}"] == len(lines)
    assert found[f"headrace_timers_total{of}"] == sum(line["timer"] for line in lines)
    large = 'headrace_counter_total{computation="counts",counter="large",pipeline="counted"}'
    assert found[large] == sum(line["large"] for line in lines)
    numbers = Counter(line["key"] for line in lines if not line["timer"])
    totals = {line["key"]: line["number"] for line in lines if not line["timer"]}
    for line in lines:
        totals[line["key"]] = max(totals[line["key"]], line["number"])
    assert totals == dict(numbers), "each record of a key has its own number, and none twice"
    head = Ledger(LocalStore(storage)).open()
    assert head is not None and head.epoch > KILLS
    print(f"{KILLS} kills, {read} records, {len(lines)} results, epoch {head.epoch}")
