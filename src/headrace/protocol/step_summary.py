"""The summary of a step that listeners receive."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.ledger.head import Head
from headrace.ledger.records import Counts


class StepSummary(msgspec.Struct, frozen=True):
    """What a step did, for progress, metrics and benchmarks.

    Attributes:
        step: its number.
        records: records read, over all injectors.
        seconds: from the start of its attempt to the end of its commit.
        phases: seconds by phase. Phases of tasks are summed over the tasks.
        exchange: how records travelled.
        soft_state: how many tasks found their soft state in each condition: ``hit``, ``caught up``,
            ``moved``, ``moved, caught up`` or ``cold``.
        head: the pipeline after it.
        skipped: records that sources could not read, over all injectors.
        counts: what each computation did in this step.

    Example::

        def show(done: hr.StepSummary) -> None:
            print(f"step {done.step}: {done.records} records in {done.seconds:.3f} s")


        with hr.run(p, storage="state/hits", runner="inline", listeners=[show]) as job:
            job.drain()
    """

    step: int
    records: int
    seconds: float
    phases: dict[str, float]
    exchange: str
    soft_state: dict[str, int]
    head: Head
    skipped: int = 0
    counts: dict[str, Counts] = {}

    def __repr__(self) -> str:
        """Return it in one line, without what the pipeline knows after it."""
        counted = ", ".join(f"{name}: {_in_short(of)}" for name, of in self.counts.items())
        return (
            f"StepSummary(step={self.step}, records={self.records}, seconds={self.seconds:.3f}, "
            f"skipped={self.skipped}, counts={{{counted}}})"
        )


def _in_short(counts: Counts) -> str:
    """Return the counts that are not 0."""
    return " ".join(f"{what}={n}" for what, n in msgspec.structs.asdict(counts).items() if n) or "-"


Listener = Callable[[StepSummary], None]
