"""What is compared: a window before anything moved, and one of that length from when it did."""

from __future__ import annotations

import math

import numpy as np
from benchmarks.ways import WAYS, plain

from headrace.nexmark.harness.compared import compared
from headrace.nexmark.harness.latency import Latencies
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.observed import Moved, Observations

LOAD = LoadTest(rate=1_000, warm_s=10.0, seconds=60.0)


def seen(*moved: Moved, late: dict[float, float]) -> Observations:
    """Return a run whose events were 50 ms late, but for some seconds."""
    due_s = np.arange(0, 80, 0.1)
    late_us = np.full(len(due_s), 50_000)
    for second, ms in late.items():
        late_us[np.abs(due_s - second) < 0.01] = round(ms * 1e3)
    latencies = Latencies((due_s * 1e6).astype(np.int64), late_us, np.full(len(due_s), 100))
    return Observations(0, latencies, list(moved), [], [], 0, 0)


def test_the_worst_migration_counts_and_what_it_has_held_up_is_its() -> None:
    first, second = Moved(30.0, 28.5, 31.0, 4, 100), Moved(50.0, 49.9, 52.0, 4, 200)
    late = {5.0: 900.0, 20.0: 80.0, 29.0: 150.0, 33.0: 120.0, 51.0: 200.0}
    found = compared(seen(first, second, late=late), LOAD)
    assert found.steady.max_ms == 80.0, "neither while warming up, nor what the migration held up"
    assert (found.moved, found.moving.max_ms, found.ratio) == (second, 200.0, 2.5)
    waits = {20.0: 80.0, 29.0: 700.0, 51.0: 200.0}
    assert compared(seen(first, second, late=waits), LOAD).moving.max_ms == 700.0


def test_both_windows_are_of_one_length_unless_a_migration_takes_longer() -> None:
    short = compared(seen(Moved(30.0, 29.0, 30.5, 4, 100), late={48.5: 300.0}), LOAD)
    assert short.moving.max_ms == 50.0, "29 s - 10 s after its first event it is over"
    long = compared(seen(Moved(30.0, 29.0, 60.0, 4, 100), late={60.5: 300.0}), LOAD)
    assert long.moving.max_ms == 300.0, "what it has held up is done within a second"


def test_what_the_second_migration_has_held_up_is_not_the_firsts() -> None:
    first, second = Moved(30.0, 29.8, 31.0, 4, 100), Moved(49.6, 49.45, 52.0, 4, 200)
    found = compared(seen(first, second, late={49.5: 400.0, 35.0: 90.0}), LOAD)
    assert (found.moved, found.moving.max_ms) == (second, 400.0)


def test_where_nothing_moves_there_is_only_a_steady_window() -> None:
    found = compared(seen(late={}), LOAD)
    assert (found.moved, found.steady.max_ms, found.moving.max_ms) == (None, 50.0, 0.0)
    assert all(math.isnan(ms) for ms in found.moving.percentiles_ms([50.0]))


def test_the_ways_have_names_that_figures_can_bear() -> None:
    assert [plain(way) for way in WAYS] == ["all_at_once", "fluid", "batched", "batched_prepared"]
    assert WAYS["batched, prepared"](8)["prepare"]
