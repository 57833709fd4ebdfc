"""Where the time of a pipeline's last steps went, from their manifests.

Pure: it takes manifests and a clock reading, and returns a view. :mod:`headrace.observe.screen`
renders it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.eventtime.timestamps import MIN_TIME, show_time
from headrace.ledger.head import Head
from headrace.ledger.manifest import Manifest
from headrace.ledger.records import Counts
from headrace.ledger.timing import Timing
from headrace.observe.durations import lag_us

#: Phases in the order of a step. The phases of tasks replace ``try``.
_BEFORE = ["outbox", "poll", "plan", "split", "lost"]
_TASKS = ["read", "route", "send", "receive", "state", "user code", "write", "digest", "snapshot"]
_AFTER = ["intent", "hand out", "commit", "tell", "prepare", "release", "clean", "sweep"]
#: Figures cover the steps of so many seconds before the newest one, and at least so many steps. A
#: figure over older steps would still show what has ended, such as a slow start.
RECENT_S, LEAST_STEPS = 15.0, 5
#: The part of an attempt that is in no task: Spark's scheduling and shuffle, sending plan and
#: parcels.
ENGINE = "engine"


class StepTimes(msgspec.Struct, frozen=True):
    """How long steps took, in milliseconds, without waiting for input."""

    p50: float
    p95: float
    max: float


class Phase(msgspec.Struct, frozen=True):
    """The time that a phase took.

    Attributes:
        name: name of the phase.
        share: its share of the time of steps, 0 to 1. All shares add up to 1.
        ms: milliseconds per step for which the step waited.
        all_tasks_ms: milliseconds per step, added up over all tasks; None for the driver's phases.
    """

    name: str
    share: float
    ms: float
    all_tasks_ms: float | None


class LayerView(msgspec.Struct, frozen=True):
    """The time that the tasks of a layer took.

    Attributes:
        layer: its number. Layer 0 reads and routes.
        computations: those that run in it; empty if the version that ran the pipeline did not say.
        slowest_ms: milliseconds per step of its slowest task.
        all_ms: milliseconds per step of all its tasks.
        slowest: the worker (in layer 0, the reader) whose task was most often the slowest.
        slowest_share: the share of steps in which it was, 0 to 1.
    """

    layer: int
    computations: list[str]
    slowest_ms: float
    all_ms: float
    slowest: int
    slowest_share: float


class ComputationView(msgspec.Struct, frozen=True):
    """The progress of one computation.

    Attributes:
        records_per_s, timers_per_s, produced_per_s: rates; None if no time is known.
        late, skipped: number of records, in the steps seen.
        watermark: its output watermark, RFC 3339; ``-`` before any, ``end`` after all.
        lag_s: how many seconds the watermark is behind the highest event time that was read.
        duplicates, expired: number of records that a check of record ids dropped, in the steps
            seen.
    """

    records_per_s: float | None
    timers_per_s: float | None
    produced_per_s: float | None
    late: int
    skipped: int
    watermark: str
    lag_s: float | None
    duplicates: int = 0
    expired: int = 0


class View(msgspec.Struct, frozen=True):
    """A summary of a pipeline's last steps.

    Attributes:
        pipeline: its name.
        step, epoch: those of the newest manifest.
        age_s: seconds since the newest step started; None before the first.
        steps: number of steps seen.
        timed: number of them with timings, which older versions did not record.
        seconds: the time that these cover, with waiting for input.
        busy: the share of it that was not waiting; None if no time is known.
        records: number of records that they read.
        records_per_s, steps_per_s: rates; None if no time is known.
        step_ms: how long steps took.
        phases: where that time went, in the order of a step.
        layers: the time of each layer, in order; empty if it was not recorded.
        deliver_ms: milliseconds per step that sinks took. On Spark the next step runs meanwhile.
        sinks_ms: the part of it that each sink took; without those that took next to nothing, and
            empty if it was not recorded.
        exchange: number of steps by exchange.
        soft_state: number of tasks by the state of their soft state: ``hit``, ``caught up``,
            ``cold``.
        computations: the computations by name.
        unread: by injector, the number of records that its source could not read, in the steps
            seen. Injectors without any are left out.
        waiting: by injector, how many records waited behind those that were read last, where the
            source knows that.
        waits_for: the sinks for which the input waits since the newest step, because the outbox is
            full.
    """

    pipeline: str
    step: int
    epoch: int
    age_s: float | None
    steps: int
    timed: int
    seconds: float
    busy: float | None
    records: int
    records_per_s: float | None
    steps_per_s: float | None
    step_ms: StepTimes | None
    phases: list[Phase]
    deliver_ms: float
    exchange: dict[str, int]
    soft_state: dict[str, int]
    computations: dict[str, ComputationView]
    waits_for: list[str] = []
    unread: dict[str, int] = {}
    waiting: dict[str, int] = {}
    layers: list[LayerView] = []
    sinks_ms: dict[str, float] = {}


def newest_of(window: Sequence[Manifest]) -> Sequence[Manifest]:
    """Return the manifests that figures of "the newest steps" cover, of a window in step order."""
    clocks = [manifest.clock_us for manifest in window if manifest.counts]
    if not clocks:
        return window
    since_us = min(max(clocks) - round(RECENT_S * 1e6), sorted(clocks)[-LEAST_STEPS:][0])
    first = next(at for at, one in enumerate(window) if one.counts and one.clock_us >= since_us)
    return window[first:]


def view_of(window: Sequence[Manifest], now_us: int, head: Head | None = None) -> View:
    """Return the view of some manifests. Claims and notes among them do not count as steps.

    Args:
        window: at least one manifest, in the order of steps.
        now_us: the time of day.
        head: the pipeline as of the last of them. Without it, watermarks and the highest event time
            are those that the newest step records, which is only what it has changed.
    """
    steps = [manifest for manifest in window if manifest.counts]
    timings = [manifest.timing for manifest in steps if manifest.timing is not None]
    timed = [manifest for manifest in steps if manifest.timing is not None]
    seconds = sum(timing.span_us for timing in timings) / 1e6
    took = [_took_us(timing) for timing in timings]
    return View(
        pipeline=window[-1].pipeline,
        step=window[-1].step,
        epoch=window[-1].epoch,
        age_s=max(0.0, (now_us - steps[-1].clock_us) / 1e6) if steps else None,
        steps=len(steps),
        timed=len(timings),
        seconds=seconds,
        busy=min(1.0, sum(took) / 1e6 / seconds) if seconds else None,
        records=sum(map(_records, steps)),
        records_per_s=_rate(sum(map(_records, timed)), seconds),
        steps_per_s=_rate(len(timed), seconds),
        step_ms=_step_times(took),
        phases=phases_of(timings),
        deliver_ms=_mean_ms(sum(timing.deliver_us for timing in timings), len(timings)),
        exchange=dict(Counter(timing.exchange for timing in timings)),
        soft_state=_added(timing.soft_state for timing in timings),
        computations=_computations(steps, timed, seconds, head),
        waits_for=window[-1].waits_for,
        unread=_added(
            {name: of.skipped for name, of in manifest.divisions.items() if of.skipped}
            for manifest in steps
        ),
        waiting={
            name: of.waiting
            for manifest in steps
            for name, of in manifest.divisions.items()
            if of.waiting >= 0
        },
        sinks_ms={
            sink: _mean_ms(took, len(timings))
            for sink, took in _added(timing.sinks_us for timing in timings).items()
        },
        layers=_layers(timings, {} if head is None else head.stored_schema.get("layers", {})),
    )


def phases_of(timings: Sequence[Timing]) -> list[Phase]:
    """Return where the time of steps went, in the order of a step.

    An attempt is shown as the phases of its tasks, and the rest as ``engine``. If tasks run side by
    side, the step waits for the slowest one of each layer, so that one counts. Otherwise all count.
    """
    driver = _added(timing.driver_us for timing in timings)
    waited: Counter[str] = Counter()
    all_tasks: Counter[str] = Counter()
    for timing in timings:
        for name, (slowest, total) in timing.tasks_us.items():
            waited[name] += slowest if timing.side_by_side else total
            all_tasks[name] += total
    engine = max(0, driver.pop("attempt", driver.pop("try", 0)) - sum(waited.values()))
    before = [name for name in _BEFORE if name in driver]
    rows: list[tuple[str, int, int | None]] = [
        *((name, driver[name], None) for name in before),
        *((name, waited[name], all_tasks[name]) for name in _in_order(waited, _TASKS)),
        *([(ENGINE, engine, None)] if timings else []),
        *((name, driver[name], None) for name in _in_order(driver, _AFTER) if name not in before),
    ]
    whole = sum(spent for _, spent, _ in rows) or 1
    count = len(timings)
    return [
        Phase(
            name,
            spent / whole,
            _mean_ms(spent, count),
            None if total is None else _mean_ms(total, count),
        )
        for name, spent, total in rows
    ]


def _layers(timings: Sequence[Timing], layer_of: Mapping[str, int]) -> list[LayerView]:
    """Return the time of each layer, over those steps that recorded it and have the newest layers."""
    count = next((len(timing.layers) for timing in reversed(timings) if timing.layers), 0)
    timed = [timing.layers for timing in timings if len(timing.layers) == count]
    found = []
    for number in range(count):
        layer = [of[number] for of in timed]
        worker, times = Counter(of.slowest for of in layer).most_common(1)[0]
        found.append(
            LayerView(
                layer=number,
                computations=sorted(name for name, at in layer_of.items() if at == number),
                slowest_ms=_mean_ms(sum(of.slowest_us for of in layer), len(layer)),
                all_ms=_mean_ms(sum(of.all_us for of in layer), len(layer)),
                slowest=worker,
                slowest_share=times / len(layer),
            )
        )
    return found


def _in_order(names: Iterable[str], order: list[str]) -> list[str]:
    """Return names in a given order. Names that it lacks (of a newer version) come last."""
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def _computations(
    steps: Sequence[Manifest], timed: Sequence[Manifest], seconds: float, head: Head | None
) -> dict[str, ComputationView]:
    """Return the progress of each computation, with watermarks as of the newest step."""
    if not steps:
        return {}
    newest = head or steps[-1]
    highest = max(newest.highest.values(), default=MIN_TIME)
    found = {}
    for name in sorted(steps[-1].counts):
        whole, rated = _counts(steps, name), _counts(timed, name)
        _, watermark = newest.watermarks.get(name, (MIN_TIME, MIN_TIME))
        lag = lag_us(watermark, highest)
        found[name] = ComputationView(
            _rate(rated.records, seconds),
            _rate(rated.timers, seconds),
            _rate(rated.produced, seconds),
            whole.late,
            whole.skipped,
            show_time(watermark),
            None if lag is None else lag / 1e6,
            whole.duplicates,
            whole.expired,
        )
    return found


def _counts(steps: Iterable[Manifest], name: str) -> Counts:
    total = Counts()
    for manifest in steps:
        total = total.plus(manifest.counts.get(name, Counts()))
    return total


def _records(manifest: Manifest) -> int:
    return sum(division.rows for division in manifest.divisions.values())


def _took_us(timing: Timing) -> int:
    return sum(timing.driver_us.values())


def _step_times(took_us: Sequence[int]) -> StepTimes | None:
    if not took_us:
        return None
    ordered = sorted(took_us)
    return StepTimes(*(_ranked(ordered, share) / 1e3 for share in (0.5, 0.95, 1.0)))


def _ranked(ordered: Sequence[int], share: float) -> int:
    """Return a percentile by nearest rank.

    It is the smallest value that has this share of the values at or below it.
    """
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds else None


def _mean_ms(micros: int, count: int) -> float:
    return micros / 1e3 / count if count else 0.0
