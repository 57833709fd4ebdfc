"""Results of light steps reach their sinks, whoever dies, and whoever sweeps meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.driver import outputs
from headrace.driver.driver import Driver
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.machine.uncheckpointed.test_steps import (
    Hit,
    Seen,
    Slow,
    Tally,
    draw,
    expected,
    finish,
    hits,
    run_to,
    start,
)
from tests.support.durations import us


class Sized(Tally):
    """Counts, with so much text that results are carried by reports, or not, as bins lie."""

    out = hr.Output(str)

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        ctx.produce("out", f"{self.number.value} " + "x" * self._size)


class Listed(MemoryStore):
    """Before it lists a folder, or after it, something else happens once."""

    def __init__(self, folder: str, *, after: bool) -> None:
        super().__init__()
        self.then: Callable[[], Any] | None = None
        self._folder, self._after = folder, after

    def list(self, prefix: str) -> list[str]:
        found = super().list(prefix)
        if prefix != self._folder or self.then is None:
            return found
        then, self.then = self.then, None
        then()
        return found if self._after else super().list(prefix)


def elsewhere() -> InlineRunner:
    """Return a runner beside which sinks have threads of their own."""
    runner = InlineRunner()
    runner.concurrent = True
    return runner


def gone(sink: Slow) -> None:
    """Let a sink's process be gone."""
    sink.gone = True
    sink.gate.set()


def numbers(seen: Seen) -> dict[int, list[int]]:
    return {key: [int(str(value).split()[0]) for value in of] for key, of in seen.by_key.items()}


def check_nothing_is_missing(store: MemoryStore, own: hr.Computation) -> None:
    """Let another driver go on to the end; what it gives a sink is all that there was to give."""
    head = Ledger(store).open()
    assert head is not None
    named = {file.place for files in head.unreleased.values() for file in files}
    assert named <= set(store.list(""))
    seen = Seen()
    finish(start(draw(seen, own), store))
    assert numbers(seen) == expected()


def to_a_checkpoint(driver: Driver, after: int) -> None:
    head = driver.coordinator.head
    while head is None or head.is_behind or head.step <= after:
        assert driver.turn() is None
        head = driver.coordinator.head


@pytest.mark.parametrize(
    ("size", "before", "then"), [(60_000, 4, 1), (75_000, 2, 1), (60_000, 1, 4)]
)
def test_what_was_in_files_under_one_layout_and_in_none_under_another_is_all_given_out(
    size: int, before: int, then: int
) -> None:
    store, slow, runner = MemoryStore(), Slow(), elsewhere()
    run_to(start(draw(slow, Sized(size)), store, runner=runner, workers=before), 3)
    driver = start(draw(slow, Sized(size)), store, runner=elsewhere(), workers=then)
    to_a_checkpoint(driver, 4)
    gone(slow)
    check_nothing_is_missing(store, Sized(size))


def test_a_weak_sink_does_not_keep_what_was_there_before_it_from_being_staged() -> None:
    def drawn(seen: Seen, *, weak: bool) -> hr.Pipeline:
        pipeline = hr.Pipeline("light")
        source = hr.sources.Iterable(hits(), Hit, event_time="at")
        stream = pipeline.inject("hits", source, watermark=hr.bounded_delay(us(0)))
        tally = pipeline.compute("tally", Tally(), keys={stream: "key"})
        pipeline.sink("told", tally["out"], hr.sinks.Calls(seen.take, idempotent=True), weak=weak)
        return pipeline

    store, slow = MemoryStore(), Slow()
    run_to(start(drawn(slow, weak=False), store, runner=elsewhere()), 3)
    run_to(start(drawn(slow, weak=True), store, every=1, runner=elsewhere(), straggler_us=1_000), 6)
    gone(slow)
    seen = Seen()
    finish(start(drawn(seen, weak=True), store, every=1))
    assert numbers(seen) == expected()


def test_a_clean_up_from_outside_leaves_what_is_staged_while_it_looks() -> None:
    store, slow = Listed("outputs/", after=True), Slow()
    driver = start(draw(slow), store, every=8, runner=elsewhere())
    run_to(driver, 6)
    store.then = lambda: run_to(driver, 9)
    Checkpoints(store).clean(now_us=0)
    gone(slow)
    check_nothing_is_missing(store, Tally())


def test_a_driver_that_stands_still_as_it_sweeps_leaves_what_the_next_one_has_staged() -> None:
    store, slow = Listed("runs/", after=False), Slow()
    run_to(start(draw(slow), store, every=8, runner=elsewhere()), 6)
    stalled = start(draw(slow), store, every=8)
    rivals: list[Driver] = []

    def rival() -> None:
        rivals.append(start(draw(slow), store, every=8, runner=elsewhere()))
        run_to(rivals[0], 12)

    store.then = rival
    while not rivals:
        stalled.turn()
    gone(slow)
    check_nothing_is_missing(store, Tally())


def made_again(own: Sized) -> MemoryStore:
    """Return what is stored of a pipeline that lost a host, and whose sink has received nothing yet."""
    store, slow, runner = MemoryStore(), Slow(), elsewhere()
    own = Sized(75_000)
    driver = start(draw(slow, own), store, runner=runner, every=8, sweep_every=6)
    run_to(driver, 4)
    runner.drop_soft_state()
    run_to(driver, 9)
    gone(slow)
    return store


def test_a_sweep_in_the_stretch_leaves_what_was_made_again_of_results_that_wait() -> None:
    own = Sized(75_000)
    check_nothing_is_missing(made_again(own), own)


def test_results_too_large_for_a_file_are_staged_in_several(monkeypatch: Any) -> None:
    """Arrow holds at most 2 GiB of one column's texts in a batch."""
    monkeypatch.setattr(outputs, "_FILE_BYTES", 20_000)
    own = Sized(75_000)
    store = made_again(own)
    assert any("-adriver" in name and ".1" in name for name in store.list("outputs/"))
    check_nothing_is_missing(store, own)


def test_a_sink_that_stands_still_while_steps_are_computed_again_finds_what_it_was_given() -> None:
    store, slow, runner = MemoryStore(), Slow(), elsewhere()
    own = Sized(75_000)
    many = hits(600)
    driver = start(draw(slow, own, many), store, runner=runner, every=4, workers=2, outbox_steps=90)
    run_to(driver, 6)
    runner.drop_soft_state()
    run_to(driver, 60)
    slow.gate.set()
    finish(driver)
    assert numbers(slow) == expected(600)
