"""Storage stays as small as what it must hold, however many steps there were."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.coordinator.messages import Commit
from headrace.driver.driver import Driver, Settings
from headrace.ledger.ledger import files_of
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.soak.test_resources_stay_flat import Sliding, Tick, ticks


def drawn(store: MemoryStore, **upkeep: int) -> Driver:
    """Return a driver whose input does not end."""
    pipeline = hr.Pipeline("upkeep")
    stream = pipeline.inject("ticks", hr.sources.Iterable(ticks, Tick, event_time="at"))
    node = pipeline.compute("sliding", Sliding(), keys={stream: "key"}, retain=[])
    pipeline.sink("out", node, hr.sinks.Calls(lambda step, rows: None))
    return Driver(
        pipeline,
        store,
        InlineRunner(),
        workers=2,
        settings=Settings(limit=hr.Limit(20, 1 << 20), **upkeep),
    )


def run(store: MemoryStore, steps: int, **upkeep: int) -> tuple[Driver, list[int]]:
    """Run so many steps; return the driver, and the number of files after each."""
    driver = drawn(store, **upkeep)
    counts: list[int] = []

    def note(summary: Any) -> None:
        counts.append(len(store.list("")))
        if len(counts) >= steps:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    driver.run()
    return driver, counts


@pytest.mark.parametrize("clean_per_step", [3, 64])
def test_the_number_of_files_does_not_grow_with_steps(clean_per_step: int) -> None:
    upkeep = {"base_every": 8, "slices": 16, "retain_steps": 4}
    _, counts = run(MemoryStore(), 300, **upkeep, clean_per_step=clean_per_step)
    assert max(counts[200:]) <= max(counts[100:200]) * 1.05


def test_with_the_usual_settings_files_are_bounded_too() -> None:
    _, counts = run(MemoryStore(), 1_500, retain_steps=16)  # (and not for a time)
    assert max(counts[1_100:]) <= max(counts[600:1_100]) * 1.05


@pytest.mark.parametrize("packed_bytes", [0, 4_000, 1 << 18])
@pytest.mark.drawn(1)
def test_after_a_restart_nothing_that_is_needed_is_gone_and_leftovers_are(
    packed_bytes: int,
) -> None:
    store = MemoryStore()
    upkeep = {"base_every": 8, "slices": 8, "retain_steps": 4, "packed_bytes": packed_bytes}
    for round_ in range(4):
        store.write(f"runs/{round_:012d}-e9-t0-l1-w0-a1", b"left by a lost try")
        driver, _ = run(store, 50, **upkeep)
        head = driver.coordinator.head
        assert head is not None
        there = {name for name in store.list("") if name.startswith(("runs/", "outputs/"))}
        needed = {file.place for file in head.files}
        assert needed <= set(store.list(""))
        if round_:
            assert f"runs/{round_ - 1:012d}-e9-t0-l1-w0-a1" not in there
        assert len(there - set(files_of(head))) <= 1


def test_a_clean_up_from_outside_takes_nothing_of_a_step_that_is_about_to_be_committed() -> None:
    store, cleaned = MemoryStore(), 0
    driver = drawn(store, base_every=4, slices=4, retain_steps=2, packed_bytes=0)
    driver.open()
    while driver.coordinator.head is None or driver.coordinator.head.step < 12:
        assert driver.turn() is None
        if isinstance(driver.upcoming, Commit):  # (the files are written; no manifest names them)
            cleaned += 1
            Checkpoints(store).clean(now_us=0)
    assert cleaned >= 12
    assert list(Checkpoints(store).verify()) == []
