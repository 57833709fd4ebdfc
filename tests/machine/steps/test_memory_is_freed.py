"""What a process drops of its soft state is freed, though its collector looks at what is new only."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from headrace.runners.inline import InlineRunner
from headrace.runners.spark import task_entry
from headrace.state.keyed.keyed import KeyedState
from headrace.tasks.state_cache import SoftState
from tests.machine.steps.test_soft_state import Count, Item, drawn
from tests.support.pipelines import run_inline


class AsSparkDoes(InlineRunner):
    """Many processes, any of which may get a task; the collector runs after each."""

    def run(self, plan: Any) -> Any:
        task_entry._begin()
        try:
            return super().run(plan)
        finally:
            gc.collect()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    before = KeyedState.__init__

    def noted(self: Any, *of: Any, **more: Any) -> None:
        found.append(weakref.ref(self))
        before(self, *of, **more)

    monkeypatch.setattr(KeyedState, "__init__", noted)
    return found


@pytest.mark.drawn(1)
def test_state_that_was_dropped_is_freed(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_entry, "_soft", SoftState())
    items = [Item("abcdef"[n % 6], n, n) for n in range(600)]
    runner = AsSparkDoes(processes=16)
    pipeline, _ = drawn(Count(), items)
    try:
        run_inline(pipeline, rows=5, workers=2, runner=runner)
    finally:
        gc.unfreeze()
        gc.enable()
    alive = sum(ref() is not None for ref in made)
    assert len(made) > 60, "the processes have dropped nothing"
    assert alive < 40


def test_what_was_dropped_in_a_cycle_is_freed_by_the_next_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    soft = SoftState()
    monkeypatch.setattr(task_entry, "_soft", soft)
    try:
        one = Cycle()
        gone = weakref.ref(one)
        task_entry._begin()
        del one
        gc.collect()
        assert gone() is not None, "it is frozen"
        soft.has_evicted = True
        task_entry._begin()
        assert gone() is None and not soft.has_evicted
    finally:
        gc.unfreeze()
        gc.enable()
