"""A pipeline under load: events come by the clock, state may move twice, and what is seen is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

import headrace as hr
from benchmarks.memory import GIB, MemoryWatch
from benchmarks.nexmark.latency import Done, Latencies
from benchmarks.nexmark.pace import Pace, now_us
from benchmarks.nexmark.queries.market import Market
from benchmarks.nexmark.timeline import Timeline
from headrace.keyspace.layout import Layout
from headrace.ledger.manifest import Head
from headrace.runners.base import Runner
from headrace.storage import Store
from headrace.topology import Node

if TYPE_CHECKING:
    from headrace.migration.rounds import AllAtOnce, Batched, Fluid

_LOOK_EVERY_S = 0.05


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is run, and how much of it is looked at.

    Attributes:
        rate: events a second that come, of all kinds.
        seconds: how long it is looked at, between warming up and cooling down.
        warm_s, cool_s: what comes before and after, and is cut off.
        migrate: how state moves, if it does: half of what the first half of the workers own goes to the
            others at a third of ``seconds``, and back at two thirds.
        prepare: whether what moves is copied ahead.
    """

    rate: int
    seconds: float = 60.0
    warm_s: float = 20.0
    cool_s: float = 2.0
    workers: int = 2
    bins: int = 4_096
    migrate: AllAtOnce | Fluid | Batched | None = None
    prepare: bool = False

    @property
    def window(self) -> tuple[float, float]:
        """From when to when it is looked at, in seconds since events began to come."""
        return self.warm_s, self.warm_s + self.seconds


class Workload(Protocol):
    """What is put under load."""

    def draw(self, pipeline: hr.Pipeline, pace: Pace) -> Node:
        """Draw it, with inputs that come at a pace; return the computation that answers."""
        ...

    def done(self, head: Head) -> int:
        """Return how many of the events that come by the clock are done."""
        ...


class Query:
    """A query of NEXMark, as a workload.

    Args:
        draw: its ``migratable``.
        timeline: the events.
        tasks: how many tasks read each kind of them.
    """

    def __init__(
        self, draw: Callable[[Market], Node], timeline: Timeline, *, tasks: int = 2
    ) -> None:
        self._draw, self._timeline, self._tasks = draw, timeline, tasks
        self._market: Market | None = None

    def draw(self, pipeline: hr.Pipeline, pace: Pace) -> Node:
        self._market = Market(pipeline, self._timeline, pace=pace, tasks=self._tasks)
        return self._draw(self._market)

    def done(self, head: Head) -> int:
        assert self._market is not None
        return self._market.done(head)


class Moved(msgspec.Struct, frozen=True):
    """A migration as it went: when, in seconds since events began to come, and how much."""

    began_s: float
    ended_s: float
    bins: int
    nbytes: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


class Seen(msgspec.Struct, frozen=True):
    """What was seen of a query under load.

    Attributes:
        begin_us: from when on events came, in microseconds since 1970.
        latencies: of all events.
        moved: its migrations.
        memory: (when, GiB of all Python workers), in seconds since events began to come.
        busy: (when, seconds of processor time that they have used so far).
        steps: how many there were in the window that is looked at.
        answers: how many rows it answered.
    """

    begin_us: int
    latencies: Latencies
    moved: list[Moved]
    memory: list[tuple[float, float]]
    busy: list[tuple[float, float]]
    steps: int
    answers: int


def run(
    workload: Workload, load: Load, *, runner: Runner, storage: Path | Store,
    settings: hr.Settings | None = None,
) -> Seen:  # fmt: skip
    """Run a workload under load.

    Args:
        workload: what is run.
        load: how much comes, and for how long.
        runner: what it runs on.
        storage: where its state is kept; a new place.
        settings: how it runs.
    """
    pipeline, pace = hr.Pipeline("load"), Pace(load.rate)
    node, watch = workload.draw(pipeline, pace), _Watch(workload)
    pipeline.sink("answers", node, hr.sinks.Calls(watch.take))
    job = hr.run(
        pipeline, storage=storage, workers=load.workers, bins=load.bins, runner=runner,
        settings=settings, listeners=[watch.note],
    )  # fmt: skip
    with job, MemoryWatch() as workers:
        _follow(job, load, pace)
        due = pace.due()
        while watch.events < due:  # what has come is told, however late it is done
            _pass(job)
    begin = pace.begin_us
    memory = [((at_us - begin) / 1e6, taken / GIB) for at_us, taken in workers.seen]
    busy = [((at_us - begin) / 1e6, spent) for at_us, spent in workers.busy]
    done = watch.done()
    latencies = Latencies.of(done, pace)
    first, last = load.window
    steps = sum(first <= (step.at_us - begin) / 1e6 < last for step in done)
    return Seen(begin, latencies, watch.moved(begin), memory, busy, steps, watch.answers)


class _Watch:
    """Notes what is done, and when; and what has moved."""

    def __init__(self, workload: Workload) -> None:
        self.answers = 0
        self._workload = workload
        self._committed: dict[int, Done] = {}
        self._delivered_us: dict[int, int] = {}
        self._migrations: dict[int, Any] = {}

    def take(self, step: int, rows: Any) -> None:
        """Take a step's answers, once it is committed."""
        self.answers += rows.num_rows
        self._delivered_us[step] = now_us()

    def note(self, summary: hr.StepSummary) -> None:
        """Note a step that is committed."""
        self._committed[summary.step] = Done(self._workload.done(summary.head), now_us())
        self._migrations |= {one.id: one for one in summary.head.migrations}

    @property
    def events(self) -> int:
        """How many events are done."""
        return max((events for events, _ in self._committed.values()), default=0)

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


def _follow(job: hr.Job, load: Load, pace: Pace) -> None:
    """Let time pass, and state move when it is time; return when all that was to be seen was."""
    end = load.warm_s + load.seconds + load.cool_s
    due = [load.warm_s + load.seconds * third / 3 for third in (1, 2)] if load.migrate else []
    there: list[tuple[list[str], int, int]] = []
    moving: list[hr.Migration] = []
    while not pace.begun:
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
