"""Keeps resident workers while they are of use, and does without them while they are not.

Each takes a slot for as long as it is there. If a task of anybody else in the session waits for one, all
leave between two steps. They come back when nobody waits, and later each time if somebody waits again
soon. If one of them is lost, all leave, too. Meanwhile steps run as jobs.

Where more workers are about to come, theirs start beside the steps of those that are there. Those that
serve the same workers on the same host stay. So a change of the number of workers waits for nobody.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.runners.spark import private_api
from headrace.runners.spark.job_names import JobNames
from headrace.runners.spark.residents.residents import ResidentLost, Residents
from headrace.runners.spark.residents.slots import cpus_of_a_task, tasks_that_wait, unsuitable
from headrace.runners.spark.worker_sets import WorkerSet
from headrace.session.spark_errors import short

log = logging.getLogger("headrace.spark")

#: How often to look whether somebody waits for slots, in seconds. The second look in a row counts.
_LOOK_S = 0.25
#: How long all residents may take to arrive, in seconds.
_ENTER_S = 10.0
#: The shortest and the longest pause without residents, in seconds.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 60.0
#: Residents that were there for this long have been of use: the next pause is short again.
_USEFUL_S = 30.0
#: How long those that come beside others stay without being asked for again, in seconds.
_COMING_S = 10.0
#: After how many starts that failed, one after another, they are not tried for so many seconds.
_FAILURES, _GIVEN_UP_S = 3, 3600.0


class ResidentKeeper:
    """Keeps the resident workers of a runner.

    Args:
        context: the SparkContext.
        hosts: see :class:`~headrace.runners.spark.residents.links.Entrance`.
        names: names their jobs.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        context: Any,
        hosts: tuple[str, str] | None,
        names: JobNames,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sc = context
        self._hosts = hosts
        self._names = names
        self._failed = 0  # how often in a row not all came
        conf = context.getConf()  # a copy of all of it, which takes many gateway calls
        self._cpus = cpus_of_a_task(conf)
        self._never = unsuitable(conf, local=hosts is None)
        if self._never:
            log.info("steps run as jobs: %s", self._never)
        self._clock = clock
        self._residents: Residents | None = None
        self._coming: Residents | None = None
        self._coming_lock = threading.Lock()  # held for a moment: they come beside the steps
        self._requested_s = 0.0
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
                self._change(worker_set)
            if self._residents is None and self._clock() >= self._again_s:
                self._enter(worker_set)
            try:
                yield self._residents
            except ResidentLost as error:
                log.info("steps run as jobs for now, since a resident worker is lost: %s", error)
                self._end_for_a_while()
                raise
            except BaseException:
                self._end()
                raise
            if self._somebody_waits and self._residents is not None:
                self._end_for_a_while()

    def end(self) -> None:
        """End the residents, if they are there. They come back with the next step."""
        with self._at_work:
            self._end()

    def make_ready(self, worker_set: WorkerSet) -> None:
        """Start residents of a worker set that is about to be used, beside the steps of those there.

        May be called from another thread, and again and again. Nothing comes where there are no slots.
        """
        before = self._residents
        if before is None or self._closing.is_set():
            return
        with self._coming_lock:
            self._requested_s = self._clock()
            coming = self._coming
            if coming is not None and coming.before is before and coming.worker_set is worker_set:
                return
        self._end_coming()
        there = before.places
        wanted = there.union(seat.place for seat in worker_set.seats)
        if wanted == there or self._slots < len(wanted):
            return
        if tasks_that_wait(self._sc, before.stages):
            return
        coming = Residents(self._sc, worker_set, self._hosts, self._names, before)
        with self._coming_lock:
            self._coming = coming
        why = coming.enter(_ENTER_S)
        if why is not None:
            log.info("workers to come do not stay yet: %s", why)
            coming.end(but=before)

    @property
    def _slots(self) -> int:
        return private_api.slots(self._sc) or int(self._sc.defaultParallelism) // self._cpus

    @property
    def residents(self) -> Residents | None:
        """The residents, if they are there."""
        return self._residents

    def cancel(self) -> None:
        """End the residents at once, whatever they do. May be called from any thread."""
        for residents in (self._residents, self._coming):
            if residents is not None:
                residents.cancel()

    def close(self) -> None:
        """End the residents for good."""
        self._closing.set()
        self.end()

    def _change(self, worker_set: WorkerSet) -> None:
        """Go over to another worker set. Those that serve the same workers stay."""
        before = self._residents
        assert before is not None
        coming = self._taken_coming()
        if coming is not None and (
            coming.worker_set is not worker_set or coming.before is not before or coming.is_lost
        ):
            coming.end(but=before)
            coming = None
        if before.worker_set.code is not worker_set.code:
            self._end()
            return
        if coming is None:
            self._enter(worker_set)
            return
        coming.before = None
        self._residents = coming
        threading.Thread(
            target=before.end, args=(coming,), name="headrace-leaving", daemon=True
        ).start()

    def _enter(self, worker_set: WorkerSet) -> None:
        if self._never:
            return
        before = self._residents
        stages = set() if before is None else before.stages
        if self._slots < len(worker_set.seats) or tasks_that_wait(self._sc, stages):
            self._end()
            self._again_s = self._clock() + self._pause_s
            return
        why = self._why_not_entered(worker_set)
        self._entered_s = self._clock()
        if why is not None:
            self._failed += 1
            log.info("steps run as jobs for now, since workers cannot stay: %s", why)
            self._end_for_a_while()
            if self._failed >= _FAILURES:
                log.warning(
                    "workers cannot stay, so steps run as jobs, which takes longer: %s", why
                )
                self._again_s = self._clock() + _GIVEN_UP_S
            return
        self._failed = 0
        if self._watching is not None:
            return
        log.info(
            "workers stay in %d of %d slots for tasks, and leave when another task waits",
            len(worker_set.seats),
            self._slots,
        )
        self._watching = threading.Thread(target=self._watch, name="headrace-slots", daemon=True)
        self._watching.start()

    def _why_not_entered(self, worker_set: WorkerSet) -> str | None:
        """Start the residents. Return why they are not all there; None if they are."""
        before = self._residents
        try:
            residents = Residents(self._sc, worker_set, self._hosts, self._names, before)
            self._residents = residents
            if before is not None:
                before.end(but=residents)  # the newcomers may need the slots
                residents.before = None
            return residents.enter(_ENTER_S)
        except Exception as error:  # of a socket, a thread, or Spark: jobs may do
            return f"{type(error).__name__}: {short(error)}"
        except BaseException:
            self._end()
            raise

    def _end_for_a_while(self) -> None:
        """End the residents. The less they were of use, the longer the pause."""
        self._end()
        if self._clock() - self._entered_s > _USEFUL_S:
            self._pause_s = _PAUSE_S
        self._again_s = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _end(self) -> None:
        self._end_coming()
        residents, self._residents = self._residents, None
        self._somebody_waits = False
        if residents is not None:
            residents.end()

    def _end_coming(self) -> None:
        """End those to come, but for those that are at work already."""
        coming = self._taken_coming()
        if coming is not None:
            coming.end(but=coming.before)

    def _taken_coming(self) -> Residents | None:
        with self._coming_lock:
            coming, self._coming = self._coming, None
            return coming

    # -- beside the steps ---------------------------------------------------------------------

    def _watch(self) -> None:
        """Look whether somebody waits for slots. Residents at work leave after their step."""
        waited = False
        while not self._closing.wait(_LOOK_S):
            try:
                waits = self._is_waited_for()
                if waits and waited:
                    self._give_way()
                self._end_what_is_not_wanted()
            except Exception as error:  # the session may be ending; it is looked at again
                log.info("could not see who waits for slots: %s", short(error))
                waits = False
            waited = waits

    def _end_what_is_not_wanted(self) -> None:
        if self._clock() - self._requested_s > _COMING_S:
            self._end_coming()

    def _is_waited_for(self) -> bool:
        residents, coming = self._residents, self._coming
        if residents is None:
            return False
        stages = residents.stages if coming is None else residents.stages | coming.stages
        return tasks_that_wait(self._sc, stages) > 0

    def _give_way(self) -> None:
        self._somebody_waits = True
        if self._at_work.acquire(blocking=False):
            try:
                if self._residents is not None:
                    self._end_for_a_while()
            finally:
                self._at_work.release()
