"""Steps of a live stream last about as long as they should; bounded input is never divided by time."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.coordinator.messages import Poll, Run, TryEnded
from headrace.coordinator.pace import next_rows
from headrace.sources.base import Limit
from tests.step.test_soft_state import Count, Item, drawn


def settled(cost_us: float, *, target_us: int, at_most: int, overhead_us: int = 0) -> int:
    """Return the rows that pace settles on when a row costs so much."""
    rows = at_most
    for _ in range(60):
        took = round(overhead_us + rows * cost_us)
        rows = next_rows(rows, took, target_us=target_us, current=rows, at_most=at_most)
    return rows


@given(st.floats(0.1, 1_000), st.integers(10_000, 2_000_000), st.integers(1, 1_000_000))
def test_pace_settles_on_steps_of_the_right_length(cost: float, target: int, at_most: int) -> None:
    rows = settled(cost, target_us=target, at_most=at_most)
    assert 1 <= rows <= at_most
    assert rows * cost <= target * 1.1 + cost
    assert rows == at_most or rows * cost >= target * 0.8 - cost


@given(st.integers(0, 1_000), st.integers(0, 10**7), st.integers(1, 10_000))
def test_a_step_that_found_little_does_not_lower_the_limit_unless_it_was_slow(
    taken: int, took: int, current: int
) -> None:
    after = next_rows(taken, took, target_us=500_000, current=current, at_most=100_000)
    if taken < current and took <= 500_000:
        assert after >= current
    assert current // 2 <= after <= max(1, current * 2)


def limits_after(slow: bool, live: bool) -> Limit:
    """Drive a real coordinator by hand through one step; return what it then asks for."""
    from headrace.driver import Driver, Settings
    from headrace.runners.inline import InlineRunner
    from headrace.storage import MemoryStore

    pipeline, _ = drawn(Count(), [Item("a", i, i) for i in range(100)])
    pipeline.injectors["items"].source.bounded = not live
    driver = Driver(pipeline, MemoryStore(), InlineRunner(), workers=1,
                    settings=Settings(limit=hr.Limit(50, 1 << 20)))  # fmt: skip
    asked: list[Limit] = []
    tell = driver.coordinator.handle

    def handle(event: Any) -> Any:
        if isinstance(event, TryEnded):
            event = TryEnded(event.reports, 5_000_000 if slow else 1_000)
        todo = tell(event)
        for instruction in todo:
            if isinstance(instruction, Poll):
                asked.append(instruction.limits.get("items", Limit(0, 0)))
            if isinstance(instruction, Run) and len(asked) > 1:
                driver.ask_to_stop(drain=False)
        return todo

    driver.coordinator.handle = handle  # type: ignore[method-assign]
    driver.run()
    return asked[1]


def test_only_live_injectors_are_slowed_down() -> None:
    assert limits_after(slow=True, live=True).rows == 25
    assert limits_after(slow=True, live=False).rows == 50
    assert limits_after(slow=False, live=True).rows == 50
