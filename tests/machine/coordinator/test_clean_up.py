"""How far the boundary goes: a step stays while its number, its age, or a pin wants it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.opening import open_state
from headrace.coordinator.clean_up import next_boundary
from headrace.coordinator.settings import Settings, check_settings
from headrace.driver.driver import Driver
from headrace.errors import PipelineError
from headrace.keyspace.planner import contiguous
from headrace.ledger.head import Head
from headrace.ledger.pins import LONGEST_US, SLACK_US, Pins
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.support.changing import Count, Item
from tests.support.changing import items as words
from tests.support.checkpointed import SECOND, driven, items
from tests.support.packing import PACKING, packing

WORDS = words(200)
LAYOUT = contiguous(4, 2).to_wire()


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=40),
    st.integers(0, 12),
    st.integers(0, 300),
    st.none() | st.integers(0, 40),
    st.integers(0, 10),
)
def test_no_step_goes_that_something_wants(
    steps: list[tuple[int, bool]],
    retain_steps: int,
    retain_us: int,
    pinned: int | None,
    uncheckpointed: int,
) -> None:
    """Against the definition, step by step; and the next base after those that are wanted is reached."""
    clocks, now = [], 0
    for later, _ in steps:
        clocks.append(now := now + later)
    newest = len(steps) - 1
    bases = [n for n, (_, base) in enumerate(steps) if base and n]
    head = Head(
        newest,
        1,
        "",
        LAYOUT,
        {},
        bases=bases,
        clock_us=now,
        checkpoint=newest - uncheckpointed,
        clock_before={at: clocks[at - 1] for at in bases},
    )
    boundary = next_boundary(head, Settings(retain_steps=retain_steps, retain_us=retain_us), pinned)

    def wanted(step: int) -> bool:
        by_number = step > newest - retain_steps
        by_age = bool(retain_us) and clocks[step] >= now - retain_us
        by_pin = pinned is not None and step >= pinned
        return by_number or by_age or by_pin or step >= newest - uncheckpointed

    assert not any(wanted(step) for step in range(boundary))
    may = [at for at in bases if not any(wanted(s) for s in range(at))]
    assert boundary == max([0, *(at for at in may if at <= newest - retain_steps)])


def test_negative_bounds_are_refused() -> None:
    for wrong in (Settings(retain_steps=-1), Settings(retain_us=-1)):
        with pytest.raises(PipelineError, match="negative"):
            check_settings(wrong)


def run_on(t: Any, steps: int, first: int = 500) -> None:
    for step in range(steps):
        t.push_many("items", items(first + step, 1))
        t.step()
        t.clock("+10s")


@pytest.mark.parametrize("how", PACKING)
def test_steps_stay_for_as_long_as_their_age_wants_them_and_then_go(how: str) -> None:
    store = MemoryStore()
    with packing(how), driven(store, steps=1, retain_steps=2, retain_us=200 * SECOND) as t:
        run_on(t, 30)
        kept = Checkpoints(store).versions()
        assert 20 <= len(kept) <= 20 + 5, "a step is made each 10 s, a base each 4 steps"
        for step in kept:
            assert Checkpoints(store).open(step).read("cells").num_rows
        t.clock("+1h")
        run_on(t, 8)
        assert len(Checkpoints(store).versions()) <= 8 + 4


@pytest.mark.parametrize("how", PACKING)
def test_a_pinned_step_can_be_read_until_the_pin_is_gone(how: str) -> None:
    store = MemoryStore()
    with packing(how), driven(store, steps=8, retain_steps=2) as t:
        step = Checkpoints(store).versions()[1]
        checkpoint = Checkpoints(store).open(step)
        expected = Checkpoints(store).open(step).read("cells")
        now_us = round(t.now.timestamp() * 1e6)
        name = Pins(store).put(step, now_us=now_us, for_us=3_600 * SECOND, nonce="a")
        run_on(t, 30)
        assert checkpoint.read("cells") == expected
        assert Checkpoints(store).open(step).read("cells") == expected
        Pins(store).drop(name)
        run_on(t, 8)
        assert Checkpoints(store).versions()[0] > step


def test_the_pin_of_a_reader_that_died_keeps_nothing_for_ever() -> None:
    store = MemoryStore()
    with driven(store, steps=8, retain_steps=2) as t:
        step = Checkpoints(store).versions()[0]
        now_us = round(t.now.timestamp() * 1e6)
        Pins(store).put(step, now_us=now_us, for_us=LONGEST_US, nonce="a")
        run_on(t, 10)
        assert Checkpoints(store).versions()[0] == step
        t.clock(f"+{(LONGEST_US + SLACK_US) // SECOND}s")
        run_on(t, 8)
        assert Checkpoints(store).versions()[0] > step
        assert store.list("pins/") == []


def test_pins_are_looked_for_only_when_the_boundary_might_move() -> None:
    class Counting(MemoryStore):
        lists = 0

        def list(self, prefix: str) -> list[str]:
            self.lists += prefix == "pins/"
            return super().list(prefix)

    store = Counting()
    with driven(store, steps=40, base_every=8, retain_steps=2):
        assert 3 <= store.lists <= 40 // 8
    assert hr.Settings(retain_steps=3).retention.age_us == 0


def test_a_step_that_is_pinned_while_there_is_nothing_to_do_stays() -> None:
    """However long ago the newest step was, and whatever was known of pins then."""
    store = MemoryStore()
    pipeline = hr.Pipeline("words")
    stream = pipeline.inject("items", hr.sources.Iterable(WORDS, Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: "page"})
    settings = hr.Settings(limit=hr.Limit(2, 1 << 20), base_every=4, retain_steps=2)
    driver = Driver(pipeline, store, InlineRunner(), workers=1, bins=4, settings=settings)
    driver.open()
    pinned: list[int] = []
    while (stop := driver.turn()) is None and len(pinned) < 4:
        head = driver.coordinator.head
        if (
            head is None
            or head.step in [0, *pinned]
            or next_boundary(head, settings) == head.boundary
        ):
            continue
        # (the next step lets go of all before another base)
        state = open_state(store, head.boundary, pin_for="1h")
        was = state.read("count")
        pinned.append(head.step)
        while driver.turn() is None and driver.coordinator.head == head:
            pass
        assert driver.coordinator.head is not None
        assert driver.coordinator.head.boundary == head.boundary
        assert state.read("count") == was
        for name in store.list("pins/"):
            Pins(store).drop(name)
    assert stop is None
    driver.close()
