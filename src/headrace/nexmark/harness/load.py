"""What is put under load, and how much of it comes."""

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
    warm_s: float = 25.0
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

    def draw(self, pipeline: Pipeline, pace: Pace) -> Node:
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
        history: so many of them are there before the clock begins, and are not looked at.
        tasks: how many tasks read each kind of them.
    """

    def __init__(
        self,
        draw: Callable[[Market], Node],
        timeline: Timeline,
        *,
        history: int = 0,
        tasks: int = 2,
    ) -> None:
        self._draw, self._timeline = draw, timeline
        self._history, self._tasks = history, tasks
        self._market: Market | None = None

    def draw(self, pipeline: Pipeline, pace: Pace) -> Node:
        self._market = Market(
            pipeline, self._timeline, pace=pace, history=self._history, tasks=self._tasks
        )
        return self._draw(self._market)

    def done(self, head: Head) -> int:
        assert self._market is not None
        return max(0, self._market.done(head) - self._history)
