"""Timing: where the time of a step went, as its manifest records it for people.

It is part of no digest of results, and no decision depends on it. Code that continues from a
manifest does not read it.
"""

from __future__ import annotations

import msgspec

from headrace.storage.bounds import Micros, Whole, WorkerNumber


class LayerTime(msgspec.Struct, frozen=True, array_like=True):
    """The time that the tasks of a layer took, in microseconds.

    Attributes:
        slowest: the worker, or for layer 0 the reader, whose task took longest.
        slowest_us, all_us: the time of that task, and of all tasks.
    """

    slowest: WorkerNumber
    slowest_us: Micros
    all_us: Micros


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time from the start of the previous commit to the start of this one, in microseconds.

    The time of a step's own commit is not known when its manifest is written. So it is in the
    timing of the next step, with what follows the commit: delivering and deleting.

    Attributes:
        span_us: the total, including the time spent waiting for input.
        driver_us: the driver's time by phase. The phases follow each other. Of the step before:
            ``commit``; ``notify`` (sources and listeners), ``release``, ``clean``, ``sweep``. Of
            this
            step: ``outbox`` (waiting for sinks, because it was full), ``poll``, ``plan`` (all
            decisions), ``split`` (sources say what exactly is read), ``attempt`` (the attempt), and
            ``lost`` (earlier attempts, which were discarded). With weak sinks also ``intent``
            (waiting for it after the attempt) and ``hand out``. They add up to the time that the
            step took. The rest of the span is waiting.
        tasks_us: the tasks' time within the attempt, by phase: (in the slowest task of each layer,
            in all tasks). Tasks that run in parallel make a step wait for the slowest one. The
            first numbers add up to no more than the attempt.
        side_by_side: whether tasks ran in parallel.
        deliver_us: the time that sinks took for outputs whose delivery ended within the span. If
            tasks run elsewhere, it overlaps with their work. Otherwise it is the driver's
            ``release``.
        sinks_us: the part of it that each sink took. Sinks that took less than a millisecond are left
            out, and older versions did not record it.
        exchange: what carried the records: ``driver``, ``host`` or ``shuffle``.
        soft_state: how many tasks found their soft state in which condition: ``hit``, ``caught
            up``, ``cold``.
        nodes_us: the time that each computation's code took: (in its slowest task, in all tasks).
            Older versions did not record it.
        lost: why earlier attempts of the step were discarded.
        layers: the time of each layer. Layer 0 reads and routes. Older versions did not record it.
    """

    span_us: Micros
    driver_us: dict[str, Micros] = {}
    tasks_us: dict[str, tuple[Micros, Micros]] = {}
    side_by_side: bool = False
    deliver_us: Micros = 0
    exchange: str = ""
    soft_state: dict[str, Whole] = {}
    nodes_us: dict[str, tuple[Micros, Micros]] = {}
    lost: list[str] = []
    layers: list[LayerTime] = []
    sinks_us: dict[str, Micros] = {}
