"""The newest steps of a pipeline one by one, and what happened beside them.

Pure: made from manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.eventtime.timestamps import MAX_TIME
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.observe.top import phases_of

#: At most this many events are listed, the newest.
MOST_EVENTS = 100
#: A watermark that has not moved for longer is held, if its pipeline has taken steps since.
HELD_S = 30.0

EventKind = Literal[
    "claim",
    "command",
    "refused",
    "migration",
    "checkpoint",
    "stop",
    "ended",
    "sink",
    "watermark",
]


class StepPicture(msgspec.Struct, frozen=True):
    """A step.

    Attributes:
        step, epoch, attempt: the step, the epoch of its driver, and the number of the attempt.
        at_s: its clock reading, in seconds since 1970.
        records: how many records it read.
        took_ms: how long it took, without waiting for input; None if that was not recorded.
        phases: milliseconds for which the step waited for each phase, in the order of a step.
        all_tasks_ms: milliseconds of each phase, added up over all tasks.
        computations_ms: by computation: milliseconds (in its slowest task, in all tasks).
        layers_ms: of each layer: (its slowest worker, milliseconds of that one's task, and of all).
        produced, timers: how many productions and timers there were.
        late, skipped: how many records were late or skipped.
        exchange: what carried its records.
        uncheckpointed: whether its state is not in storage with it.
        lost: why earlier attempts of it were discarded.
    """

    step: int
    epoch: int
    attempt: int
    at_s: float
    records: int
    took_ms: float | None
    phases: dict[str, float]
    all_tasks_ms: dict[str, float]
    computations_ms: dict[str, tuple[float, float]]
    layers_ms: list[tuple[int, float, float]]
    produced: int
    timers: int
    late: int
    skipped: int
    exchange: str
    uncheckpointed: bool
    lost: list[str]


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a pipeline beside its steps.

    Attributes:
        step: the manifest that records it.
        at_s: the clock reading, in seconds since 1970; None if it has none.
        kind: what it is.
        text: what happened, in words.
    """

    step: int
    at_s: float | None
    kind: EventKind
    text: str


def steps_of(window: Sequence[Manifest]) -> list[StepPicture]:
    """Return the steps among some manifests. Claims and notes are no steps."""
    return [_step(manifest) for manifest in window if manifest.counts]


def _step(of: Manifest) -> StepPicture:
    timing, counts = of.timing, of.counts.values()
    phases = [] if timing is None else phases_of([timing])
    return StepPicture(
        step=of.step,
        epoch=of.epoch,
        attempt=of.attempt,
        at_s=of.clock_us / 1e6,
        records=sum(division.rows for division in of.divisions.values()),
        took_ms=None if timing is None else sum(timing.driver_us.values()) / 1e3,
        phases={phase.name: phase.ms for phase in phases},
        all_tasks_ms={p.name: p.all_tasks_ms for p in phases if p.all_tasks_ms is not None},
        computations_ms={}
        if timing is None
        else {name: (most / 1e3, all_ / 1e3) for name, (most, all_) in timing.nodes_us.items()},
        layers_ms=[]
        if timing is None
        else [(of.slowest, of.slowest_us / 1e3, of.all_us / 1e3) for of in timing.layers],
        produced=sum(one.produced for one in counts),
        timers=sum(one.timers for one in counts),
        late=sum(one.late for one in counts),
        skipped=sum(one.skipped for one in counts)
        + sum(division.skipped for division in of.divisions.values()),
        exchange="" if timing is None else timing.exchange,
        uncheckpointed=of.uncheckpointed,
        lost=[] if timing is None else timing.lost,
    )


def events_of(head: Head, window: Sequence[Manifest]) -> list[Event]:
    """Return what happened beside the steps, the newest first.

    Args:
        head: the pipeline as of the newest of the manifests. It also knows of older migrations and
            answers.
        window: manifests, in the order of steps.
    """
    clocks = [(manifest.step, manifest.clock_us) for manifest in window if manifest.clock_us]
    moments = [at for of in head.migrations for at in (of.began, of.ended) if at is not None]
    clocks += [(moment.step, moment.clock_us) for moment in moments]
    found = [event for manifest in window for event in _events(manifest)]
    for answer in head.answers:
        known = (at for step, at in clocks if step <= answer.step)
        at_us = answer.clock_us or max(known, default=None)
        found.append(
            Event(
                answer.step,
                None if at_us is None else at_us / 1e6,
                "command" if answer.applied else "refused",
                f"{answer.text}{f': {answer.why}' if answer.why else ''}"
                f"{f', asked for by {answer.by}' if answer.by else ''}",
            )
        )
    for of in head.migrations:
        for moment, how in ((of.began, "began"), (of.ended, of.state)):
            if moment is not None:
                text = f"migration {of.id} {how}: {of.what}"
                text += f" ({of.why})" if of.why and how != "began" else ""
                found.append(Event(moment.step, moment.clock_us / 1e6, "migration", text))
    found += [*_of_sinks(head, window), *_of_watermarks(head)]
    return sorted(found, key=lambda event: event.step, reverse=True)[:MOST_EVENTS]


def _of_sinks(head: Head, window: Sequence[Manifest]) -> list[Event]:
    """Return when the input began and ceased to wait for sinks, and when they became slow.

    What goes on is known however long ago it began; what has ended, if the window shows it.
    """
    found = [
        Event(at.step, at.clock_us / 1e6, "sink", f"sink {sink} became slow")
        for sink, at in head.behind_since.items()
    ]
    began = {sink: (at.step, at.clock_us) for sink, at in head.waits_since.items()}
    before: set[str] = set(window[0].waits_for) if window else set()
    for manifest in window:
        now, at = set(manifest.waits_for), manifest.clock_us / 1e6 if manifest.clock_us else None
        for sink in sorted(before - now):
            found.append(Event(manifest.step, at, "sink", f"the input waits for {sink} no longer"))
        for sink in sorted(now - before):
            if began.get(sink, (-1, 0))[0] != manifest.step:
                found.append(Event(manifest.step, at, "sink", _waits(sink)))
        before = now
    found += [
        Event(step, at_us / 1e6, "sink", _waits(sink)) for sink, (step, at_us) in began.items()
    ]
    return found


def _waits(sink: str) -> str:
    return f"the outbox was full: all input waits for sink {sink}"


def _of_watermarks(head: Head) -> list[Event]:
    """Return since when watermarks stand still that steps have not moved for long."""
    found = []
    for name, (step, at_us) in head.moved.items():
        stands_us = head.clock_us - at_us
        if (
            name in head.counts
            and stands_us > HELD_S * 1e6
            and head.watermark_of(name)[1] < MAX_TIME
        ):
            text = f"the watermark of {name} moved for the last time so far"
            found.append(Event(step, at_us / 1e6, "watermark", text))
    return found


def _events(of: Manifest) -> list[Event]:
    at_s = of.clock_us / 1e6 if of.clock_us else None
    found: list[Event] = []
    if of.claim:
        found.append(Event(of.step, at_s, "claim", f"a driver took over, epoch {of.epoch}"))
    if of.scheduled_stop is not None:
        stop = of.scheduled_stop
        found.append(Event(of.step, at_s, "stop", f"{stop.kind} scheduled after step {stop.step}"))
    if of.paused is not None:
        found.append(Event(of.step, at_s, "stop", "paused" if of.paused else "resumed"))
    ended = [name for name, part in of.divisions.items() if part.final]
    if ended:
        found.append(Event(of.step, at_s, "ended", f"input ended: {', '.join(ended)}"))
    if of.caught_up:
        found.append(Event(of.step, at_s, "ended", "the run ended: it had read all that was there"))
    return found
