"""What is observed of a workload under load, and the observer."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.ledger.migrations import RecordedMigration
from headrace.nexmark.harness.latency import Done, Latencies
from headrace.nexmark.harness.load import Workload
from headrace.nexmark.pace import Pace, now_us
from headrace.protocol.step_summary import StepSummary


class Moved(msgspec.Struct, frozen=True):
    """A migration as it went. Times are in seconds since events started to come.

    Attributes:
        began_s: when it started.
        held_s: when the first event was due that it may have held up. That is the first event not
            done when it started, or one that is counted together with it.
        ended_s: when the last step in which state moved was committed.
        bins, nbytes: how much has moved.
        state: ``done``, or ``aborted``.
    """

    began_s: float
    held_s: float
    ended_s: float
    bins: int
    nbytes: int
    state: str = "done"

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


class Observations(msgspec.Struct, frozen=True):
    """What was observed of a query under load.

    Attributes:
        begin_us: when events started to come, in microseconds since 1970.
        latencies: of all events.
        moved: its migrations.
        memory: (when, GiB of all Python workers), in seconds since events started to come.
        busy: (when, seconds of processor time that they have used so far).
        steps: how many steps the measured window has.
        answers: how many rows the query answered.
    """

    begin_us: int
    latencies: Latencies
    moved: list[Moved]
    memory: list[tuple[float, float]]
    busy: list[tuple[float, float]]
    steps: int
    answers: int


class Observer:
    """Records which events are done, when, and what has moved."""

    def __init__(self, workload: Workload) -> None:
        self.answers = 0
        self._workload = workload
        self._committed: dict[int, Done] = {}
        self._delivered_us: dict[int, int] = {}
        self._migrations: dict[int, RecordedMigration] = {}

    def take(self, step: int, rows: Any) -> None:
        """Receive a step's answers, once it is committed."""
        self.answers += rows.num_rows
        self._delivered_us[step] = now_us()

    def note(self, summary: StepSummary) -> None:
        """Record a committed step."""
        self._committed[summary.step] = Done(self._workload.done(summary.head), now_us())
        self._migrations |= {one.id: one for one in summary.head.migrations}

    @property
    def events(self) -> int:
        """How many events are done."""
        return max((events for events, _ in self._committed.values()), default=0)

    def done(self) -> list[Done]:
        """Return the events done with each step, and when it was committed and delivered."""
        found = [Done(0, 0)]
        for step, (events, at_us) in sorted(self._committed.items()):
            if events > found[-1].events:
                found.append(Done(events, max(at_us, self._delivered_us.get(step, 0))))
        return found[1:]

    def moved(self, pace: Pace) -> list[Moved]:
        """Return the migrations that have ended."""
        return [self._as_it_went(one, pace) for one in self._migrations.values() if one.is_over]

    def _as_it_went(self, one: RecordedMigration, pace: Pace) -> Moved:
        assert one.began is not None and one.ended is not None
        began_us = one.began.clock_us
        before = max((done.events for done in self.done() if done.at_us <= began_us), default=0)
        held_us = min(Latencies.together_us(before, pace), began_us)
        ended_us = self._committed[one.ended.step].at_us  # (its clock was read at the step's start)
        began, held, ended = ((at - pace.begin_us) / 1e6 for at in (began_us, held_us, ended_us))
        return Moved(began, held, ended, one.bins, one.nbytes, one.state)
