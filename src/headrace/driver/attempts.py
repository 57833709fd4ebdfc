"""Tries: one after the other on the runner, while what they are of is made durable."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from headrace.coordinator.messages import AttemptEnded, AttemptFailed, Run
from headrace.driver.phase_timer import Stopwatch
from headrace.driver.source_polling import SourcePoller
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.ledger.ledger import Ledger
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.base import Runner, TryFailed

#: The runner's processes are kept warm so often.
WARM_EVERY_S = 25.0


class RunningAttempt(msgspec.Struct, frozen=True):
    """The newest try: what it was to do, and when it began, by the monotonic clock."""

    plan: StepPlan
    started: float


class StepAttempts:
    """Runs tries.

    Args:
        runner: where tasks run.
        ledger: keeps intents.
        intake: gives the splits of a division.
        stopwatch: is told what takes how long.

    Attributes:
        ended: when the newest try ended, by the monotonic clock.
    """

    def __init__(
        self, runner: Runner, ledger: Ledger, intake: SourcePoller, stopwatch: Stopwatch
    ) -> None:
        self.ended = 0.0
        self._newest: RunningAttempt | None = None
        self._runner = runner
        self._ledger = ledger
        self._intake = intake
        self._stopwatch = stopwatch
        self._intending = ThreadPoolExecutor(1, "headrace-intent") if runner.concurrent else None
        self._warmed = time.monotonic()
        self._growing = ThreadPoolExecutor(1, "headrace-grow") if runner.concurrent else None
        self._ready: tuple[int, Future[None]] | None = None  # what was asked for last

    @property
    def newest(self) -> RunningAttempt:
        """The newest try; only once there is one."""
        assert self._newest is not None
        return self._newest

    @property
    def plan(self) -> StepPlan | None:
        """The plan of the newest try; None before the first."""
        return None if self._newest is None else self._newest.plan

    def run(self, run: Run, head: Head) -> AttemptEnded | AttemptFailed:
        """Run a try on top of a head; return how it ended."""
        self._stopwatch.rename("try", "lost")  # if there was one already, it is thrown away
        started = time.perf_counter()
        with self._stopwatch.phase("split"):
            plan = self._intake.with_splits(run.plan, run.divisions)
        self._newest = RunningAttempt(plan, started)
        self._warmed = time.monotonic()
        first = None if run.intent is None else self._intend(run.intent, head)
        broke: TryFailed | None = None
        reports: list[TaskReport] = []
        try:
            with self._stopwatch.phase("try"):
                reports = self._runner.run(plan)
        except TryFailed as error:
            broke = error
        superseded = self._was_outrun(run.intent, first)
        if broke is not None:
            return AttemptFailed(str(broke), superseded)
        self.ended = time.perf_counter()
        took_us = round((self.ended - started) * 1e6)
        return AttemptEnded(reports, took_us, superseded, self._ready_for())

    def keep_warm(self) -> None:
        """Keep the runner's processes, if they had nothing to do for long."""
        if time.monotonic() - self._warmed > WARM_EVERY_S:
            self._runner.keep_warm()
            self._warmed = time.monotonic()

    def make_ready(self, workers: int) -> None:
        """Begin to get ready for plans with so many workers, beside the tries."""
        if self._ready is not None and self._ready[0] == workers:
            return
        done: Future[None] = Future()
        if self._growing is not None:
            done = self._growing.submit(self._runner.make_ready, workers)
        else:
            self._runner.make_ready(workers)
            done.set_result(None)
        self._ready = (workers, done)

    def _ready_for(self) -> int:
        """Return for how many workers all that was asked for is done; where it failed, a try tells why."""
        return self._ready[0] if self._ready is not None and self._ready[1].done() else 0

    def close(self) -> None:
        """Wait for what is under way beside the tries."""
        for pool in (self._intending, self._growing):
            if pool is not None:
                pool.shutdown()

    def _intend(self, intent: Intent, head: Head) -> Future[Intent]:
        """Begin to make an intent durable: while the try runs, if that runs elsewhere."""
        if self._intending is not None:
            return self._intending.submit(self._ledger.intend, head, intent)
        done: Future[Intent] = Future()
        with self._stopwatch.phase("intent"):
            done.set_result(self._ledger.intend(head, intent))
        return done

    def _was_outrun(self, intent: Intent | None, first: Future[Intent] | None) -> bool:
        """Wait for the intent; say whether that of another driver was there first."""
        if intent is None or first is None:
            return False
        with self._stopwatch.phase("intent"):
            return first.result().nonce != intent.nonce
