"""The input of the queries: people, auctions and bids of a timeline, with the wanted columns."""

from __future__ import annotations

import headrace as hr
from headrace.ledger.head import Head
from headrace.nexmark.pace import Pace
from headrace.nexmark.source import Events
from headrace.nexmark.timeline import Kind, Timeline
from headrace.pipeline.streams import Stream


class Market:
    """Brings the events of a timeline into a pipeline, with one injector for each kind.

    Args:
        pipeline: the pipeline of the query.
        timeline: the parameters.
        pace: when events are due; by default all at once.
        history: how many events there are before the clock starts.
        tasks: how many tasks read each kind in parallel.
    """

    def __init__(
        self, pipeline: hr.Pipeline, timeline: Timeline, *, pace: Pace | None = None,
        history: int = 0, tasks: int = 2,
    ) -> None:  # fmt: skip
        self.pipeline = pipeline
        self._timeline, self._pace, self._history, self._tasks = timeline, pace, history, tasks

    def people(self, *columns: str) -> Stream:
        """Return the stream of people who register."""
        return self._inject("people", Kind.PERSON, columns)

    def auctions(self, *columns: str) -> Stream:
        """Return the stream of new auctions."""
        return self._inject("auctions", Kind.AUCTION, columns)

    def bids(self, *columns: str) -> Stream:
        """Return the stream of bids."""
        return self._inject("bids", Kind.BID, columns)

    def done(self, head: Head) -> int:
        """Return how many events of the timeline every injector has passed."""
        return int(min(head.positions.get(name, 0) for name in self.pipeline.injectors))

    def _inject(self, name: str, kind: Kind, columns: tuple[str, ...]) -> Stream:
        source = Events(
            self._timeline, kind, columns=columns or None, pace=self._pace, history=self._history,
            tasks=self._tasks,
        )  # fmt: skip
        return self.pipeline.inject(name, source, watermark=hr.exact())
