"""A migration in rounds opens a file of state once, and not again in each round."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import headrace as hr
from headrace.coordinator.load.files import files_of
from headrace.migration.reading import opened_ahead
from headrace.protocol.plan import StepPlan
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from headrace.tasks.state_cache import SoftState
from headrace.testing import Harness, drive
from tests.support.changing import Count, Item


class Counting(MemoryStore):
    """Counts how often each part of a file is read, and in which step."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name.startswith("runs/"):
            self.reads[name] += 1
        return super().read(name, offset, length)


class AProcessEach(InlineRunner):
    """Each worker has a process of its own, as on Spark."""

    def __init__(self) -> None:
        super().__init__()
        self._soft = [SoftState() for _ in range(4)]

    def _run(self, plan: StepPlan) -> Any:
        of = self._workers
        results = [of[0].read(plan, n, self._attempt()) for n in range(plan.readers)]
        reports = [result.report for result in results]
        for layer in range(1, of[0].pipeline.layers + 1):
            results = [
                of[n].apply(plan, layer, n, self._attempt(), self._arrived(results, n))
                for n in range(plan.layout.workers)
            ]
            reports += [result.report for result in results]
        return reports


def test_the_files_of_a_worker_are_opened_once_for_all_rounds() -> None:
    """Each process read most files again in every round: 65 to 70 calls, where a few are new."""
    store = Counting()
    items = [Item(f"k{n % 50}", n, n) for n in range(1_500)]
    pipeline = hr.Pipeline("rounds")
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: "page"})
    settings = hr.Settings(limit=hr.Limit(10, 1 << 20), packed_bytes=0)
    with hr.run(
        pipeline, storage=store, runner=AProcessEach(), workers=2, bins=64, settings=settings
    ) as job:
        moving = job.rescale(3, strategy=hr.batched(2), prepare=False)
        job.drain()
        assert moving.state == "done"
    rounds = 64 // 3 // 2
    assert max(store.reads.values()) <= 6 < rounds, store.reads.most_common(5)


@contextmanager
def with_many_files(ahead_bytes: int) -> Iterator[tuple[Harness, Callable[[], None]]]:
    """Yield a pipeline with a file of each worker for each of 150 steps, and what makes one more step."""
    pipeline = hr.Pipeline("rounds")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: "page"})
    settings = hr.Settings(packed_bytes=0, slices=128, ahead_bytes=ahead_bytes)
    timer = itertools.count().__next__
    with drive(pipeline, bins=64, settings=settings, timer=timer) as harness:

        def visit_all() -> None:
            items = [Item(f"k{n}", n, n) for n in range(200)]
            harness.push_many("items", items, at=[0] * len(items))
            harness.step()

        for _ in range(150):
            visit_all()
        yield harness, visit_all


def test_files_that_a_round_has_opened_are_at_hand_for_reading_ahead() -> None:
    """Later rounds looked for their rows in all files again, since reading ahead opened a few in a step."""
    with with_many_files(ahead_bytes=512 << 10) as (harness, visit_all):
        assert harness._driver is not None
        meter = harness._driver._steering.meter
        before = meter.opened_bins
        moving = harness.move("0/1", 1, strategy=hr.batched(2), prepare=False)
        while not moving.facts.is_over:
            visit_all()
        assert (moving.state, moving.facts.bins) == ("done", 32)
        assert 2 <= meter.opened_bins - before <= 24, "the rest was read ahead in the gaps"


@pytest.mark.parametrize("ahead_bytes", [1 << 20, 4 << 20])
@pytest.mark.drawn(1)
def test_reading_ahead_takes_as_many_turns_as_estimates_reckon_with(ahead_bytes: int) -> None:
    """Here each step has a turn. Files are small, so their number counts, and not how many bytes move."""
    with with_many_files(ahead_bytes) as (harness, visit_all):
        assert harness._driver is not None and harness._driver.coordinator.head is not None
        turns = files_of(harness._driver.coordinator.head).first / opened_ahead(ahead_bytes)
        moving = harness.move("0/1", 1, strategy=hr.all_at_once(), prepare=True)
        steps = 0
        while not moving.facts.is_over:
            visit_all()
            steps += 1
        assert turns > 5
        assert 0.9 * turns <= steps <= 1.25 * turns + 3
