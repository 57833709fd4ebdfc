"""The watchdog: makes a job end although something in it does not end.

Tasks, sinks and sources run other people's code, which may never return. Each has a timeout
(``Settings.task_timeout_us``, ``sink_timeout_us``, ``source_timeout_us``), and a user may cancel
the whole job. A thread beside the driver's watches which instruction the driver is in, and acts in
this order:

1. It asks. A task that ends this way names the place where it was.
2. It forces. Spark ends the task and its Python process.
3. It gives the driver up, if the driver's own thread is stuck. The job ends with an error. The
   stuck thread is left behind, and nothing that it still does has an effect.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headrace.coordinator.messages import (
    Instruction,
    LoadIntent,
    Poll,
    PollBackfill,
    PrepareReplay,
    Run,
)
from headrace.driver.driver import Driver
from headrace.driver.sink_delivery import sink_timeout
from headrace.errors import HeadraceError, SourceTimeout
from headrace.protocol.plan import StepPlan
from headrace.runners.ending import cancelled, timed_out

log = logging.getLogger("headrace")

#: Seconds between two looks.
LOOK_S = 0.25
#: Seconds from asking to forcing, and from forcing to giving up.
GRACE_S = 5.0
#: Seconds between two looks for a command to stop at once. Only while an instruction takes longer.
_COMMAND_LOOK_S = 1.0

#: Instructions that wait for a source.
_SOURCES: frozenset[type[Instruction]] = frozenset({Poll, PollBackfill, LoadIntent, PrepareReplay})


class GivesUp(Protocol):
    """Is called when a driver is given up."""

    def __call__(self, error: HeadraceError) -> None: ...


class Watchdog:
    """Watches a driver.

    Args:
        driver: the driver to watch.
        give_up: called once, if the driver's thread is stuck for good.
        grace_s: see :data:`GRACE_S`.
        clock: seconds that only go up.
    """

    def __init__(
        self,
        driver: Driver,
        give_up: GivesUp,
        *,
        grace_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._give_up = give_up
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._clock = clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-watchdog", daemon=True)
        self._end_requested_s: float | None = None  # when the running attempt was asked to end
        self._forced: float | None = None
        self._forced_plan: StepPlan | None = None  # the attempt that was forced to end
        self._looked_s = 0.0

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            error = self.look()
            if error is not None and not self._closing.is_set():
                self._give_up(error)
                return

    def look(self) -> HeadraceError | None:
        """Look once, and do what is due.

        Return the reason to give the driver up, if there is one.
        """
        what, since_s = self._driver.loop_progress.at
        lasts_s = self._clock() - since_s
        self._look_for_command(lasts_s)
        if self._driver.cancel_requested_s is not None:
            return self._cancel(what)
        if what is Run:
            return self._end_attempt(lasts_s)
        self._end_requested_s = self._forced = None
        if what in _SOURCES:
            return self._source(lasts_s)
        return self._sinks()

    def _look_for_command(self, lasts_s: float) -> None:
        now = self._clock()
        if lasts_s > _COMMAND_LOOK_S and now - self._looked_s > _COMMAND_LOOK_S:
            self._looked_s = now
            self._driver.look_for_stop_now()

    def _cancel(self, what: type[Instruction] | None) -> HeadraceError | None:
        driver, now = self._driver, self._clock()
        error = driver.runner.why_ending() or cancelled(driver.running_plan)
        if self._end_requested_s is None:
            self._end_requested_s = now
            driver.runner.end_attempt(error, force=False)
        if self._forced is None and now - self._end_requested_s > self._grace_s:
            self._forced = now
            driver.runner.end_attempt(error, force=True)
        stuck = self._forced is not None and now - self._forced > self._grace_s
        return (
            error
            if stuck or (what not in (None, Run) and now - self._end_requested_s > self._grace_s)
            else None
        )

    def _end_attempt(self, lasts_s: float) -> HeadraceError | None:
        plan = self._driver.running_plan
        if plan is None or not plan.timeout_us:
            return None
        if plan is not self._forced_plan:
            self._forced = None
        error = self._driver.runner.why_ending() or timed_out(plan)
        late_s = lasts_s - plan.timeout_us / 1e6  # until then, the task ends itself
        if late_s > self._grace_s and self._forced is None:
            self._forced, self._forced_plan = self._clock(), plan
            self._driver.runner.end_attempt(error, force=True)
        stuck = self._forced is not None and self._clock() - self._forced > self._grace_s
        return error if stuck else None

    def _source(self, lasts_s: float) -> HeadraceError | None:
        most_s = self._driver.settings.source_timeout_us / 1e6
        if not most_s or lasts_s < most_s:
            return None
        name = self._driver.polled_source
        return SourceTimeout(
            f"the source of injector {name!r} has not said what it has for {lasts_s:.0f} s",
            place=f"injector {name!r}",
            remedy="see whether what it reads from can be reached, and start again; or let it take longer "
            "(Settings.source_timeout_us)",
        )

    def _sinks(self) -> HeadraceError | None:
        """Return an error if a sink blocks the driver's own thread for too long.

        Sinks that have threads of their own are checked by the driver.
        """
        if self._driver.runner.concurrent or not self._driver.settings.sink_timeout_us:
            return None
        most_s = self._driver.settings.sink_timeout_us / 1e6
        for one in self._driver.deliveries_under_way:
            took_s = self._clock() - one.since_s
            if took_s > most_s:
                return sink_timeout(one, took_s)
        return None
