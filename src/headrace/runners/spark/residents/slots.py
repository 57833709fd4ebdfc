"""What a session must have for resident workers, and who waits for the slots that they take."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from typing import Any

#: Settings with which Spark encrypts what goes from host to host.
_ENCRYPTION = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
)


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


def cpus_of_a_task(conf: Any) -> int:
    """Return how many cores a task takes."""
    return int(conf.get("spark.task.cpus", "1"))


def unsuitable(conf: Any, *, local: bool) -> str:
    """Return why tasks cannot stay in a session, whatever it has free; "" if they can.

    Args:
        conf: the session's ``SparkConf``.
        local: whether all tasks run on the driver's host.
    """
    if _is_set(conf, "spark.python.worker.killOnIdleTimeout"):
        return "spark.python.worker.killOnIdleTimeout ends Python processes that wait for work"
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "false":
        return "PYSPARK_PIN_THREAD is false, so that jobs of threads cannot be told apart"
    encrypts = [key for key in _ENCRYPTION if _is_set(conf, key)]
    if encrypts and not local:
        return f"{encrypts[0]} is set, and the links to resident workers are not encrypted"
    return ""


def _is_set(conf: Any, key: str) -> bool:
    return bool(conf.get(key, "false") == "true")
