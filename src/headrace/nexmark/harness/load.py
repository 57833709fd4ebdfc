"""Load: what runs, and how many events come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from headrace.ledger.head import Head
from headrace.migration.rounds import AllAtOnce, Batched, Fluid
from headrace.nexmark.pace import Pace
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import Timeline
from headrace.pipeline import Node, Pipeline


class LoadTest(msgspec.Struct, frozen=True, kw_only=True):
    """What runs, and which part of it is measured.

    Attributes:
        rate: events of all kinds that come in a second.
        seconds: duration of the measurement, between warm-up and cool-down.
        warm_s, cool_s: duration of warm-up and cool-down, which are cut off.
        workers, bins: of the pipeline.
        migrate: the strategy with which state moves; None for no move. Half of what the first half
            of the workers own moves to the others at a third of ``seconds``, and back at two
            thirds.
        prepare: whether the new owners read ahead what moves.
    """

    rate: int
    seconds: float = 60.0
    warm_s: float = 25.0
    cool_s: float = 2.0
    workers: int = 2
    bins: int = 4_096
    migrate: AllAtOnce | Fluid | Batched | None = None
    prepare: bool = False

    @property
    def window(self) -> tuple[float, float]:
        """The start and end of the measurement, in seconds since events started to come."""
        return self.warm_s, self.warm_s + self.seconds


class Workload(Protocol):
    """A pipeline to put under load."""

    def build(self, pipeline: Pipeline, pace: Pace) -> Node:
        """Add it to a pipeline, with paced inputs; return the computation that answers."""
        ...

    def done(self, head: Head) -> int:
        """Return how many of the events that come by the clock are done."""
        ...


class Query:
    """A query of NEXMark, as a workload.

    Args:
        build: its ``migratable``.
        timeline: the events.
        history: how many of them there are before the clock starts. They are not measured.
        tasks: how many tasks read each kind.
    """

    def __init__(
        self,
        build: Callable[[Market], Node],
        timeline: Timeline,
        *,
        history: int = 0,
        tasks: int = 2,
    ) -> None:
        self._build, self._timeline = build, timeline
        self._history, self._tasks = history, tasks
        self._market: Market | None = None

    def build(self, pipeline: Pipeline, pace: Pace) -> Node:
        self._market = Market(
            pipeline, self._timeline, pace=pace, history=self._history, tasks=self._tasks
        )
        return self._build(self._market)

    def done(self, head: Head) -> int:
        assert self._market is not None
        return max(0, self._market.done(head) - self._history)
