"""The resident workers of a pipeline: the driver's end of all of them."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
import uuid
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import msgspec

from headrace.runners.base import EngineFailed
from headrace.runners.spark.job_names import JobNames
from headrace.runners.spark.residents.links import BROKEN, Entrance
from headrace.runners.spark.residents.orders import HEARTBEAT, Hello, Order, Reply
from headrace.runners.spark.residents.resident import serve
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

    Attributes:
        token: names this start of it.
        link: the link to it; None before it has arrived.
        hello: what it has said then.
        why: why its job has ended; None while it runs.
    """

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        self.link: Connection | None = None
        self.hello: Hello | None = None
        self.why: str | None = None


class Residents:
    """Residents for all seats of a worker set, each in a job of its own.

    If one of them has gone, all have to leave: the links are closed, so that each ends.

    Args:
        context: the SparkContext.
        worker_set: the workers.
        hosts: see :class:`Entrance`.
        names: names their jobs.

    Attributes:
        worker_set: the workers.
        group: the job group of the residents.
    """

    def __init__(
        self,
        context: Any,
        worker_set: WorkerSet,
        hosts: tuple[str, str] | None,
        names: JobNames,
    ) -> None:
        self.worker_set = worker_set
        self.group = f"headrace-residents-{uuid.uuid4().hex}"
        self._sc = context
        self._names = names
        self._seats = worker_set.seats
        self._each = [_Resident() for _ in self._seats]
        self._changed = threading.Condition()
        self._closed = False
        self._number = 0
        self._stopped: set[int] = set()  # processes that were seen stopped at the last look
        self._threads: list[threading.Thread] = []
        self._entrance = Entrance(hosts, self._arrived)

    # -- entering and leaving -----------------------------------------------------------------

    def enter(self, within_s: float) -> str | None:
        """Start all residents, and wait for them. Return why they do not come; None if they have."""
        for at, resident in enumerate(self._each):
            task = functools.partial(
                serve, self.worker_set.code, self._entrance.address, at, resident.token
            )
            run = self.worker_set.job_of(at, task)
            thread = threading.Thread(
                target=self._run,
                args=(resident, at, run),
                name=f"headrace-resident-{self._seats[at].name}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        with self._changed:
            there, until_s = 0, time.monotonic() + within_s
            while not self._is_whole and self._why_ended is None:
                if not self._changed.wait(until_s - time.monotonic()):
                    return f"{there} of {len(self._each)} tasks have started"
                if len(self._links) > there:  # the others have to follow soon
                    there, until_s = len(self._links), time.monotonic() + min(within_s, _FOLLOWS_S)
            return self._why_ended

    @property
    def _is_whole(self) -> bool:
        return all(resident.link is not None and resident.why is None for resident in self._each)

    @property
    def _why_ended(self) -> str | None:
        return next((resident.why for resident in self._each if resident.why is not None), None)

    @property
    def is_lost(self) -> bool:
        """Whether a resident has gone since the last step."""
        return not self._is_whole or bool(wait(self._links, 0))

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

    def _run(self, resident: _Resident, at: int, job: Any) -> None:
        """Run the job of a resident. Returns when the resident has ended."""
        why = "the task has ended"
        try:
            stays = "stays" if len(self._seats[at].workers) == 1 else "stay"
            self._names.begin_thread(self.group, f"{self._name(at)}, which {stays} between steps")
            job()
        except Exception as error:
            why = short(error)
        with self._changed:
            resident.why = why
            self._changed.notify_all()

    def _arrived(self, link: Connection, hello: Hello) -> None:
        with self._changed:
            resident = self._each[hello.seat] if hello.seat < len(self._each) else None
            if self._closed or resident is None or resident.token != hello.token or resident.link:
                link.close()
                return
            resident.link, resident.hello = link, hello
            self._changed.notify_all()

    def end(self) -> None:
        """End all residents, and wait until they have given back their slots."""
        with self._changed:
            self._closed = True
            links = self._links
        for link in links:
            with contextlib.suppress(OSError):
                link.close()
        self._entrance.close()
        until = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._sc.cancelJobGroup(self.group)

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
        self._number += 1
        waiting: dict[Connection, int] = {}
        heard: dict[Connection, float] = {}
        results = [b""] * self.worker_set.workers
        try:
            for at, (seat, link) in enumerate(zip(self._seats, self._links, strict=True)):
                of_seat = [payloads[worker] for worker in seat.workers] if payloads else []
                link.send_bytes(_encode(Order(self._number, layer, plan, of_seat)))
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

    def _name(self, at: int) -> str:
        """Return how texts name a resident."""
        workers = self._seats[at].workers
        return f"worker{'s' * (len(workers) > 1)} {', '.join(map(str, workers))}"

    def _look_after(self, heard: dict[int, float]) -> None:
        """Check that residents that have not replied can still do so.

        Args:
            heard: when each of them was heard last.

        Raises:
            ResidentLost: one cannot.
        """
        now = time.monotonic()
        for at, heard_s in heard.items():
            resident, name = self._each[at], self._name(at)
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
