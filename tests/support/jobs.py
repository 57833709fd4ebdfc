"""A job that has worked on all of its input, and waits for what somebody asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import headrace as hr
from tests.machine.steps.test_soft_state import Count, Item, drawn

ITEMS = [Item("abcdefgh"[i % 8], i, i * 1_000_000) for i in range(60)]


@contextmanager
def waiting_job(storage: Any) -> Iterator[hr.Job]:
    """Run a count of :data:`ITEMS` inline until it has read them; give the job."""
    pipeline, _ = drawn(Count(), ITEMS)
    with hr.run(
        pipeline,
        storage=storage,
        workers=2,
        bins=16,
        runner="inline",
        settings=hr.Settings(limit=hr.Limit(20, 1 << 20), slices=8, poll_us=2_000),
    ) as job:
        while job.head is None or job.head.positions.get("items") != len(ITEMS):
            job.pass_time()
        yield job
