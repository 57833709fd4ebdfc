"""The heartbeat: a thread that shows other processes that this driver is alive.

A heartbeat is written only if three things hold: the process is scheduled, its storage accepts a
file, and the driver's loop makes progress. If one of them fails, the driver falls silent, and a
standby takes its place.

The loop counts as stuck if an instruction takes longer than :attr:`HeartbeatSettings.hang_s`. Some
instructions may take as long as they need: attempts, waiting for sinks and for input, asking
sources, and whatever works through the storage (such as a sweep of very many names). They end in
other ways. Tasks, sinks and sources have timeouts (:mod:`headrace.driver.watchdog`), and a storage
that does not answer accepts no heartbeat either. A driver that was given up counts as stuck, too.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType

from headrace.control.process_check import still_runs, this_process
from headrace.coordinator.messages import (
    AwaitClaim,
    AwaitSinks,
    Clean,
    DeliverBeforeCommit,
    Instruction,
    LoadIntent,
    LookForPins,
    Poll,
    PollBackfill,
    PrepareReplay,
    Release,
    Run,
    StageOutputs,
    Sweep,
    Wait,
    WriteOutputs,
)
from headrace.errors import StorageError
from headrace.ledger.heartbeats import HeartbeatRecord, Heartbeats, HeartbeatSettings, Role

log = logging.getLogger("headrace")

#: Instructions that may take as long as they need.
LONG: frozenset[type[Instruction]] = frozenset(
    {
        *(Run, AwaitSinks, Wait, AwaitClaim),
        *(Poll, PollBackfill, LoadIntent, PrepareReplay),
        *(Sweep, Clean, LookForPins, StageOutputs, WriteOutputs, DeliverBeforeCommit, Release),
    }
)


#: The tokens of the drivers of this process that have not ended.
_RUNNING: set[str] = set()


def driver_runs(record: HeartbeatRecord) -> bool | None:
    """Return whether the driver of a heartbeat still runs; None if that cannot be seen from here.

    It can be seen of drivers of this process, and of other processes of the same machine.
    """
    if record.process == this_process():
        return record.token in _RUNNING
    return still_runs(record.process)


class LoopProgress:
    """Which instruction the driver's loop carries out, and since when.

    The loop writes it, and other threads read it.

    Args:
        clock: seconds that only go up.

    Attributes:
        epoch: the epoch in which the driver leads; None before its claim is committed.
        claimed_s: when the claim was committed, by the clock.
        given_up: whether the loop was given up.
        not_deleted: number of names that are not needed and could not be deleted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.epoch: int | None = None
        self.claimed_s = 0.0
        self.not_deleted = 0
        self.given_up = False
        self._at: tuple[type[Instruction] | None, float] = None, clock()

    @property
    def at(self) -> tuple[type[Instruction] | None, float]:
        """The kind of the current instruction (None before the first), and when it started."""
        return self._at

    def begins(self, what: type[Instruction]) -> None:
        """Note that the loop starts an instruction of a kind."""
        self._at = what, self.clock()

    def claimed(self, epoch: int) -> None:
        """Note that a claim is committed."""
        self.epoch, self.claimed_s = epoch, self.clock()

    def lost(self) -> None:
        """Note that another driver leads."""
        self.epoch = None

    def goes_on(self, hang_s: float) -> bool:
        """Return whether the loop makes progress. Before the driver leads, it always does."""
        what, since = self._at
        if self.given_up:
            return False
        return self.epoch is None or what in LONG or self.clock() - since < hang_s


class Heartbeat:
    """Writes heartbeats while the driver's loop makes progress, in a thread of its own.

    Used in a ``with`` statement.

    Args:
        heartbeats: where they are written.
        loop_progress: the progress of the driver's loop.
        settings: how often they are written.
        now_us: the time of day, for people.

    Attributes:
        token: a random name for this process.
        where: its host and process id, for people.
    """

    def __init__(
        self,
        heartbeats: Heartbeats,
        loop_progress: LoopProgress,
        settings: HeartbeatSettings,
        now_us: Callable[[], int],
    ) -> None:
        self.token = uuid.uuid4().hex[:16]
        self._heartbeats = heartbeats
        self._loop_progress = loop_progress
        self._settings = settings
        self._now_us = now_us
        self.where = f"{socket.gethostname()}:{os.getpid()}"
        self._process = this_process()
        self._idle_role: Role | None = None
        # ((role, epoch), time of day when it took that role)
        self._since: tuple[tuple[Role, int], int] | None = None
        self._counter = 0
        self._ended: str | None = None
        self._cleared: int | None = None
        self._closing = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="headrace-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        _RUNNING.add(self.token)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the heartbeat. Later calls do nothing.

        If the driver leads and its end is known, a last heartbeat gives the reason. Otherwise its
        heartbeats are deleted.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        _RUNNING.discard(self.token)
        self._thread.join()
        try:
            if self._ended is None or self._loop_progress.epoch is None:
                if self._counter:
                    self._heartbeats.take_back(self.token)
            else:
                self._write()
        except StorageError as failed:
            log.warning("could not record that this driver has ended: %s", failed.what)

    def show_role(self, role: Role) -> None:
        """Set the role to show while the driver does not lead.

        Before this call it shows nothing.
        """
        self._idle_role = role
        self._try_to_write()

    def ends(self, why: str) -> None:
        """Set the reason that the last heartbeat gives for the end."""
        self._ended = why

    def _run(self) -> None:
        while not self._closing.wait(self._settings.period_s):
            if self._loop_progress.goes_on(self._settings.hang_s):
                self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            with self._writing:
                self._write()
        except StorageError as error:
            log.warning("could not write a heartbeat: %s", error.what)

    def _write(self) -> None:
        epoch = self._loop_progress.epoch
        role = self._idle_role if epoch is None else "leads" if self._ended is None else "ended"
        if role is None:
            return
        now_us = self._now_us()
        what = role, epoch or 0
        if self._since is None or self._since[0] != what:
            self._since = what, now_us
        record = HeartbeatRecord(
            self.token,
            self._counter,
            role,
            epoch or 0,
            self.where,
            self._since[1],
            now_us,
            round(self._settings.period_s * 1e6),
            self._ended or "",
            self._loop_progress.not_deleted,
            self._process,
        )
        self._counter += 1
        self._heartbeats.show(record)
        if epoch is not None and epoch != self._cleared:
            self._heartbeats.clear(self.token)  # left behind by killed drivers
            self._cleared = epoch
