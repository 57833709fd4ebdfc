"""A query under load: events come by the clock, state may move twice, and what is seen is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

import headrace as hr
from benchmarks.memory import GIB, MemoryWatch
from benchmarks.nexmark.latency import Done, Latencies
from benchmarks.nexmark.pace import Pace, now_us
from benchmarks.nexmark.queries.market import Market
from benchmarks.nexmark.timeline import Timeline
from headrace.keyspace.layout import Layout
from headrace.runners.base import Runner
from headrace.topology import Node

if TYPE_CHECKING:
    from headrace.migration.rounds import AllAtOnce, Batched, Fluid

_LOOK_EVERY_S = 0.05


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is run, and how much of it is looked at.

    Attributes:
        rate: events a second that come, of all kinds.
        dilation: how many times faster event time passes.
        seconds: how long it is looked at, between warming up and cooling down.
        warm_s, cool_s: what comes before and after, and is cut off.
        migrate: how state moves, if it does: half of what the first half of the workers own goes to the
            others at a third of ``seconds``, and back at two thirds.
        prepare: whether what moves is copied ahead.
    """

    rate: int
    dilation: int = 1
    seconds: float = 60.0
    warm_s: float = 20.0
    cool_s: float = 2.0
    workers: int = 2
    bins: int = 4_096
    in_flight: int = 100
    seed: int = 0
    migrate: AllAtOnce | Fluid | Batched | None = None
    prepare: bool = False

    @property
    def timeline(self) -> Timeline:
        """The events."""
        rate = max(1, self.rate // self.dilation)
        return Timeline(rate=rate, in_flight=self.in_flight, seed=self.seed)


class Moved(msgspec.Struct, frozen=True):
    """A migration as it went: when, in seconds since events began to come, and how much."""

    began_s: float
    ended_s: float
    bins: int
    nbytes: int


class Seen(msgspec.Struct, frozen=True):
    """What was seen of a query under load.

    Attributes:
        latencies: of all events.
        moved: its migrations.
        memory: (when, GiB of all Python workers), in seconds since events began to come.
        steps: how many there were in the window that is looked at.
        answers: how many rows it answered.
    """

    latencies: Any
    moved: list[Moved]
    memory: list[tuple[float, float]]
    steps: int
    answers: int


def run(
    draw: Callable[[Market], Node], load: Load, *, runner: Runner, storage: Path,
    settings: hr.Settings | None = None,
) -> Seen:  # fmt: skip
    """Run a query under load.

    Args:
        draw: its ``migratable``.
        load: how much comes, and for how long.
        runner: what it runs on.
        storage: where its state is kept; a new place.
    """
    pace = Pace(load.rate)
    pipeline = hr.Pipeline("nexmark")
    market = Market(pipeline, load.timeline, pace=pace, tasks=load.workers)
    node, watch = draw(market), _Watch(market)
    pipeline.sink("answers", node, hr.sinks.Calls(watch.take))
    job = hr.run(
        pipeline, storage=storage, workers=load.workers, bins=load.bins, runner=runner,
        settings=settings, listeners=[watch.note],
    )  # fmt: skip
    with job, MemoryWatch() as memory:
        _follow(job, load, pace, watch)
    begin = pace.begin_us
    taken = [((at_us - begin) / 1e6, taken / GIB) for at_us, taken in memory.seen]
    done = watch.done()
    latencies = Latencies.of(done, pace)
    first, last = load.warm_s, load.warm_s + load.seconds
    steps = sum(first <= (step.at_us - begin) / 1e6 < last for step in done)
    return Seen(latencies, watch.moved(begin), taken, steps, watch.answers)


class _Watch:
    """Notes what is done, and when; and what has moved."""

    def __init__(self, market: Market) -> None:
        self.answers = 0
        self._market = market
        self._committed: dict[int, Done] = {}
        self._delivered_us: dict[int, int] = {}
        self._migrations: dict[int, Any] = {}

    def take(self, step: int, rows: Any) -> None:
        """Take a step's answers, once it is committed."""
        self.answers += rows.num_rows
        self._delivered_us[step] = now_us()

    def note(self, summary: hr.StepSummary) -> None:
        """Note a step that is committed."""
        self._committed[summary.step] = Done(self._market.done(summary.head), now_us())
        self._migrations |= {one.id: one for one in summary.head.migrations}

    @property
    def begun(self) -> bool:
        """Whether a step has been committed."""
        return bool(self._committed)

    def done(self) -> list[Done]:
        """Return what each step was done with, and when it was committed and its answers delivered."""
        found = [Done(0, 0)]
        for step, (events, at_us) in sorted(self._committed.items()):
            if events > found[-1].events:
                found.append(Done(events, max(at_us, self._delivered_us.get(step, 0))))
        return found[1:]

    def moved(self, begin_us: int) -> list[Moved]:
        """Return the migrations that have ended."""
        over = [one for one in self._migrations.values() if one.state == "done"]
        return [
            Moved(
                (one.began.clock_us - begin_us) / 1e6, (one.ended.clock_us - begin_us) / 1e6,
                one.bins, one.nbytes,
            )
            for one in over
        ]  # fmt: skip


def _follow(job: hr.Job, load: Load, pace: Pace, watch: _Watch) -> None:
    """Let time pass, and state move when it is time; return when all that was to be seen was."""
    end = load.warm_s + load.seconds + load.cool_s
    due = [load.warm_s + load.seconds * third / 3 for third in (1, 2)] if load.migrate else []
    there: list[tuple[list[str], int, int]] = []
    moving: list[hr.Migration] = []
    while not watch.begun:
        _pass(job)
    while (passed := (now_us() - pace.begin_us) / 1e6) < end or moving:
        if due and passed >= due[0] and not moving:
            due.pop(0)
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
    """Wait a little; raise what has ended the job, if something has."""
    job.wait(_LOOK_EVERY_S)


def _halves(layout: Layout, workers: int) -> list[tuple[list[str], int, int]]:
    """Return every second bin of each of the first half of the workers, its owner, and its next one."""
    found = []
    for owner in range(workers // 2):
        own = np.flatnonzero(layout.owners == owner)[::2]
        found.append(([str(layout.bin(int(at))) for at in own], owner, owner + workers // 2))
    return found
