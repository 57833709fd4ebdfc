"""Drives a pipeline over Z-sets through random steps, crashes, moves and numbers of workers.

Every other run may remember next to nothing of its state, so that it works on a few bins at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import headrace as hr
from headrace.testing import Harness

_BOUNDS = (512, 1 << 30)
#: What may befall a run between two steps.
EVENTS = st.sampled_from(
    [None, None, "crash", "before_commit", "before_release", "restart", "rescale", "move", "split"]
)


def befall(t: Harness, event: str | None, number: int) -> None:
    """Let something happen to a run. What was pushed before is in a step all the same."""
    if event == "crash":
        t.crash()
    elif event in ("before_commit", "before_release"):
        t.crash(event)  # type: ignore[arg-type]
    elif event == "restart":
        t.resume(workers=1 + number % 3)
    elif event == "rescale":
        t.rescale(1 + number % 3)
    elif event == "move":
        t.move(["00/2", "01/2", "1/1"][number % 3], number % t.layout.workers)
    elif event == "split":
        t.split(str(t.layout.bin(number % len(t.layout))))


def run_steps(
    pipeline: hr.Pipeline,
    steps: list[tuple[dict[str, list[Any]], str | None]],
    after_step: Callable[[Harness, int], None],
    *,
    workers: int = 2,
) -> None:
    """Push each step's records, make the step, and look at it.

    Args:
        pipeline: what to run.
        steps: for each step, the records by injector, and what befalls it.
        after_step: looks at the run after each step.
        workers: the number of workers at first.
    """
    upkeep = hr.Settings(cached_bytes=_BOUNDS[len(steps) % 2])
    with hr.testing.drive(pipeline, workers=workers, bins=8, settings=upkeep) as t:
        for number, (pushes, event) in enumerate(steps):
            pushed = 0
            for injector, records in pushes.items():
                pushed += len(records)
                if records:
                    t.push_many(injector, records, at=[number * 1_000_000] * len(records))
            befall(t, event if pushed else None, number)
            t.run()
            after_step(t, number)
