"""Who waits for the slots that a crew takes."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any


def tasks_that_wait(context: Any, but: AbstractSet[int] = frozenset()) -> int:
    """Return how many tasks of running stages have not started, for lack of slots or just now.

    It takes two gateway calls, and ten for each stage.

    Args:
        context: the SparkContext.
        but: the ids of stages that do not count.
    """
    tracker = context.statusTracker()
    others = [stage for stage in tracker.getActiveStageIds() if stage not in but]
    stages = [tracker.getStageInfo(stage) for stage in others]
    return sum(
        max(0, of.numTasks - of.numActiveTasks - of.numCompletedTasks)
        for of in stages
        if of is not None
    )


def slots(context: Any) -> int:
    """Return how many tasks a session can run at the same time."""
    return int(context.defaultParallelism)
