"""Keeps a crew while that is of use, and does without one while it is not.

A crew takes a slot for each worker for as long as it is there. If a task of anybody else in the
session waits for a slot, the crew leaves between two steps. It comes back when nobody waits, and later
each time if somebody waits again soon. A crew that has lost a member leaves, too. Meanwhile steps run
as jobs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.runners.spark.crew.crew import Crew, CrewLost
from headrace.runners.spark.crew.slots import slots, tasks_that_wait, unsuitable
from headrace.runners.spark.worker_sets import WorkerSet

log = logging.getLogger("headrace.spark")

#: How often to look whether somebody waits for slots, in seconds. The second look in a row counts.
_LOOK_S = 0.25
#: How long all members may take to arrive, in seconds.
_ENTER_S = 10.0
#: The shortest and the longest pause without a crew, in seconds.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
#: A crew that was there for this long has been of use: the next pause is short again.
_USEFUL_S = 30.0


class CrewKeeper:
    """Keeps the crew of a runner.

    Args:
        context: the SparkContext.
        host: the address at which members on other hosts reach the driver; None if all are on its
            host.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        context: Any,
        host: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sc = context
        self._host = host
        self._never = unsuitable(context, local=host is None)
        if self._never:
            log.info("steps run as jobs: %s", self._never)
        self._clock = clock
        self._crew: Crew | None = None
        self._at_work = threading.Lock()  # held while a crew works, enters or leaves
        self._closing = threading.Event()
        self._watching: threading.Thread | None = None
        self._somebody_waits = False
        self._pause_s = _PAUSE_S
        self._entered_s = 0.0
        self._again_s = 0.0

    @contextlib.contextmanager
    def crew_for(self, worker_set: WorkerSet) -> Iterator[Crew | None]:
        """Return the crew of a worker set, in a ``with`` block; None if there should be none now."""
        with self._at_work:
            if self._crew is not None and self._crew.is_lost:
                self._leave_for_a_while()
            if self._crew is not None and self._crew.worker_set is not worker_set:
                self._leave()
            if self._crew is None and self._clock() >= self._again_s:
                self._enter(worker_set)
            try:
                yield self._crew
            except CrewLost:
                self._leave_for_a_while()
                raise
            except BaseException:
                self._leave()
                raise
            if self._somebody_waits:
                self._leave_for_a_while()

    def leave(self) -> None:
        """End the crew, if there is one. It comes back with the next step."""
        with self._at_work:
            self._leave()

    @property
    def _slots(self) -> int:
        return slots(self._sc)

    @property
    def crew(self) -> Crew | None:
        """The crew, if there is one."""
        return self._crew

    def cancel(self) -> None:
        """End the crew at once, whatever it does. May be called from any thread."""
        crew = self._crew
        if crew is not None:
            self._sc.cancelJobGroup(crew.group)

    def close(self) -> None:
        """End the crew for good."""
        self._closing.set()
        self.leave()

    def _enter(self, worker_set: WorkerSet) -> None:
        if self._never:
            return
        if self._slots < worker_set.workers or tasks_that_wait(self._sc):
            self._again_s = self._clock() + self._pause_s
            return
        crew = Crew(self._sc, worker_set, self._host)
        why = crew.enter(_ENTER_S)
        self._entered_s = self._clock()
        self._crew, self._somebody_waits = crew, False
        if why is not None:
            log.info("steps run as jobs for now, since workers cannot stay: %s", why)
            self._leave_for_a_while()
        elif self._watching is None:
            log.info(
                "workers stay in %d of %d slots for tasks, and leave when another task waits",
                worker_set.workers,
                self._slots,
            )
            self._watching = threading.Thread(
                target=self._watch, name="headrace-slots", daemon=True
            )
            self._watching.start()

    def _leave_for_a_while(self) -> None:
        """End the crew. The less it was of use, the longer the pause."""
        self._leave()
        if self._clock() - self._entered_s > _USEFUL_S:
            self._pause_s = _PAUSE_S
        self._again_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _leave(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.leave()

    # -- beside the steps ---------------------------------------------------------------------

    def _watch(self) -> None:
        """Look whether somebody waits for slots. A crew at work leaves after its step."""
        waited = False
        while not self._closing.wait(_LOOK_S):
            crew = self._crew
            if crew is None:
                waited = False
                continue
            try:
                waits = tasks_that_wait(self._sc, crew.stages) > 0
            except Exception:  # the session is ending
                waits = False
            if waits and waited:
                self._somebody_waits = True
                if self._at_work.acquire(blocking=False):
                    try:
                        if self._crew is not None:
                            self._leave_for_a_while()
                    finally:
                        self._at_work.release()
            waited = waits
