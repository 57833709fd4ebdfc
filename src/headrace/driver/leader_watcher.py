"""Watching the leader: what a driver that does not lead sees of the one that does."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from headrace.driver.driver import Driver, Fresh
from headrace.errors import StorageError
from headrace.errors.printable import one_line
from headrace.eventtime.timestamps import show_time
from headrace.ledger.commands import Answer
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import (
    FailureDetector,
    HeartbeatRecord,
    Heartbeats,
    HeartbeatSettings,
    LeaderSeen,
    Verdict,
    leader_among,
)

log = logging.getLogger("headrace")

#: Looks of a watcher in each period of heartbeats.
LOOKS = 2


def whom(heartbeat: HeartbeatRecord) -> str:
    """Return who wrote a heartbeat, for people: host and process, what it does, and since when."""
    does = {
        "leads": "leads",
        "waits": "stands by",
        "asks": "wants to take over",
        "ended": "led",
    }[heartbeat.role]
    return one_line(
        f"{heartbeat.where}, which {does} since {show_time(heartbeat.since_us)} "
        f"(last heartbeat {show_time(heartbeat.now_us)})"
    )


class Decided(msgspec.Struct, frozen=True):
    """The decision to claim.

    Attributes:
        on: the head to claim on top of.
        why: see :attr:`headrace.driver.leadership.TakeOver.why`.
        at_s: when it was decided.
        silent_s: how long the previous leader had shown no heartbeat at that time.
        last_step_s: when the previous leader's last step was seen.
    """

    on: Head | Fresh
    why: str
    at_s: float
    silent_s: float
    last_step_s: float


class LeaderWatcher:
    """Watches the leader: reads the storage, and asks a :class:`FailureDetector` for its verdict.

    Args:
        driver: the driver of this process. Its ledger is read.
        heartbeats: the heartbeats of all drivers.
        heartbeat: how often to look, and how long the leader may be silent.
        clock: seconds that only go up.

    Attributes:
        head: the pipeline as of the newest step that was seen.
    """

    def __init__(
        self,
        driver: Driver,
        heartbeats: Heartbeats,
        heartbeat: HeartbeatSettings,
        clock: Callable[[], float],
    ) -> None:
        self.head: Head | None = None
        self._ledger = driver.ledger
        self._heartbeats = heartbeats
        self._clock = clock
        self._watch = FailureDetector(heartbeat.patience_s)
        self._every_s = heartbeat.period_s / LOOKS
        self._seen = LeaderSeen(-1, None)
        self._looked_s = float("-inf")
        self._last_step_s = clock()
        self._moved_s = clock()

    def look(self) -> Verdict:
        """Follow the head. If it is time, also look for heartbeats. Return the verdict."""
        try:
            return self.look_or_raise()
        except StorageError as error:  # a look that fails says nothing about the leader
            log.warning("could not look which driver leads: %s", error.what)
            return "lives"

    def look_or_raise(self) -> Verdict:
        """Do what :meth:`look` does, and raise what the storage raises."""
        began = self._clock()
        self._follow()
        if began - self._looked_s < self._every_s:
            return "lives"
        self._looked_s = began
        epoch = 0 if self.head is None else self.head.epoch
        leader = leader_among(self._heartbeats.all(), epoch)
        self._seen = LeaderSeen(-1 if self.head is None else self.head.step, leader)
        return self._watch.saw(self._seen, began, self._clock())

    def _follow(self) -> None:
        before = self.head
        if before is not None and not self._ledger.is_followed(before):
            return
        self.head = self._ledger.open(known=before)
        self._moved_s = self._clock()
        if before is None or (self.head is not None and self.head.done > before.done):
            self._last_step_s = self._clock()

    @property
    def seen(self) -> LeaderSeen:
        """The newest step, and the leader's heartbeat, as of the last look."""
        return self._seen

    @property
    def patience_s(self) -> float:
        """After this many seconds without a sign, the leader counts as dead."""
        return self._watch.patience_now_s

    @property
    def still_s(self) -> float:
        """How long nothing was committed, in seconds, as of the last look."""
        return self._clock() - self._moved_s

    @property
    def leader_lives(self) -> bool:
        """Whether the leader has shown a heartbeat and has not ended."""
        return self._seen.leader is not None and self._seen.leader.role == "leads"

    @property
    def end(self) -> str:
        """The reason that the previous leader gave for its end."""
        return "" if self._seen.leader is None else self._seen.leader.why

    def answer(self, number: int) -> Answer | None:
        """Return the answer to a command; None while there is none."""
        answers = [] if self.head is None else self.head.answers
        return next((one for one in answers if one.number == number), None)

    def decided(self, why: str) -> Decided:
        """Return the decision that this driver claims now."""
        on: Head | Fresh = self.head or "new"
        return Decided(on, why, self._clock(), self._watch.silent_s, self._last_step_s)
