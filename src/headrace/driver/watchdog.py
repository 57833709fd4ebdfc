"""The watchdog: sees to it that a job comes to its end though something in it does not.

Tasks, sinks and sources are other people's code, and may never return. Each has a time that it may
take (``Settings.task_timeout_us``, ``sink_timeout_us``, ``source_timeout_us``), and somebody may cancel
the whole. A thread beside the driver's looks what that one is at. First it asks: a task ends with its
place. Then it forces: Spark ends the task and its Python process. Where neither helps, since the
driver's own thread is stuck, it gives the driver up: the job ends with an error, the stuck thread is
left behind, and nothing that it still does has an effect.
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

#: It looks so often.
LOOK_S = 0.25
#: What was asked to end has so long, before it is forced; and so long again, before it is given up.
GRACE_S = 5.0
#: Whether another process has asked for a stop at once is looked for so often, where a step takes as long.
_COMMAND_LOOK_S = 1.0

#: Instructions that wait for a source.
_SOURCES: frozenset[type[Instruction]] = frozenset({Poll, PollBackfill, LoadIntent, PrepareReplay})


class GivesUp(Protocol):
    """Takes note that a driver is given up."""

    def __call__(self, error: HeadraceError) -> None: ...


class Watchdog:
    """Watches a driver.

    Args:
        driver: whom.
        give_up: called once, when the driver's thread is stuck for good.
        grace_s: see :data:`GRACE_S`.
        clock: seconds that only go up.
    """

    def __init__(
        self, driver: Driver, give_up: GivesUp, *, grace_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._driver = driver
        self._give_up = give_up
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._clock = clock
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-watchdog", daemon=True)
        self._asked: float | None = None  # since when a try is asked to end
        self._forced: float | None = None
        self._forced_plan: StepPlan | None = None  # the attempt that was forced to end
        self._looked_s = 0.0

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(LOOK_S):
            error = self.look()
            if error is not None and not self._closing.is_set():
                self._give_up(error)
                return

    def look(self) -> HeadraceError | None:
        """Look once; do what is due, and return why the driver is to be given up, if it is."""
        what, since_s = self._driver.pulse.at
        lasts_s = self._clock() - since_s
        self._look_for_command(lasts_s)
        if self._driver.cancel_asked_s is not None:
            return self._cancel(what)
        if what is Run:
            return self._end_try(lasts_s)
        self._asked = self._forced = None
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
        if self._asked is None:
            self._asked = now
            driver.runner.end_try(error, force=False)
        if self._forced is None and now - self._asked > self._grace_s:
            self._forced = now
            driver.runner.end_try(error, force=True)
        stuck = self._forced is not None and now - self._forced > self._grace_s
        return (
            error
            if stuck or (what not in (None, Run) and now - self._asked > self._grace_s)
            else None
        )

    def _end_try(self, lasts_s: float) -> HeadraceError | None:
        plan = self._driver.running_plan
        if plan is None or not plan.timeout_us:
            return None
        if plan is not self._forced_plan:
            self._forced = None
        error = self._driver.runner.why_ending() or timed_out(plan)
        late_s = lasts_s - plan.timeout_us / 1e6  # (until then it is the task that ends itself)
        if late_s > self._grace_s and self._forced is None:
            self._forced, self._forced_plan = self._clock(), plan
            self._driver.runner.end_try(error, force=True)
        stuck = self._forced is not None and self._clock() - self._forced > self._grace_s
        return error if stuck else None

    def _source(self, lasts_s: float) -> HeadraceError | None:
        most_s = self._driver.settings.source_timeout_us / 1e6
        if not most_s or lasts_s < most_s:
            return None
        name = self._driver.asked_source
        return SourceTimeout(
            f"the source of injector {name!r} has not said what it has for {lasts_s:.0f} s",
            place=f"injector {name!r}",
            remedy="see whether what it reads from can be reached, and start again; or let it take longer "
            "(Settings.source_timeout_us)",
        )

    def _sinks(self) -> HeadraceError | None:
        """Look for a sink that holds the driver's own thread up; others are the driver's affair."""
        if self._driver.runner.concurrent or not self._driver.settings.sink_timeout_us:
            return None
        most_s = self._driver.settings.sink_timeout_us / 1e6
        for one in self._driver.deliveries_under_way:
            took_s = self._clock() - one.since_s
            if took_s > most_s:
                return sink_timeout(one, took_s)
        return None
