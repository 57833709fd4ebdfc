"""Polling: how much sources may offer, and what is known of their partitions.

Knowledge of partitions follows from the committed state, the rules, what sources report, and the
clock. It says which partitions are idle and which are paused because they are too far ahead.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.coordinator.settings import Settings
from headrace.eventtime.watermark import Frontier, Frontiers, Rules, lowest, without_ended
from headrace.ledger.head import Head
from headrace.pipeline.source import Limit, Offer, Part

_NONE: frozenset[str] = frozenset()


class PollingFacts(msgspec.Struct, frozen=True):
    """The circumstances in which sources were asked.

    Attributes:
        now_us: the time of day.
        listening_us: the time since which sources are asked.
        paused: the partitions that were not asked, by injector.
        back_us: when the clock was last seen to go back; 0 if it never did.
        named: the partitions that sources named last, by injector.
    """

    now_us: int
    listening_us: int
    paused: Mapping[str, frozenset[str]]
    back_us: int = 0
    named: Mapping[str, Mapping[str, Part]] = {}

    def quiet_us(self, part: Frontier) -> int:
        """Return for how long a partition has brought nothing although it was asked.

        An earlier reading that lies in the future was wrong. It counts as the moment when that was
        noticed: when the clock went back, or when this driver started.
        """
        known = part.active_us <= self.now_us
        return self.now_us - max(part.active_us if known else self.back_us, self.listening_us)


def paused_partitions(head: Head, pipeline_facts: PipelineFacts) -> dict[str, frozenset[str]]:
    """Return the partitions that are too far ahead of what their injector's readers have reached.

    Only injectors with a limit on skew are included.
    """
    return {
        name: _ahead(head, name, pipeline_facts.readers[name], rules, rules.skew_us)
        for name, rules in pipeline_facts.rules.items()
        if rules.skew_us is not None
    }


def _ahead(
    head: Head, injector: str, readers: list[str], rules: Rules, skew_us: int
) -> frozenset[str]:
    at_work = [name for name in readers if name not in head.incomplete]
    reached = lowest(head.watermark_of(name)[0] for name in at_work)
    return frozenset(
        name
        for name, part in head.frontiers_of(injector).parts.items()
        if not part.ended and rules.strategy.of(part) > reached + skew_us
    )


def limits(
    head: Head,
    pipeline_facts: PipelineFacts,
    settings: Settings,
    live_rows: int,
    paused: Mapping[str, frozenset[str]],
) -> dict[str, Limit]:
    """Return how much each injector that has not ended may offer now.

    Args:
        live_rows: how many rows injectors may offer whose steps are sized by time.
        paused: the partitions to leave out, by injector.
    """
    whole = settings.limit
    return {
        name: Limit(
            live_rows if name in pipeline_facts.live else whole.rows,
            whole.bytes,
            paused.get(name, _NONE),
        )
        for name in pipeline_facts.injectors
        if name not in head.ended
    }


def known(
    head: Head, pipeline_facts: PipelineFacts, offers: Mapping[str, Offer], polling: PollingFacts
) -> dict[str, Frontiers]:
    """Return what is known of each injector, including what sources and the clock say now."""
    return {
        name: _known(
            head.frontiers_of(name), pipeline_facts.rules[name], name, offers.get(name), polling
        )
        for name in pipeline_facts.injectors
    }


def _known(
    before: Frontiers, rules: Rules, injector: str, offer: Offer | None, polling: PollingFacts
) -> Frontiers:
    if offer is None:  # partitions named in an offer that no step has taken are still there
        reported, parts = polling.named.get(injector, {}), dict(before.parts)
    else:
        reported, parts = offer.parts, _still_meant(before, rules, offer.parts)
    for name in (*rules.expect, *sorted(reported)):
        parts.setdefault(name, Frontier(active_us=polling.now_us))
    for name, fact in reported.items():
        parts[name] = parts[name].stated(
            fact.final, fact.promise_us, polling.now_us, awaited=fact.awaited
        )
    awaited = {*rules.expect, *(name for name, fact in reported.items() if fact.awaited)}
    paused = polling.paused.get(injector, _NONE)
    for name, part in parts.items():
        if name in awaited and not part.came:
            parts[name] = msgspec.structs.replace(
                part, idle=False
            )  # it holds the watermark, however long it takes
        elif rules.idle_after_us is not None:
            parts[name] = _maybe_idle(part, name in paused, rules.idle_after_us, polling)
    after = msgspec.structs.replace(before, parts=parts)
    return without_ended(after, reported.keys(), rules) if offer is not None and reported else after


def named_in(offer: Offer) -> dict[str, Part]:
    """Return the partitions that an offer names.

    What the offer says of them holds only together with its records.
    """
    return {
        name: Part(awaited=part.awaited) for name, part in offer.parts.items() if not part.final
    }


def _still_meant(
    before: Frontiers, rules: Rules, reported: Mapping[str, Part]
) -> dict[str, Frontier]:
    """Return the partitions without those that the code gave up, of which nothing will ever come.

    Given up is a partition that was expected, never came, and is expected no longer. If a source
    names its partitions now, the nameless one of before is given up. If it no longer names them,
    the named ones are.
    """
    return {
        name: part
        for name, part in before.parts.items()
        if name in reported
        or name in rules.expect
        or (part.came and (name != "") == rules.partitioned)
    }


def _maybe_idle(part: Frontier, paused: bool, after_us: int, polling: PollingFacts) -> Frontier:
    """Return what is known of a partition by the clock.

    One that is paused is not idle: its records wait.
    """
    if part.ended:
        return part
    if paused:
        return msgspec.structs.replace(part, active_us=polling.now_us)
    quiet = polling.quiet_us(part) >= after_us
    return msgspec.structs.replace(part, idle=part.idle or quiet)
