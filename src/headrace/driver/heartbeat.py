"""The heart of a driver's process: a thread that shows others that it lives.

**What a beat rests on.** The process is scheduled, its storage takes a file, and the driver's loop goes
on. Some of its instructions take as long as they do, and that is no death: a try, waiting for sinks and for
input, asking sources, and all that works through the storage (a sweep of very many names). What never ends
among them has an end elsewhere: tasks, sinks and sources have timeouts (see
:mod:`headrace.driver.watchdog`), and where the storage does not answer it takes no beat either. Each
other instruction must end in :attr:`Lease.hang_s`. A driver whose loop is stuck there, that was given up,
or whose storage is gone, falls silent, and a standby takes its place.
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
from headrace.ledger.heartbeats import Beat, Beats, Lease, Role

log = logging.getLogger("headrace")

#: Instructions that may take as long as they need.
LONG: frozenset[type[Instruction]] = frozenset(
    {
        *(Run, AwaitSinks, Wait, AwaitClaim),
        *(Poll, PollBackfill, LoadIntent, PrepareReplay),
        *(Sweep, Clean, LookForPins, StageOutputs, WriteOutputs, DeliverBeforeCommit, Release),
    }
)


class LoopProgress:
    """What a driver's loop is at, and since when. Written by that loop, read by others.

    Args:
        clock: seconds that only go up.

    Attributes:
        epoch: the one that it reigns in; None before its claim is committed.
        claimed_s: when that was, by the clock.
        given_up: whether nobody waits for the loop any more.
        not_deleted: how many names that nobody needs could not be deleted.
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
        """Which kind of instruction the loop carries out, if it has begun, and since when."""
        return self._at

    def begins(self, what: type[Instruction]) -> None:
        """Note that the loop begins an instruction of a kind."""
        self._at = what, self.clock()

    def claimed(self, epoch: int) -> None:
        """Note that a claim is committed."""
        self.epoch, self.claimed_s = epoch, self.clock()

    def lost(self) -> None:
        """Note that another driver leads."""
        self.epoch = None

    def goes_on(self, hang_s: float) -> bool:
        """Say whether the loop is not stuck."""
        what, since = self._at
        if self.given_up:
            return False
        return self.epoch is None or what in LONG or self.clock() - since < hang_s


class Heartbeat:
    """Beats while the driver's loop goes on, in a thread of its own; used in a ``with`` statement.

    Args:
        beats: where.
        pulse: what the driver's loop is at.
        lease: how often.
        now_us: the time of day, for people.

    Attributes:
        token: the process's random name.
        where: its host and number, for people.
    """

    def __init__(
        self, beats: Beats, pulse: LoopProgress, lease: Lease, now_us: Callable[[], int]
    ) -> None:
        self.token = uuid.uuid4().hex[:16]
        self._beats = beats
        self._pulse = pulse
        self._lease = lease
        self._now_us = now_us
        self.where = f"{socket.gethostname()}:{os.getpid()}"
        self._resting: Role | None = None
        self._since: tuple[tuple[Role, int], int] | None = None  # its role, and since when
        self._counter = 0
        self._ended: str | None = None
        self._cleared: int | None = None
        self._closing = threading.Event()
        self._beating = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="headrace-heart", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.leave()

    def leave(self) -> None:
        """Beat no more; say with a last beat how it has ended, once."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        try:
            if self._ended is None or self._pulse.epoch is None:
                if self._counter:
                    self._beats.take_back(self.token)
            else:
                self._beat()
        except StorageError as failed:
            log.warning("could not tell others that this driver has ended: %s", failed.what)

    def rests_as(self, role: Role) -> None:
        """Say from now on what the process does while it does not lead; before, it says nothing."""
        self._resting = role
        self._try_to_beat()

    def ends(self, why: str) -> None:
        """Say with the last beat why the reign is over."""
        self._ended = why

    def _run(self) -> None:
        while not self._closing.wait(self._lease.period_s):
            if self._pulse.goes_on(self._lease.hang_s):
                self._try_to_beat()

    def _try_to_beat(self) -> None:
        try:
            with self._beating:
                self._beat()
        except StorageError as error:
            log.warning("could not show others that this driver lives: %s", error.what)

    def _beat(self) -> None:
        epoch = self._pulse.epoch
        role = self._resting if epoch is None else "leads" if self._ended is None else "ended"
        if role is None:
            return
        now_us = self._now_us()
        what = role, epoch or 0
        if self._since is None or self._since[0] != what:
            self._since = what, now_us
        beat = Beat(
            self.token, self._counter, role, epoch or 0, self.where, self._since[1], now_us,
            round(self._lease.period_s * 1e6), self._ended or "", self._pulse.not_deleted,
        )  # fmt: skip
        self._counter += 1
        self._beats.show(beat)
        if epoch is not None and epoch != self._cleared:
            self._beats.clear(self.token)  # what killed drivers have left
            self._cleared = epoch
