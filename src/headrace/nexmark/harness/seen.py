"""What is seen of a workload under load, and what looks on."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.nexmark.harness.latency import Done, Latencies
from headrace.nexmark.harness.load import Workload
from headrace.nexmark.pace import now_us
from headrace.summary import StepSummary


class Moved(msgspec.Struct, frozen=True):
    """A migration as it went: when, in seconds since events began to come, and how much."""

    began_s: float
    ended_s: float
    bins: int
    nbytes: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


class Seen(msgspec.Struct, frozen=True):
    """What was seen of a query under load.

    Attributes:
        begin_us: from when on events came, in microseconds since 1970.
        latencies: of all events.
        moved: its migrations.
        memory: (when, GiB of all Python workers), in seconds since events began to come.
        busy: (when, seconds of processor time that they have used so far).
        steps: how many there were in the window that is looked at.
        answers: how many rows it answered.
    """

    begin_us: int
    latencies: Latencies
    moved: list[Moved]
    memory: list[tuple[float, float]]
    busy: list[tuple[float, float]]
    steps: int
    answers: int


class Watch:
    """Notes what is done, and when; and what has moved."""

    def __init__(self, workload: Workload) -> None:
        self.answers = 0
        self._workload = workload
        self._committed: dict[int, Done] = {}
        self._delivered_us: dict[int, int] = {}
        self._migrations: dict[int, Any] = {}

    def take(self, step: int, rows: Any) -> None:
        """Take a step's answers, once it is committed."""
        self.answers += rows.num_rows
        self._delivered_us[step] = now_us()

    def note(self, summary: StepSummary) -> None:
        """Note a step that is committed."""
        self._committed[summary.step] = Done(self._workload.done(summary.head), now_us())
        self._migrations |= {one.id: one for one in summary.head.migrations}

    @property
    def events(self) -> int:
        """How many events are done."""
        return max((events for events, _ in self._committed.values()), default=0)

    def done(self) -> list[Done]:
        """Return what each step was done with, and when it was committed and its answers delivered."""
        found = [Done(0, 0)]
        for step, (events, at_us) in sorted(self._committed.items()):
            if events > found[-1].events:
                found.append(Done(events, max(at_us, self._delivered_us.get(step, 0))))
        return found[1:]

    def moved(self, begin_us: int) -> list[Moved]:
        """Return the migrations that have ended."""
        over = [one for one in self._migrations.values() if one.state == "done"]
        return [
            Moved(
                (one.began.clock_us - begin_us) / 1e6, (one.ended.clock_us - begin_us) / 1e6,
                one.bins, one.nbytes,
            )
            for one in over
        ]  # fmt: skip
