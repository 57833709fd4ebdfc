"""Attempts of steps: run one after another on the runner, while their intents become durable."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from headrace.coordinator.messages import AttemptEnded, AttemptFailed, Run
from headrace.driver.phase_timer import Stopwatch
from headrace.driver.source_polling import SourcePoller
from headrace.errors.printable import message
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.ledger.ledger import Ledger
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.base import EngineFailed, Runner

#: The longest reason for a lost attempt that is kept, in characters.
MOST_REASON = 300
#: Seconds without an attempt after which the runner's processes are kept warm.
WARM_EVERY_S = 25.0


class RunningAttempt(msgspec.Struct, frozen=True):
    """The newest attempt: its plan, and its start by the monotonic clock."""

    plan: StepPlan
    started: float


class StepAttempts:
    """Runs the attempts of steps.

    Args:
        runner: where tasks run.
        ledger: where intents are written.
        source_poller: source of the splits of a division.
        stopwatch: measures the phases of an attempt.

    Attributes:
        ended: when the newest attempt ended, by the monotonic clock.
        lost: why earlier attempts of the newest step were discarded.
    """

    def __init__(
        self, runner: Runner, ledger: Ledger, source_poller: SourcePoller, stopwatch: Stopwatch
    ) -> None:
        self.ended = 0.0
        self.lost: list[str] = []
        self._newest: RunningAttempt | None = None
        self._runner = runner
        self._ledger = ledger
        self._source_poller = source_poller
        self._stopwatch = stopwatch
        self._intending = ThreadPoolExecutor(1, "headrace-intent") if runner.concurrent else None
        self._warmed = time.monotonic()
        self._growing = ThreadPoolExecutor(1, "headrace-grow") if runner.concurrent else None
        self._ready: tuple[int, Future[None]] | None = None  # the newest request to get ready

    @property
    def newest(self) -> RunningAttempt:
        """The newest attempt. Requires that there is one."""
        assert self._newest is not None
        return self._newest

    @property
    def plan(self) -> StepPlan | None:
        """The plan of the newest attempt; None before the first."""
        return None if self._newest is None else self._newest.plan

    def run(self, run: Run, head: Head) -> AttemptEnded | AttemptFailed:
        """Run an attempt on top of a head. Return how it ended."""
        self._stopwatch.rename("attempt", "lost")  # an earlier attempt of this step was lost
        self.lost = [*self.lost, message(run.after, MOST_REASON)] if run.after else []
        started = time.perf_counter()
        with self._stopwatch.phase("split"):
            plan = self._source_poller.with_splits(run.plan, run.divisions)
        self._newest = RunningAttempt(plan, started)
        self._warmed = time.monotonic()
        first = None if run.intent is None else self._intend(run.intent, head)
        failed: EngineFailed | None = None
        reports: list[TaskReport] = []
        try:
            with self._stopwatch.phase("attempt"):
                reports = self._runner.run(plan)
        except EngineFailed as error:
            failed = error
        superseded = self._was_superseded(run.intent, first)
        if failed is not None:
            return AttemptFailed(str(failed), superseded)
        self.ended = time.perf_counter()
        took_us = round((self.ended - started) * 1e6)
        return AttemptEnded(reports, took_us, superseded, self._ready_for())

    def keep_warm(self) -> None:
        """Keep the runner's processes alive if they had no work for :data:`WARM_EVERY_S`."""
        if time.monotonic() - self._warmed > WARM_EVERY_S:
            self._runner.keep_warm()
            self._warmed = time.monotonic()

    def make_ready(self, workers: int) -> None:
        """Start to get ready for plans with this number of workers, beside the attempts.

        It is called after each step for as long as they are to come, so that what is lost meanwhile is
        made ready again.
        """
        if self._ready is not None and self._ready[0] == workers:
            before = self._ready[1]
            if not before.done() or before.exception() is not None:
                return
        done: Future[None] = Future()
        if self._growing is not None:
            done = self._growing.submit(self._runner.make_ready, workers)
        else:
            self._runner.make_ready(workers)
            done.set_result(None)
        self._ready = (workers, done)

    def _ready_for(self) -> int:
        """Return the number of workers for which getting ready is over; 0 while it is not.

        If it failed, the next attempt with this number of workers reports why.
        """
        return self._ready[0] if self._ready is not None and self._ready[1].done() else 0

    def close(self) -> None:
        """Wait for the work that goes on beside the attempts."""
        for pool in (self._intending, self._growing):
            if pool is not None:
                pool.shutdown()

    def _intend(self, intent: Intent, head: Head) -> Future[Intent]:
        """Start to make an intent durable.

        If attempts run elsewhere, this goes on beside the attempt.
        """
        if self._intending is not None:
            return self._intending.submit(self._ledger.intend, head, intent)
        done: Future[Intent] = Future()
        with self._stopwatch.phase("intent"):
            done.set_result(self._ledger.intend(head, intent))
        return done

    def _was_superseded(self, intent: Intent | None, first: Future[Intent] | None) -> bool:
        """Wait for the intent. Return whether another driver's intent came first."""
        if intent is None or first is None:
            return False
        with self._stopwatch.phase("intent"):
            return first.result().nonce != intent.nonce
