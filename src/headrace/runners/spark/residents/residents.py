"""The resident workers of a pipeline: the driver's end of all of them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import msgspec

from headrace.runners.base import EngineFailed
from headrace.runners.spark.job_names import JobNames
from headrace.runners.spark.residents.links import BROKEN, Entrance
from headrace.runners.spark.residents.orders import HEARTBEAT, Hello, Order, Reply
from headrace.runners.spark.residents.resident import serve
from headrace.runners.spark.seats import Place
from headrace.runners.spark.worker_sets import WorkerSet
from headrace.session.spark_errors import short

#: How often residents are looked after while the driver waits for their replies, in seconds.
_LOOK_S = 0.25
#: After how long without a heartbeat a resident is given up, in seconds. (User code may keep others from
#: running for a while.)
_SILENT_S = 2.5
#: How long a resident may come after the one before, in seconds.
_FOLLOWS_S = 3.0
#: How long residents have to end by themselves, before Spark ends them, in seconds.
_END_S = 2.0
_reply = msgspec.msgpack.Decoder(Reply)
_encode = msgspec.msgpack.Encoder().encode


class ResidentLost(EngineFailed):
    """A resident has gone, or has failed. What it was doing is never used."""


class _Resident:
    """A resident as the driver knows it.

    Args:
        place: the place of its seat.

    Attributes:
        place: the same.
        token: names this start of it.
        group: the job group of its job.
        thread: waits for its job; None before it has been started.
        link: the link to it; None before it has arrived.
        hello: what it has said then.
        why: why its job has ended; None while it runs.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.token = uuid.uuid4().hex
        self.group = f"headrace-resident-{uuid.uuid4().hex}"
        self.thread: threading.Thread | None = None
        self.link: Connection | None = None
        self.hello: Hello | None = None
        self.why: str | None = None

    @property
    def is_there(self) -> bool:
        """Whether it has arrived, and its job has not ended."""
        return self.link is not None and self.why is None

    @property
    def name(self) -> str:
        """How texts name it."""
        return f"process of worker {self.place.name}"

    def dismiss(self) -> None:
        """Close the link, so that it ends."""
        if self.link is not None:
            with contextlib.suppress(OSError):
                self.link.close()


