"""Where the time of a step went: what each manifest says of it, for people.

It is part of no digest of results and of no decision: whoever reads a manifest to go on from it
does not look here.
"""

from __future__ import annotations

import msgspec

from headrace.storage.bounds import Micros, Whole


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time from the start of the commit before to the start of this one, in microseconds.

    So a step's own commit, and what follows it (delivering, deleting), are in the timing of the
    step after: nobody knows them when its manifest is written.

    Attributes:
        span_us: the whole of it, waiting for input included.
        driver_us: what the driver spent, by phase, one after another. Of the step before:
            ``commit``; ``tell`` (sources and listeners), ``release``, ``clean``, ``sweep``. Of
            this one: ``outbox`` (waiting for sinks, because it was full), ``poll``, ``plan`` (all
            decisions), ``split`` (sources say what exactly is read), ``try``, and ``lost`` for tries
            before that one, which were thrown away; with weak sinks ``intent`` (waiting for it,
            beyond the try) and ``hand out``. They add up to the time that the step took; the rest
            of the span is waiting.
        tasks_us: what tasks spent within the try, by phase: (in the slowest task of each layer, in
            all tasks). Where tasks run side by side, a step waits for the slowest; the first
            numbers add up to no more than the try.
        side_by_side: whether tasks did run side by side.
        deliver_us: what sinks took for outputs whose delivery ended within the span. Where tasks
            run elsewhere it happens meanwhile; otherwise it is the driver's ``release``.
        exchange: who carried records: ``driver``, ``host`` or ``shuffle``.
        soft_state: how many tasks found it how: ``hit``, ``caught up``, ``cold``.
    """

    span_us: Micros
    driver_us: dict[str, Micros] = {}
    tasks_us: dict[str, tuple[Micros, Micros]] = {}
    side_by_side: bool = False
    deliver_us: Micros = 0
    exchange: str = ""
    soft_state: dict[str, Whole] = {}
