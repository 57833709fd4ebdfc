"""Admission: a driver that is started plainly claims only where no other driver lives.

One storage has one driver. A second one is refused; it does not replace the first unasked. Whether
the first one lives is seen in this way:

- *Its process runs on this machine*: it lives, even if it is slow to show it.
- *Its process has ended on this machine*: it is dead, and nobody waits.
- *It cannot be seen from here*: if its heartbeat or its steps move while this driver watches, it
  lives. If nothing moves for long enough, it is dead (see :mod:`headrace.ledger.heartbeats`).

A driver that noted its end is dead. The claim then rests on the very head that was looked at. So of
two drivers that start at the same time, one is fenced before it has done anything, and looks again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.driver.driver import Driver, Fresh
from headrace.driver.heartbeat import driver_runs
from headrace.driver.leader_watcher import LeaderWatcher, whom
from headrace.errors import StorageError, StorageInUse
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HeartbeatRecord, Heartbeats, LeaderSeen
from headrace.ledger.ledger import Ledger
from headrace.storage.base import Store

log = logging.getLogger("headrace")

_REMEDY = (
    "end that process first (headrace stop), let this one wait for its end (--standby), or replace "
    "it (--take-over, take_over=True)"
)


def refuse_if_seen(store: Store, pipeline: str) -> None:
    """Refuse a start if a driver is seen to run on this machine, before a runner is started.

    :class:`Admission` decides about all other cases, and says what is wrong with the storage.

    Raises:
        StorageInUse: if a driver runs.
    """
    try:
        Ledger(store).check_owner(pipeline)
        heartbeats = Heartbeats(store).all()
    except StorageError:
        return
    for heartbeat in heartbeats:
        if heartbeat.role == "leads" and driver_runs(heartbeat):
            raise _in_use(whom(heartbeat), store)


def _in_use(by: str, store: Store) -> StorageInUse:
    return StorageInUse(f"this storage is in use by {by}", place=store.location, remedy=_REMEDY)


class Admission:
    """Waits until it is known whether another driver lives.

    Args:
        driver: the driver that wants to lead.
        watcher: what it sees of the leader.
        runs: returns whether the driver of a heartbeat runs, if that can be seen from here.
        look_every_s: seconds between two looks.
    """

    def __init__(
        self,
        driver: Driver,
        watcher: LeaderWatcher,
        runs: Callable[[HeartbeatRecord], bool | None],
        look_every_s: float,
    ) -> None:
        self._driver = driver
        self._watcher = watcher
        self._runs = runs
        self._look_every_s = look_every_s
        self._first: LeaderSeen | None = None
        self._waits_for: str | None = None  # the token; empty for a leader that showed none

    def wait(self) -> Head | Fresh | None:
        """Return the head to claim on top of. None if the driver was asked to stop meanwhile.

        Raises:
            StorageInUse: if another driver lives.
            WrongPipeline: if the storage belongs to another pipeline.
        """
        self._driver.ledger.check_owner(self._driver.full_pipeline.name)
        while (found := self.look()) is None:
            if self._driver.stop_requested:
                return None
            self._driver.woken.wait(self._look_every_s)
            self._driver.woken.clear()
        return found

    def look(self) -> Head | Fresh | None:
        """Look once. Return the head to claim on top of; None if it is too early to say.

        Raises:
            StorageInUse: if another driver lives.
        """
        verdict = self._watcher.look_or_raise()
        head, leader = self._watcher.head, self._watcher.seen.leader
        if head is None:
            return "new"
        leads = leader is not None and leader.role == "leads"
        runs = self._runs(leader) if leader is not None and leads else None
        if runs:
            raise self.in_use()
        if runs is False or verdict != "lives":
            self._say_that_it_is_gone(leads)
            return head
        if self._moved():
            raise self.in_use()
        self._say_that_it_waits()
        return None

    def in_use(self) -> StorageInUse:
        """Return the error that says which driver lives."""
        leader = self._watcher.seen.leader
        by = "a driver that shows no heartbeat" if leader is None else whom(leader)
        return _in_use(by, self._driver.store)

    def _moved(self) -> bool:
        """Return whether anything has moved since the first look."""
        seen, first = self._watcher.seen, self._first
        if first is None:
            self._first = seen
            return False
        if seen.step > first.step:
            return True
        now, before = seen.leader, first.leader
        if now is None or before is None or now.token != before.token:
            self._first = seen  # another heartbeat may have become visible late
            return False
        return now.counter > before.counter

    def _say_that_it_waits(self) -> None:
        leader = self._watcher.seen.leader
        token = "" if leader is None else leader.token
        if self._waits_for == token:
            return
        self._waits_for = token
        of = "the driver that ran it last" if leader is None else whom(leader)
        log.warning(
            "waits for up to %.3g s to see whether it still runs: %s", self._watcher.patience_s, of
        )

    def _say_that_it_is_gone(self, led: bool) -> None:
        leader = self._watcher.seen.leader
        if led and leader is not None:
            log.warning("goes on after %s: that process is gone", whom(leader))