class Residents:
    """Residents for all seats of a worker set, each in a job of its own.

    If one of them has gone, all have to leave: the links are closed, so that each ends.

    Args:
        context: the SparkContext.
        worker_set: the workers.
        hosts: see :class:`Entrance`.
        names: names their jobs.
        before: the residents of another worker set of the same code. Those whose places are in both
            stay, and serve both until one of the two ends.

    Attributes:
        worker_set: the workers.
        before: the same; None once these have taken over.
    """

    def __init__(
        self,
        context: Any,
        worker_set: WorkerSet,
        hosts: tuple[str, str] | None,
        names: JobNames,
        before: Residents | None = None,
    ) -> None:
        self.worker_set = worker_set
        self.before = before
        self._sc = context
        self._names = names
        self._seats = worker_set.seats
        there = {} if before is None else {one.place: one for one in before._each if one.is_there}
        self._each: list[_Resident] = [
            there.get(seat.place) or _Resident(seat.place) for seat in self._seats
        ]
        # What residents share whose members are the same: an order has a number of its own.
        self._changed: threading.Condition = (
            threading.Condition() if before is None else before._changed
        )
        self._numbers: Iterator[int] = itertools.count(1) if before is None else before._numbers
        self._closed = False
        self._number = 0
        self._stopped: set[int] = set()  # processes that were seen stopped at the last look
        self._entrance = Entrance(hosts, self._arrived)

    # -- entering and leaving -----------------------------------------------------------------

    @property
    def places(self) -> set[Place]:
        """Where they are."""
        return {one.place for one in self._each}

    def enter(self, within_s: float) -> str | None:
        """Start those that are not there, and wait for them.

        Returns:
            Why they do not come; None if all are there.
        """
        for at, resident in enumerate(self._each):
            if resident.link is not None:
                continue
            task = functools.partial(
                serve, self.worker_set.code, self._entrance.address, resident.token
            )
            thread = threading.Thread(
                target=self._run,
                args=(resident, self.worker_set.job_of(at, task)),
                name=f"headrace-resident-{resident.place.name}",
                daemon=True,
            )
            with self._changed:
                if self._closed:
                    return "they were ended"
                resident.thread = thread
                thread.start()
        with self._changed:
            there, until_s = len(self._links), time.monotonic() + within_s
            while not self.is_whole and self._why_ended is None:
                if not self._changed.wait(until_s - time.monotonic()):
                    return f"{there} of {len(self._each)} tasks have started"
                if len(self._links) > there:  # the others have to follow soon
                    there, until_s = len(self._links), time.monotonic() + min(within_s, _FOLLOWS_S)
            return self._why_ended

    @property
    def is_whole(self) -> bool:
        """Whether all have arrived, and no job has ended."""
        return not self._closed and all(resident.is_there for resident in self._each)

    @property
    def _why_ended(self) -> str | None:
        if self._closed:
            return "they were ended"
        return next((resident.why for resident in self._each if resident.why is not None), None)

    @property
    def is_lost(self) -> bool:
        """Whether a resident has gone since the last step."""
        return not self.is_whole or bool(wait(self._links, 0))

    @property
    def stages(self) -> set[int]:
        """Spark's ids of the stages of the residents."""
        return {resident.hello.stage for resident in self._each if resident.hello is not None}

    @property
    def pids(self) -> list[int]:
        """The processes of the residents that have arrived."""
        return [resident.hello.pid for resident in self._each if resident.hello is not None]

    @property
    def _links(self) -> list[Connection]:
        return [resident.link for resident in self._each if resident.link is not None]

    def _run(self, resident: _Resident, job: Any) -> None:
        """Run the job of a resident. Returns when the resident has ended."""
        why = "the task has ended"
        try:
            self._names.begin_thread(resident.group, f"{resident.name}, which stays between steps")
            job()
        except Exception as error:
            why = short(error)
        with self._changed:
            resident.why = why
            self._changed.notify_all()

    def _arrived(self, link: Connection, hello: Hello) -> None:
        with self._changed:
            resident = next((one for one in self._each if one.token == hello.token), None)
            if self._closed or resident is None or resident.link:
                link.close()
                return
            resident.link, resident.hello = link, hello
            self._changed.notify_all()

    def cancel(self) -> None:
        """Let Spark end the jobs of all residents. May be called from any thread."""
        for resident in self._each:
            self._sc.cancelJobGroup(resident.group)

    def end(self, but: Residents | None = None) -> None:
        """End residents, and wait until they have given back their slots.

        Args:
            but: residents of another worker set, whose members stay.
        """
        stay = () if but is None else but._each
        with self._changed:
            self._closed = True
            gone = [one for one in self._each if one not in stay]
            for resident in gone:
                resident.dismiss()
            self._changed.notify_all()
        self._entrance.close()
        until = time.monotonic() + _END_S
        for resident in gone:
            if resident.thread is None:
                continue
            resident.thread.join(max(0.0, until - time.monotonic()))
            if resident.thread.is_alive():
                self._sc.cancelJobGroup(resident.group)

    # -- a layer of a step --------------------------------------------------------------------

    def run(self, layer: int, plan: bytes, payloads: Sequence[list[bytes]]) -> list[bytes]:
        """Run a task for each worker, and return their results in the order of the workers.

        Args:
            layer: the layer; 0 to read shares of the division.
            plan: the plan of the step, encoded; empty for that of the call before.
            payloads: for each worker, a parcel from each task of the layer before.

        Raises:
            ResidentLost: one has gone, or its task has failed. All have to leave.
        """
        self._number = next(self._numbers)
        waiting: dict[Connection, int] = {}
        heard: dict[Connection, float] = {}
        results = [b""] * self.worker_set.workers
        try:
            for at, (seat, link) in enumerate(zip(self._seats, self._links, strict=True)):
                of_seat = [payloads[worker] for worker in seat.workers] if payloads else []
                order = Order(self._number, layer, plan, seat.workers, of_seat)
                link.send_bytes(_encode(order))
                waiting[link] = at
                heard[link] = time.monotonic()
            looks_s = time.monotonic() + _LOOK_S
            while waiting:
                for link in cast(list[Connection], wait(list(waiting), _LOOK_S)):
                    data = link.recv_bytes()
                    heard[link] = time.monotonic()
                    if data != HEARTBEAT:
                        workers = self._seats[waiting.pop(link)].workers
                        for worker, result in zip(workers, self._results(data), strict=True):
                            results[worker] = result
                # What has come while this process stood still is read first.
                if time.monotonic() >= looks_s and not wait(list(waiting), 0):
                    self._look_after({at: heard[link] for link, at in waiting.items()})
                    looks_s = time.monotonic() + _LOOK_S
        except BROKEN as error:
            raise ResidentLost(f"a worker has gone ({type(error).__name__} {error})") from None
        return results

    def _results(self, data: bytes) -> list[bytes]:
        reply = _reply.decode(data)
        if reply.number != self._number:
            raise ResidentLost(f"a worker has replied to order {reply.number}, not {self._number}")
        if reply.why:
            raise ResidentLost(reply.why)
        return reply.results

    def _look_after(self, heard: dict[int, float]) -> None:
        """Check that residents that have not replied can still do so.

        Args:
            heard: when each of them was heard last.

        Raises:
            ResidentLost: one cannot.
        """
        now = time.monotonic()
        for at, heard_s in heard.items():
            resident = self._each[at]
            name = resident.name
            if resident.why is not None or self._closed:
                raise ResidentLost(f"{name}: {resident.why or 'it was ended'}")
            assert resident.hello is not None
            pid = resident.hello.pid
            stopped = bool(self._entrance.address.path) and _is_stopped(pid)
            if stopped and pid in self._stopped:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)  # it would keep its slot
                raise ResidentLost(f"{name}: process {pid} was stopped (SIGSTOP)")
            self._stopped = self._stopped | {pid} if stopped else self._stopped - {pid}
            if now - heard_s > _SILENT_S:
                raise ResidentLost(f"{name} was not heard of for {_SILENT_S:g} s")


def _is_stopped(pid: int) -> bool:
    """Return whether a process of this host was stopped by a signal. (Profilers stop it otherwise.)"""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:
        return False
