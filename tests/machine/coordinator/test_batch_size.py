"""Steps of a live stream last about as long as they should; bounded input is never divided by time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

import headrace as hr
from headrace.coordinator.batch_size import BatchSize
from headrace.coordinator.messages import AttemptEnded, Poll, Run
from headrace.pipeline.source import Limit, Offer, Position
from tests.machine.steps.test_soft_state import Count, Item
from tests.support.pipelines import Collected

COSTS = st.floats(0.1, 1_000)
TARGETS = st.integers(10_000, 2_000_000)
BOUNDS = st.integers(1, 1_000_000)
SEEDS = st.integers(0, 1 << 32)


def saturated(pace: BatchSize, steps: int, took_us: Callable[[int], float]) -> None:
    """Let as much come as may be taken."""
    for _ in range(steps):
        pace.note(pace.rows, round(took_us(pace.rows)))


@given(COSTS, TARGETS, BOUNDS)
def test_pace_settles_on_steps_of_the_right_length(cost: float, target: int, at_most: int) -> None:
    pace = BatchSize(target, at_most)
    saturated(pace, 60, lambda rows: rows * cost)
    assert 1 <= pace.rows <= at_most
    assert pace.rows * cost <= target * 1.1 + cost
    assert pace.rows == at_most or pace.rows * cost >= target * 0.8 - cost


@given(COSTS, TARGETS, BOUNDS, st.floats(0.0, 20.0))
@example(cost=3.0, target=10_000, at_most=836, over=0.75)
@example(cost=0.1, target=42_228, at_most=7_764, over=0.99)
@example(cost=0.34, target=1_784_583, at_most=1_000_000, over=0.858)
def test_however_long_a_step_takes_without_rows_half_of_the_time_is_for_rows(
    cost: float, target: int, at_most: int, over: float
) -> None:
    fixed = target * over
    pace = BatchSize(target, at_most)
    saturated(pace, 100, lambda rows: fixed + rows * cost)
    aim = max(target, 2 * fixed)
    assert fixed + pace.rows * cost <= aim * 1.1 + cost
    # (Near the limit steps hardly differ: what they take without rows may stay unknown; little is lost.)
    assert pace.rows >= at_most * 0.7 or pace.rows * cost >= (aim - fixed) * 0.8 - cost


@given(COSTS, st.floats(0.0, 5.0), SEEDS)
def test_noise_does_not_starve_a_stream(cost: float, over: float, seed: int) -> None:
    chance = random.Random(seed)
    pace, target, at_most = BatchSize(500_000, 1_000_000), 500_000, 1_000_000

    def took_us(rows: int) -> float:
        pause = 3_000_000 if chance.random() < 0.02 else 0
        return (target * over + rows * cost) * chance.uniform(0.7, 1.4) + pause

    saturated(pace, 50, took_us)
    done = spent = 0.0
    for _ in range(200):
        done, spent = done + pace.rows, spent + took_us(pace.rows)
        saturated(pace, 1, took_us)
    could = 1 / (
        cost + target * over / at_most
    )  # rows a microsecond, were all steps as large as may be
    assert done / spent >= could * 0.2


@given(COSTS, TARGETS, BOUNDS, st.integers(0, 100))
def test_after_slow_times_it_takes_as_much_as_ever(
    cost: float, target: int, at_most: int, slow: int
) -> None:
    pace, fast = BatchSize(target, at_most), BatchSize(target, at_most)
    saturated(pace, slow, lambda rows: 40 * target + 100 * rows * cost)
    saturated(pace, 100, lambda rows: rows * cost)
    saturated(fast, 100, lambda rows: rows * cost)
    assert pace.rows >= fast.rows * 0.8 - 1


@given(st.integers(0, 1_000), st.integers(0, 10**7), st.integers(1, 10_000))
def test_a_step_that_found_little_does_not_lower_the_limit_unless_it_was_slow(
    found: int, took: int, at_most: int
) -> None:
    pace = BatchSize(500_000, at_most)
    pace.note(found, took)
    if took <= 500_000:
        assert pace.rows == at_most
    assert at_most // 2 <= pace.rows <= at_most


def test_a_source_whose_pieces_are_smaller_than_the_limit_is_given_more_again() -> None:
    pace = BatchSize(500_000, 1_000)
    saturated(pace, 20, lambda rows: rows * 10_000)
    assert pace.rows == 50
    for _ in range(20):
        pace.note(max(40, pace.rows // 40 * 40), 50_000)
    assert pace.rows == 1_000


class Sparse(hr.sources.Iterable):
    """Passes ten rows for each record that it finds."""

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        found = super().offer(position, Limit(max(1, limit.rows // 10), limit.bytes))
        return found and msgspec.structs.replace(found, rows=found.rows * 10)


def limits_while(
    took_us: Sequence[int],
    *,
    live: bool = True,
    source: type[hr.sources.Iterable] = hr.sources.Iterable,
) -> list[int]:
    """Drive a real coordinator through steps that take so long; return what it asks for before each."""
    from headrace.driver.driver import Driver, Settings
    from headrace.runners.inline import InlineRunner
    from headrace.storage import MemoryStore

    items = source([Item("a", i, i) for i in range(1_000)], Item, event_time="at")
    items.bounded = not live
    pipeline = hr.Pipeline("paced")
    stream = pipeline.inject("items", items)
    pipeline.sink(
        "out", pipeline.compute("it", Count(), keys={stream: "key"}), Collected().sink("out")
    )
    driver = Driver(
        pipeline,
        MemoryStore(),
        InlineRunner(),
        workers=1,
        settings=Settings(limit=hr.Limit(50, 1 << 20)),
    )
    asked: list[int] = []
    steps = iter(took_us)
    tell = driver.coordinator.handle

    def handle(event: Any) -> Any:
        if isinstance(event, AttemptEnded):
            event = AttemptEnded(event.reports, next(steps, 1_000))
        todo = tell(event)
        for instruction in todo:
            if isinstance(instruction, Poll):
                asked.append(instruction.limits["items"].rows)
            if isinstance(instruction, Run) and len(asked) > len(took_us):
                driver.request_stop(drain=False)
        return todo

    driver.coordinator.handle = handle  # type: ignore[method-assign]
    driver.run()
    return asked[: len(took_us) + 1]


def test_only_live_injectors_are_slowed_down() -> None:
    assert limits_while([5_000_000], live=True) == [50, 25]
    assert limits_while([5_000_000], live=False) == [50, 50]
    assert limits_while([1_000], live=True) == [50, 50]


def test_a_source_that_passes_more_than_it_finds_is_given_more_again_once_steps_are_short() -> None:
    assert limits_while([5_000_000, *[1_000] * 3], source=Sparse) == [50, 25, 50, 50, 50]
