"""Crashes while a computation that was added at the beginning catches up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import headrace as hr
from headrace.driver.change import Change
from headrace.driver.driver import Driver
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, Store
from tests.support.changing import flat
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.pipelines import Collected

Draw = Callable[[Collected], hr.Pipeline]
Add = Callable[[hr.Pipeline, Collected], Any]
Begin = Callable[[Driver, Collected], Change]


def crash_after_any_operation(
    draw: Draw, add: Add, begin_late: Begin, *, sinks: list[str]
) -> Collected:
    """Crash after every third operation of the storage, and go on; nothing of that may be seen.

    Args:
        draw: draws the pipeline without the computation ``late``.
        add: adds that to a drawing.
        begin_late: asks a driver for it, from the beginning on.
        sinks: whose rows must be the undisturbed run's.

    Returns:
        What the undisturbed run delivered.
    """

    def run(store: Store, inner: Store, collected: Collected) -> None:
        run_and_begin_late(store, inner, collected, draw, add, begin_late)

    counter, whole = FaultStore(MemoryStore()), Collected()
    run(counter, counter.inner, whole)
    struck = 0
    for at in range(1, counter.operations + 1, 3):
        inner, collected = MemoryStore(), Collected()
        try:
            run(FaultStore(inner, at, "crash after"), inner, collected)
        except SimulatedCrash:
            struck += 1
        run(inner, inner, collected)
        for sink in sinks:
            assert flat(collected, sink) == flat(whole, sink), f"crash after {at}"
        found = Ledger(inner).open()
        assert found is not None
        assert found.backfill is None
    assert struck > counter.operations // 6
    return whole


def run_and_begin_late(
    store: Store, inner: Store, collected: Collected, draw: Draw, add: Add, begin_late: Begin
) -> None:
    """Run a pipeline that gets another computation half-way, which begins at the beginning."""
    head = Ledger(inner).open()
    drawn = head is not None and "late" in head.stored_schema["computations"]
    pipeline = draw(collected)
    if drawn:
        add(pipeline, collected)
    driver = Driver(
        pipeline,
        store,
        InlineRunner(),
        workers=2,
        bins=16,
        drain=True,
        settings=hr.Settings(
            limit=hr.Limit(5, 1 << 30), base_every=2, slices=4, retain_steps=1, poll_us=0
        ),
    )
    asked: list[Change] = []

    def note(summary: hr.StepSummary) -> None:
        if summary.head.positions["items"] >= 15 and not drawn and not asked:
            asked.append(begin_late(driver, collected))

    if head is not None and head.ended and not drawn:
        asked.append(begin_late(driver, collected))
    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
