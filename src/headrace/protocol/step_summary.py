"""What a step did, as listeners are told it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.ledger.head import Head


class StepSummary(msgspec.Struct, frozen=True):
    """What a step did, for progress, metrics and benchmarks.

    Attributes:
        step: its number.
        records: records read, over all injectors.
        skipped: records that sources could not read, over all injectors.
        seconds: from the start of its try to the end of its commit.
        phases: seconds by phase, tasks' phases summed over tasks.
        exchange: who carried records.
        soft_state: how tasks had their soft state: ``hit``, ``caught up``, ``cold``.
        head: the pipeline after it.
    """

    step: int
    records: int
    seconds: float
    phases: dict[str, float]
    exchange: str
    soft_state: dict[str, int]
    head: Head
    skipped: int = 0


Listener = Callable[[StepSummary], None]
