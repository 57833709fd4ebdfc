"""A migration in rounds opens a file of state once, and not again in each round."""

from __future__ import annotations

from collections import Counter
from typing import Any

import headrace as hr
from headrace.protocol.plan import StepPlan
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from headrace.tasks.state_cache import SoftState
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
