"""Looks at Spark: the session, and the Python of its executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.doctor.findings import Finding

#: A clock that differs by more than this shows in event times, wall timers and heartbeats.
_SKEW_S = 1.0


class Executor(msgspec.Struct, frozen=True):
    """What a task reports of its process.

    Attributes:
        host: its host.
        python: the version of its Python.
        headrace: the version of Headrace there, or None.
        clock_s: its clock.
    """

    host: str
    python: str
    headrace: str | None
    clock_s: float


def of_session(session: Any, ours: Executor, clock_s: Callable[[], float]) -> Iterator[Finding]:
    """Yield what is found of a session, with a small job.

    Args:
        session: the session of Spark.
        ours: this process.
        clock_s: the wall clock, in seconds.
    """
    try:
        context = session.sparkContext
    except Exception:  # a session of Spark Connect has none
        yield Finding(
            "spark",
            "failed",
            f"Spark {session.version} over Spark Connect: tasks in Python cannot be reached",
            "use a session of the classic kind: Headrace runs its tasks as RDDs",
        )
        return
    slots = int(context.defaultParallelism)
    facts = {"version": context.version, "master": context.master, "slots": slots}
    yield Finding(
        "spark", "ok", f"{context.version} on {context.master}, {slots} slots", facts=facts
    )
    begun = clock_s()
    found = [
        Executor(*answer)
        for answer in context.parallelize(range(slots), slots).mapPartitions(_question()).collect()
    ]
    yield _pythons(found, ours)
    yield _clocks(found, begun, clock_s())


def _question() -> Callable[[Any], Any]:
    """Return what tasks run. It is sent by value: Headrace may be missing where it runs."""

    def say(_: Any) -> Any:
        import os
        import platform
        import time
        from importlib import metadata

        try:
            version = metadata.version("headrace")
        except metadata.PackageNotFoundError:
            version = None
        yield os.uname().nodename, platform.python_version(), version, time.time()

    return say


def _pythons(found: list[Executor], ours: Executor) -> Finding:
    """Compare the Python of the executors with that of this process."""
    hosts = sorted({of.host for of in found})
    facts = {"executors": [msgspec.structs.asdict(of) for of in found]}
    missing = sorted({of.host for of in found if of.headrace is None})
    if missing:
        text = f"the Python of {', '.join(missing)} has no package headrace"
        remedy = "send an environment along, or install headrace there: docs/how-to/deploy.md"
        return Finding("executors", "failed", text, remedy, facts)
    other = sorted({of.headrace or "" for of in found} - {ours.headrace})
    if other:
        text = f"Headrace is {', '.join(other)} there, and {ours.headrace} here"
        return Finding("executors", "failed", text, "install one version everywhere", facts)
    minors = {of.python.rpartition(".")[0] for of in found} - {ours.python.rpartition(".")[0]}
    if minors:
        text = f"Python is {', '.join(sorted(minors))} there, and {ours.python} here"
        return Finding("executors", "failed", text, "use one minor version everywhere", facts)
    return Finding("executors", "ok", f"Python {ours.python} on {', '.join(hosts)}", facts=facts)


def _clocks(found: list[Executor], begun: float, ended: float) -> Finding:
    """Say how far the clocks of executors are from ours, at least."""
    apart = {of.host: max(begun - of.clock_s, of.clock_s - ended, 0.0) for of in found}
    worst = max(apart, key=lambda host: apart[host])
    facts = {"apart_s": apart}
    if apart[worst] > _SKEW_S:
        text = f"the clock of {worst} is {apart[worst]:.1f} s or more from this one"
        return Finding("clocks", "warning", text, "run a time service on all hosts", facts)
    return Finding("clocks", "ok", "those of the executors agree with this one", facts=facts)
