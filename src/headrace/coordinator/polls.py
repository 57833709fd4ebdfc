"""What the coordinator remembers of its polls: what it asked of sources, when, and what they said.

The functions that follow from it are in :mod:`headrace.coordinator.polling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.coordinator.available import AvailableNow
from headrace.coordinator.batch_size import BatchSize
from headrace.coordinator.messages import Offered, Poll
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.coordinator.polling import PollingFacts, known, limits, named_in, paused_partitions
from headrace.coordinator.settings import Settings
from headrace.eventtime.watermark import Frontiers, has_news, lags
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.pipeline.source import Limit, Offer, Part


class Input(NamedTuple):
    """What a step may read, and what is known of the partitions then.

    Attributes:
        offers: what sources offer, by injector.
        facts: what is known of each injector.
    """

    offers: dict[str, Offer]
    facts: dict[str, Frontiers]

    def brings_news(self, head: Head) -> bool:
        """Return whether there is anything that a step has to take in.

        A watermark that lags is worth a step of its own only if no input is on its way. As in
        Spark, the step that takes the input moves the watermark, too.
        """
        return any(offer.final or not offer.empty for offer in self.offers.values()) or any(
            has_news(head.frontiers_of(name), of) or (lags(of) and not self._is_pending(name))
            for name, of in self.facts.items()
        )

    def _is_pending(self, name: str) -> bool:
        return name in self.offers and self.offers[name].pending


class Polls:
    """The memory of one run's polls.

    Args:
        pipeline_facts: facts about the pipeline.
        settings: how it is run.

    Attributes:
        available: the progress of a run that ends once it has caught up; None for other runs.
        now_us: the newest time of day that an event has brought.
        limits: how much the newest poll let each source offer.
    """

    def __init__(self, pipeline_facts: PipelineFacts, settings: Settings) -> None:
        self.available: AvailableNow | None = None
        self.now_us = 0
        self.limits: Mapping[str, Limit] = {}
        self._pipeline_facts = pipeline_facts
        self._settings = settings
        self._batch_size = BatchSize(settings.target_us, settings.limit.rows)
        self._newest = Poll({}, {})
        self._paused: Mapping[str, frozenset[str]] = {}
        self._named: dict[str, Mapping[str, Part]] = {}
        self._listening_us = 0  # the time since which sources are asked
        self._went_back_us = 0  # when the clock was last seen to go back
        self._all_read_us: int | None = None  # since when nothing is left to read

    def open(self, now_us: int) -> None:
        """Start listening."""
        self._listening_us = self.now_us = now_us

    def note_time(self, now_us: int) -> None:
        """Note what time it is.

        If the time is earlier than before, the clock is wrong now or has been corrected.
        """
        if now_us < self.now_us:
            self._went_back_us = now_us
            self._listening_us = min(self._listening_us, now_us)
        self.now_us = now_us

    def note_silence(self, now_us: int) -> None:
        """Note that no source was asked. A source that offers nothing is not idle then."""
        self._listening_us = now_us

    def next(self, head: Head) -> Poll:
        """Return the next poll."""
        self._paused = paused_partitions(head, self._pipeline_facts)
        if self.available is not None:
            self._paused = self.available.paused(self._paused)
        most = limits(
            head, self._pipeline_facts, self._settings, self._batch_size.rows, self._paused
        )
        if self.available is not None:
            most = self.available.limits(most)
        self.limits = most
        starts = self._pipeline_facts.starts(head)
        polled = {name: starts[name] for name in most if "" not in most[name].paused}
        self._newest = Poll(polled, most)
        return self._newest

    def answered(self, head: Head, event: Offered) -> Input:
        """Note the answer to the newest poll. Return what a step may read."""
        offers = {name: offer for name, offer in event.offers.items() if offer is not None}
        if self.available is not None:
            offers = self.available.heard(self._newest, event)
        self._named.update((name, named_in(offer)) for name, offer in offers.items())
        polling = PollingFacts(
            event.now_us, self._listening_us, self._paused, self._went_back_us, self._named
        )
        return Input(offers, known(head, self._pipeline_facts, offers, polling))

    def without_input(self, head: Head, now_us: int) -> Input:
        """Return the input of a step that reads nothing.

        No source was asked, so no partition is considered idle.
        """
        polling = PollingFacts(now_us, now_us, self._paused, named=self._named)
        return Input({}, known(head, self._pipeline_facts, {}, polling))

    def counts_timers_to(self, now_us: int, *, all_is_read: bool, held: bool) -> int:
        """Return the time up to which wall timers count as due.

        A run that ends once its input has been read counts only timers that were due by then.
        Otherwise a timer that is set again and again would keep the run going. While a hold is
        pending, all timers count.
        """
        if not all_is_read:
            self._all_read_us = None
            return now_us
        self._all_read_us = now_us if self._all_read_us is None else self._all_read_us
        return now_us if held else min(now_us, self._all_read_us)

    def note_step(self, intent: Intent, took_us: int) -> None:
        """Adjust how much live injectors may offer, so that steps take about the target time."""
        offered = [
            offer.rows
            for name, offer in intent.offers.items()
            if name in self._pipeline_facts.live and not offer.empty
        ]
        self._batch_size.note(max(offered, default=0), took_us)
