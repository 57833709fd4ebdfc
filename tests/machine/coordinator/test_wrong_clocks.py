"""A clock that is wrong for a while, by years, leaves no trace once it is right again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.coordinator.clean_up import next_boundary
from headrace.coordinator.load.meter import Meter
from headrace.coordinator.load.work_rates import Arrivals
from headrace.driver.driver import Driver
from headrace.driver.policy_loop import Controller
from headrace.keyspace.planner import contiguous
from headrace.ledger.folding import fold
from headrace.ledger.manifest import Manifest
from headrace.ledger.pins import Pins
from headrace.policies import How
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.machine.steps.test_watermarks import Run, Windows, says, windows
from tests.support.script import HandClock, Round, Said, Script

SECOND = 1_000_000
YEARS = 10 * 365 * 86_400 * SECOND
NOW = 1_700_000_000 * SECOND


def rounds_of(wrong: dict[int, int], count: int = 8) -> list[Round]:
    """Return rounds, four seconds one after the other: partition a always brings something, b at first."""
    found = []
    for number in range(count):
        records = {"a": says(20 * number + 5)}
        if not number:
            records["b"] = says(3)
        now = NOW + number * 4 * SECOND + wrong.get(number, 0)
        found.append(Round(records, now=now))
    return found


@settings(deadline=None, max_examples=10)
@given(
    st.dictionaries(st.integers(0, 3), st.sampled_from([YEARS, YEARS // 3, -YEARS]), max_size=3),
)
def test_a_partition_becomes_idle_though_a_clock_was_years_off(wrong: dict[int, int]) -> None:
    run = Run(rounds_of(wrong), windows, idle_after="10s")
    assert run.low()[7] == 145, "nothing came of b for 16 s at least while the clock was right"


@pytest.mark.parametrize("off", [YEARS, -YEARS])
def test_a_partition_becomes_idle_though_the_driver_before_had_a_clock_that_was_off(
    off: int,
) -> None:
    """The first run is stopped, so that its input has not ended; the second one has the right time."""
    store, heads = MemoryStore(), []
    said = {"a": says(5), "b": says(3)}
    later = [Round({"a": says(100 + 5 * n)}, now=NOW + 4 * n * SECOND) for n in range(1, 6)]
    scripts = [[Round(said, now=NOW + off)], [Round(said, now=NOW), *later]]
    for number, rounds in enumerate(scripts):
        clock = HandClock(NOW + (off if number == 0 else 0))
        pipeline = hr.Pipeline("watched")
        stream = pipeline.inject("in", Script([*rounds, Round()], clock), idle_after="10s")
        pipeline.compute("windows", Windows(), keys={stream: "key"})
        driver = Driver(
            pipeline, store, InlineRunner(), workers=1, bins=4, clock=clock, drain=number == 1
        )

        def note(summary: hr.StepSummary, driver: Driver = driver, number: int = number) -> None:
            heads.append(summary.head)
            if number == 0:
                driver.request_stop(drain=False)

        driver.listeners.append(note)
        driver.run()
        driver.close()
    assert heads[0].frontiers_of("in").low == 3
    assert heads[-2].frontiers_of("in").low >= 120


def items() -> Iterator[Said]:
    n = 0
    while True:
        yield Said("k", n)
        n += 1


class Ticking(HandClock):
    """A clock that goes on by a second a step, and is wrong in some of them."""

    def __init__(self, wrong: dict[int, int]) -> None:
        super().__init__(NOW)
        self.step = 0
        self._wrong = wrong

    def now_us(self) -> int:
        return NOW + self.step * SECOND + self._wrong.get(self.step, 0)


def kept(wrong: dict[int, int], steps: int = 150) -> list[int]:
    """Return the boundary after each step, where 20 s are kept, and a step is made each second."""
    keep = hr.Settings(base_every=4, retain_steps=2, retain_us=20 * SECOND)
    head = fold(None, manifest(0, NOW, layout=contiguous(1, 1).to_wire()), "0")
    found = []
    for step in range(1, steps):
        now = NOW + step * SECOND + wrong.get(step, 0)
        base = head if step - head.last_base >= keep.base_every else None
        boundary = next_boundary(head, keep, now_us=now)
        head = fold(head, manifest(step, now, boundary=boundary, base=base), str(step))
        found.append(head.boundary)
    return found


def manifest(step: int, now: int, **more: Any) -> Manifest:
    return Manifest("p", step, 1, 0, f"n{step}", str(step - 1), step == 0, now, 0, **more)


RIGHT = kept({})


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 80),
    st.integers(1, 20),
    st.sampled_from([YEARS, YEARS // 7, 3_600 * SECOND, -3_600 * SECOND, -YEARS]),
)
def test_clean_up_goes_on_as_if_the_clock_had_never_been_wrong(
    at: int, steps: int, off: int
) -> None:
    found = kept({at + n: off for n in range(steps)})
    assert found[-10:] == RIGHT[-10:]
    assert RIGHT[-1] > 80


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 100), st.sampled_from([YEARS, 3_600 * SECOND, -3_600 * SECOND, -YEARS]))
def test_a_clock_that_is_wrong_for_one_step_lets_nothing_go_too_early(at: int, off: int) -> None:
    found = kept({at: off})
    assert all(boundary - 1 < step - 20 for step, boundary in enumerate(found, 1) if boundary)


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.integers(1, 80),
        st.integers(300 * SECOND + 1, YEARS) | st.integers(-YEARS, -300 * SECOND - 1),
        max_size=5,
    )
)
def test_clean_up_goes_on_after_any_readings(wrong: dict[int, int]) -> None:
    """(A clock that was ahead by less than what is kept lets some steps stay for so much longer.)"""
    assert kept(wrong)[-1] == RIGHT[-1]


def test_a_pin_stays_though_a_clock_was_years_ahead_at_one_look() -> None:
    store = MemoryStore()
    pins = Pins(store)
    pins.put(7, now_us=NOW, for_us=100 * SECOND, nonce="a")
    assert pins.lowest(NOW + YEARS) is None
    assert pins.lowest(NOW + SECOND) == 7


@pytest.mark.parametrize("off", [YEARS, -YEARS])
def test_rates_are_as_they_would_be_soon_after_a_clock_was_wrong(off: int) -> None:
    rates = {}
    for wrong in (0, off):
        arrivals = Arrivals()
        for step in range(900):
            reading = NOW + step * SECOND + (wrong if step == 300 else 0)
            arrivals.note(reading, 40 if step < 600 else 80, 40, more=False)
        rates[wrong] = arrivals.per_second(NOW + 900 * SECOND)
    assert rates[off] == pytest.approx(rates[0], rel=0.02)


def test_a_policy_looks_again_after_a_clock_was_years_ahead() -> None:
    looked: list[int] = []

    class Never:
        def decide(self, seen: hr.policies.Measurements) -> hr.policies.ScalingDecision:
            looked.append(seen.now_us)
            return hr.policies.Nothing("it is well")

    store, clock = MemoryStore(), Ticking({5: YEARS})
    pipeline = hr.Pipeline("policy")
    stream = pipeline.inject("items", hr.sources.Iterable(items, Said, event_time="at"))
    pipeline.compute("windows", Windows(), keys={stream: "key"})
    driver = Driver(
        pipeline,
        store,
        InlineRunner(),
        workers=1,
        bins=1,
        clock=clock,
        settings=hr.Settings(limit=hr.Limit(1, 1 << 20)),
        policy=Never(),
        how=How(every="3s"),
    )

    def note(_: hr.StepSummary) -> None:
        clock.step += 1
        if clock.step == 30:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    driver.run()
    driver.close()
    assert len([at for at in looked if NOW + 10 * SECOND < at < NOW + 30 * SECOND]) >= 4
    assert isinstance(driver.controller, Controller)


def test_a_driver_that_waits_looks_who_leads_though_a_clock_was_years_ahead() -> None:
    script = Script([Round({"a": says(1)})])
    clock = HandClock(NOW)
    pipeline = hr.Pipeline("waits")
    stream = pipeline.inject("in", script)
    pipeline.compute("windows", Windows(), keys={stream: "key"})
    driver = Driver(pipeline, MemoryStore(), InlineRunner(), workers=1, bins=1, clock=clock)
    driver.open()
    while driver.coordinator.head is None:
        driver.turn()
    looks: list[int] = []
    driver.ledger.check_newest = lambda head: looks.append(clock.now)  # type: ignore[method-assign]
    for now in (NOW, NOW + YEARS, NOW, NOW + 2 * SECOND, NOW + 4 * SECOND):
        clock.now = now
        driver._wait(now)
    driver.close()
    assert looks[-2:] == [NOW + 2 * SECOND, NOW + 4 * SECOND]


def test_a_wait_is_never_longer_than_it_is_meant_to_be_though_the_clock_goes_back() -> None:
    waited: list[int] = []

    class Back(HandClock):
        def wait_until(self, until_us: int, woken: threading.Event) -> None:
            waited.append(until_us - self.now)

    clock = Back(NOW)
    pipeline = hr.Pipeline("waits")
    stream = pipeline.inject("in", Script([Round({"a": says(1)})]))
    pipeline.compute("windows", Windows(), keys={stream: "key"})
    driver = Driver(pipeline, MemoryStore(), InlineRunner(), workers=1, bins=1, clock=clock)
    driver.open()
    while driver.coordinator.head is None:
        driver.turn()
    clock.now = NOW - YEARS
    driver._wait(NOW + hr.Settings().poll_us)
    driver.close()
    assert max(waited) <= hr.Settings().poll_us


def test_when_the_layout_changed_is_not_in_the_future() -> None:
    store = MemoryStore()
    pipeline = hr.Pipeline("changed")
    stream = pipeline.inject("items", hr.sources.Iterable([Said("k", 1)], Said, event_time="at"))
    pipeline.compute("windows", Windows(), keys={stream: "key"})
    driver = Driver(
        pipeline, store, InlineRunner(), workers=1, bins=1, clock=HandClock(NOW), drain=True
    )
    driver.run()
    driver.close()
    head = driver.coordinator.head
    assert head is not None
    meter = Meter()
    meter._changed_us = NOW + YEARS
    seen = [meter.measurements(head, NOW + n * SECOND) for n in range(3)]
    assert [one.now_us - (one.changed_us or 0) for one in seen] == [0, SECOND, 2 * SECOND]
