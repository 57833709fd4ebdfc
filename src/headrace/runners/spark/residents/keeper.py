"""Keeps resident workers while they are of use, and does without them while they are not.

Each takes a slot for as long as it is there. If a task of anybody else in the session waits for one, all
leave between two steps. They come back when nobody waits, and later each time if somebody waits again
soon. If one of them is lost, all leave, too. Meanwhile steps run as jobs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.runners.spark.residents.residents import ResidentLost, Residents
from headrace.runners.spark.residents.slots import slots, tasks_that_wait, unsuitable
from headrace.runners.spark.worker_sets import WorkerSet

log = logging.getLogger("headrace.spark")

#: How often to look whether somebody waits for slots, in seconds. The second look in a row counts.
_LOOK_S = 0.25
#: How long all residents may take to arrive, in seconds.
_ENTER_S = 10.0
#: The shortest and the longest pause without residents, in seconds.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
#: Residents that were there for this long have been of use: the next pause is short again.
_USEFUL_S = 30.0


class ResidentKeeper:
    """Keeps the resident workers of a runner.

    Args:
        context: the SparkContext.
        host: the address at which residents on other hosts reach the driver; None if all are on its
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
        self._residents: Residents | None = None
        self._at_work = threading.Lock()  # held while residents work, enter or leave
        self._closing = threading.Event()
        self._watching: threading.Thread | None = None
        self._somebody_waits = False
        self._pause_s = _PAUSE_S
        self._entered_s = 0.0
        self._again_s = 0.0

    @contextlib.contextmanager
    def residents_for(self, worker_set: WorkerSet) -> Iterator[Residents | None]:
        """Return the residents of a worker set, in a ``with`` block; None if steps are jobs now."""
        with self._at_work:
            if self._residents is not None and self._residents.is_lost:
                self._end_for_a_while()
            if self._residents is not None and self._residents.worker_set is not worker_set:
                self._end()
            if self._residents is None and self._clock() >= self._again_s:
                self._enter(worker_set)
            try:
                yield self._residents
            except ResidentLost:
                self._end_for_a_while()
                raise
            except BaseException:
                self._end()
                raise
            if self._somebody_waits:
                self._end_for_a_while()

    def end(self) -> None:
        """End the residents, if they are there. They come back with the next step."""
        with self._at_work:
            self._end()

    @property
    def _slots(self) -> int:
        return slots(self._sc)

    @property
    def residents(self) -> Residents | None:
        """The residents, if they are there."""
        return self._residents

    def cancel(self) -> None:
        """End the residents at once, whatever they do. May be called from any thread."""
        residents = self._residents
        if residents is not None:
            self._sc.cancelJobGroup(residents.group)

    def close(self) -> None:
        """End the residents for good."""
        self._closing.set()
        self.end()

    def _enter(self, worker_set: WorkerSet) -> None:
        if self._never:
            return
        if self._slots < worker_set.workers or tasks_that_wait(self._sc):
            self._again_s = self._clock() + self._pause_s
            return
        residents = Residents(self._sc, worker_set, self._host)
        why = residents.enter(_ENTER_S)
        self._entered_s = self._clock()
        self._residents, self._somebody_waits = residents, False
        if why is not None:
            log.info("steps run as jobs for now, since workers cannot stay: %s", why)
            self._end_for_a_while()
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

    def _end_for_a_while(self) -> None:
        """End the residents. The less they were of use, the longer the pause."""
        self._end()
        if self._clock() - self._entered_s > _USEFUL_S:
            self._pause_s = _PAUSE_S
        self._again_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _end(self) -> None:
        residents, self._residents = self._residents, None
        if residents is not None:
            residents.end()

    # -- beside the steps ---------------------------------------------------------------------

    def _watch(self) -> None:
        """Look whether somebody waits for slots. Residents at work leave after their step."""
        waited = False
        while not self._closing.wait(_LOOK_S):
            residents = self._residents
            if residents is None:
                waited = False
                continue
            try:
                waits = tasks_that_wait(self._sc, residents.stages) > 0
            except Exception:  # the session is ending
                waits = False
            if waits and waited:
                self._somebody_waits = True
                if self._at_work.acquire(blocking=False):
                    try:
                        if self._residents is not None:
                            self._end_for_a_while()
                    finally:
                        self._at_work.release()
            waited = waits
