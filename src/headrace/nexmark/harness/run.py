"""Runs a workload under load: events come by the clock, and state may move twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np

import headrace as hr
from headrace.errors import PipelineError
from headrace.job import RunnerName
from headrace.keyspace.layout import Layout
from headrace.nexmark.harness.latency import Latencies
from headrace.nexmark.harness.load import LoadTest, Workload
from headrace.nexmark.harness.memory import GIB, MemoryWatch
from headrace.nexmark.harness.observed import Observations, Observer
from headrace.nexmark.pace import Pace, now_us
from headrace.protocol.step_summary import Listener
from headrace.runners.base import Runner
from headrace.storage import Store

_LOOK_EVERY_S = 0.05


def run(
    workload: Workload, load: LoadTest, *, runner: RunnerName | Runner, storage: Path | Store,
    settings: hr.Settings | None = None, listeners: Sequence[Listener] = (),
) -> Observations:  # fmt: skip
    """Run a workload under load; return what was observed.

    Args:
        workload: what runs.
        load: how much comes, and for how long.
        runner: the runner that executes it.
        storage: where its state is kept; a new place.
        settings: settings of the run.
        listeners: called with a summary after each step.

    Raises:
        HeadraceError: when the pipeline fails.
    """
    pipeline, pace = hr.Pipeline("load"), Pace(load.rate)
    node, watch = workload.build(pipeline, pace), Observer(workload)
    pipeline.sink("answers", node, hr.sinks.Calls(watch.take))
    job = hr.run(
        pipeline, storage=storage, workers=load.workers, bins=load.bins, runner=runner,
        settings=settings, listeners=[watch.note, *listeners],
    )  # fmt: skip
    with job, MemoryWatch() as workers:
        _follow(job, load, pace)
        due = pace.due()
        while watch.events < due:  # whatever has come counts, however late it is done
            _pass(job)
    begin = pace.begin_us
    memory = [((at_us - begin) / 1e6, taken / GIB) for at_us, taken in workers.seen]
    busy = [((at_us - begin) / 1e6, spent) for at_us, spent in workers.busy]
    done = watch.done()
    latencies = Latencies.of(done, pace)
    first, last = load.window
    steps = sum(first <= (step.at_us - begin) / 1e6 < last for step in done)
    return Observations(begin, latencies, watch.moved(pace), memory, busy, steps, watch.answers)


def _follow(job: hr.Job, load: LoadTest, pace: Pace) -> None:
    """Wait, and move state at the given times; return when the measurement is complete.

    After the last move it lasts for a third of the measured time, however late that move starts.
    """
    end = load.warm_s + load.seconds + load.cool_s
    due = [load.warm_s + load.seconds * third / 3 for third in (1, 2)] if load.migrate else []
    there: list[tuple[list[str], int, int]] = []
    moving: list[hr.Migration] = []
    while not pace.begun:
        _pass(job)
    # (state moves as often as it should, however late)
    while (passed := (now_us() - pace.begin_us) / 1e6) < end or due or moving:
        if due and passed >= due[0] and not moving:
            due.pop(0)
            end = max(end, passed + load.seconds / 3 + load.cool_s)
            back, there = (
                bool(there),
                there or _halves(Layout.from_wire(job.current().layout), load.workers),
            )
            for bins, owner, other in there:
                to = owner if back else other
                moving.append(job.move(bins, to, strategy=load.migrate, prepare=load.prepare))
        moving = [one for one in moving if not one.facts.is_over]
        _pass(job)


def _pass(job: hr.Job) -> None:
    """Wait a little.

    Raises:
        HeadraceError: the error that has ended the job; or that it was stopped.
    """
    if job.wait(timedelta(seconds=_LOOK_EVERY_S)):
        raise PipelineError(
            f"it has ended before all was seen: {job.ended}",
            remedy="let it run for as long as it is looked at",
        )


def _halves(layout: Layout, workers: int) -> list[tuple[list[str], int, int]]:
    """Return (bins, owner, next owner): every second bin of each worker of the first half."""
    found = []
    for owner in range(workers // 2):
        own = np.flatnonzero(layout.owners == owner)[::2]
        found.append(([str(layout.bin(int(at))) for at in own], owner, owner + workers // 2))
    return found
